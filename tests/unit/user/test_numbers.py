"""A pre-study's numbers as a person reads them: the bins that stand out, and the promise."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from study_parties import MakeManifest

from dpdpca_protocol.layout.blocks import BlockName
from dpdpca_user.commands.numbers import show_numbers
from dpdpca_user.planning.prestudy import PreStudyResult
from dpdpca_user.results.model import claim_of_numbers

BLOCKS = dict.fromkeys(("norms", "pair-norms", "sum", "octaves", "far-pairs"), "0.2")


@pytest.fixture
def shown(make_manifest: MakeManifest, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    def show(norms: dict[int, int], **changes: str) -> str:
        manifest = make_manifest(release="pre-study", blocks=BLOCKS, **changes)
        released = {block.name: [0] * block.length for block in manifest.figures.blocks}
        released[BlockName.COUNT] = [1234]
        released[BlockName.FAR_PAIRS] = [456]
        for bin_, count in norms.items():
            released[BlockName.NORMS][bin_] = count
        facts = PreStudyResult.of(manifest, released, 3).to_json()
        show_numbers(facts | {"title": "A look", "claim": claim_of_numbers(manifest)})
        return capsys.readouterr().out

    return show


def test_bins_from_the_first_to_the_last_that_stand_out(shown: Callable[..., Any]) -> None:
    text = shown({40: 700, 42: 500})
    assert "A look: 1,234 records, 3 encoded features" in text
    assert "700" in text
    assert "500" in text
    assert "0.2973" in text  # bin 41 between the two ends at 2^(−7/4)
    assert "(no count is clearly above the noise)" in text  # the differences
    assert "3 features have histograms of differences: --json prints them" in text
    assert re.search(r"far pairs: 456 ± [\d.]+ of about 617\. In these pairs", text)
    assert "against the proxy too" in text
    assert "second, independent draw" in text


def test_numbers_with_owners_noise_have_no_second_draw(shown: Callable[..., Any]) -> None:
    text = " ".join(shown({40: 700}, noise_by="owners").split())
    assert "it is enough that 2 of them did so" in text
    assert "second" not in text


def test_a_round_names_the_total_of_its_chain(shown: Callable[..., Any]) -> None:
    text = " ".join(shown({}, rho_share="0.05").split())
    assert "Each record has (1, " in text
    assert "-differential privacy over all rounds of its chain of studies" in text
    assert "this round by itself: (ε, δ) = (0." in text
