"""Whoever has the release and the other shares tests guesses of the noise against a share's public digest.

A flat release is the product of the shares times (1 + n)^x, so the victim's ciphertext is the release over
the other shares, times 1 − x n, for the right x. A salt that nobody else knows makes every guess useless.
"""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import gmpy2
import numpy as np
import pytest
from gmpy2 import mpz
from owner_world import desk_of, make_owner_home
from pad_streams import chunk_pads
from promises import Promise
from proxy_world import OpenStudy, ProxyWorld, values_of

from dpdpca_owner import actions
from dpdpca_owner.records.source import DataLocation
from dpdpca_owner.upload import Watcher
from dpdpca_protocol.layout.packing import FlatLayout, pack
from dpdpca_protocol.messages.share import ShareStatement
from dpdpca_protocol.pads.chunks import encode, integers
from dpdpca_protocol.pads.keys import open_pad_key
from dpdpca_protocol.paillier.chunks import decode_chunk, encode_chunk
from dpdpca_protocol.randomness import Randomness
from dpdpca_protocol.terms.terms import NoiseBy
from dpdpca_protocol.wire import salts
from dpdpca_protocol.wire.identifiers import Digest, PartyId
from dpdpca_protocol.wire.salts import unsalted
from dpdpca_protocol.wire.signing import verify_statement
from dpdpca_runtime.http.address import StudyAddress

ZEROS = bytes(salts.SALT_BYTES)
TERMS = {"epsilon": 10, "fraction_bits": 1, "min_records": 1}
"""A coarse grid and a large ε keep the guesses few. Others take longer: the attack is the same."""


def test_two_owners_and_the_data_user_learn_nothing_from_the_third_owners_digest(
    world: ProxyWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, promise: Promise
) -> None:
    for is_public in (False, True):
        if is_public:
            publish_salts(monkeypatch)
        world.with_new_key()
        study = world.open_study(1, min_owners=3, **TERMS)
        known: list[mpz] = []
        for seed, owner in enumerate(world.owners[1:]):
            chunks = study.plain_chunks(values_of(1, seed))
            study.upload(owner, chunks)
            study.complete(owner, chunks)
            known += decode_chunk(unsalted(chunks[0]), world.secret.public)
        exact = joined(study, tmp_path / f"owner {is_public}")
        assert attack(study, known) == (exact if is_public else None)
    promise(
        "P15", counted="every likely noise against an owner's public digest", result="none can be confirmed"
    )


def test_the_data_user_alone_learns_nothing_about_a_single_owner(
    world: ProxyWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for is_public in (False, True):
        if is_public:
            publish_salts(monkeypatch)
        world.with_new_key()
        study = world.open_study(1, min_owners=1, **TERMS)
        exact = joined(study, tmp_path / f"owner {is_public}")
        assert attack(study, []) == (exact if is_public else None)


@pytest.mark.parametrize(
    ("release", "noise_by"),
    [(release, noise_by) for release in ("joint", "pairs", "pre-study") for noise_by in ("proxy", "owners")],
)
def test_under_pads_the_data_user_learns_nothing_about_one_owner_of_three(
    world: ProxyWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str, noise_by: str
) -> None:
    """It has every pad, so without salts it could test guesses of one owner's values by itself."""
    blocks = {"sum": "1"} if release == "pre-study" else None
    more = {"noise_by": "owners", "max_colluding": 1, "fraction_bits": 3} if noise_by == "owners" else {}
    for is_public in (False, True):
        if is_public:
            monkeypatch.setattr("dpdpca_protocol.pads.chunks.chunk_salt", lambda key, index: ZEROS)
        study = world.open_study(
            1, suite="pads", release=release, blocks=blocks, min_owners=3, **TERMS | more
        )
        length = study.manifest.figures.value_count
        for owner in world.owners[1:]:
            chunks, pad = study.padded_chunks(owner, [9, *[0] * (length - 1)])
            study.upload(owner, chunks)
            study.complete(owner, chunks, pad=pad)
        exact = joined(study, tmp_path / f"owner {is_public}")
        found = attack_pads(study)
        if not is_public:
            assert found is None
        elif noise_by == "proxy":
            assert found == exact
        else:
            assert found is not None  # with its own noise alone, m times the ρ that it agreed to


def attack_pads(study: OpenStudy) -> list[int] | None:
    """The first owner's values, out of what the data user has; or None."""
    world, figures = study.world, study.manifest.figures
    victim = share_of(study)
    (digest,) = victim.chunk_digests
    owner = PartyId.of(victim.owner)
    key = open_pad_key(victim.pad or b"", world.pads, study.study, owner, victim.version)
    # Nine values about the middle of a grid with few steps; N is part of what a study tells.
    count = 4 if figures.rules.of_pairs else 9
    widths = [18] * (figures.value_count - 1)
    if figures.noise_by is NoiseBy.OWNERS:
        # No guess is left out where one value has noise; where two have, many are.
        widths = [60, 400] if len(widths) == 2 else [300 + figures.blocks[1].tail]
    pads = chunk_pads(key, 0, figures.value_count)
    for guess in itertools.product(*(range(-width, width + 1) for width in widths)):
        candidate = encode(pads + integers([count, *guess]).view(np.uint64))
        if digest in (Digest.of(candidate), Digest.of(ZEROS + candidate)):
            return [count, *guess]
    return None


def share_of(study: OpenStudy) -> ShareStatement:
    """The first owner's statement, as the data user gets it."""
    bundle = study.world.client(study.world.user).release(study.study)
    said = [ShareStatement.parse(verify_statement("share", each)) for each in bundle.shares]
    return next(each for each in said if each.owner == study.world.owners[0].public.ed25519)


def publish_salts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes the defence out: every salt is known."""

    def known(_: Randomness) -> bytes:
        return ZEROS

    monkeypatch.setattr(salts, "draw_salt", known)


def joined(study: OpenStudy, folder: Path) -> list[int]:
    """The product's own owner joins; its exact integers. Then the study is closed and released."""
    folder.mkdir()
    data = folder / "records.csv"
    np.savetxt(data, np.linspace(0.1, 0.9, 9), header="f0", comments="", encoding="utf-8")
    home = make_owner_home(folder / "home", study.world)
    (home / "policy.toml").write_text("[study]\nmin_owners = 1\n")
    desk, address = desk_of(home), StudyAddress(study.world.url, study.study)
    prepared = actions.prepare_join(desk, address, DataLocation(str(data)))
    actions.join(desk, address, prepared, Watcher())
    study.close()
    study.wait_state("released")
    return list(prepared.contribution.sums.stream())


def attack(study: OpenStudy, known: Sequence[mpz]) -> list[int] | None:
    """The first owner's exact integers, out of what the data user and the other owners have; or None."""
    world, figures = study.world, study.manifest.figures
    public, victim = world.secret.public, share_of(study)
    (digest,) = victim.chunk_digests
    released = world.client(world.user).release_chunk(study.study, 0, figures.share_bytes)
    n, square = public.modulus, public.ciphertext_modulus
    (rest,) = decode_chunk(released, public)
    for ciphertext in known:
        rest = rest * gmpy2.invert(ciphertext, square) % square
    tried = 0
    for noise in guesses(study):
        candidate = rest * (1 - pack(noise, figures.slot_bits) * n) % square
        encoded, tried = encode_chunk([candidate], public), tried + 1
        if digest in (Digest.of(encoded), Digest.of(ZEROS + encoded)):
            layout = FlatLayout(figures.value_count, figures.slot_bits, figures.slots)
            return layout.unpack_all([world.secret.decrypt(candidate)])
    assert tried > 20, "there was nothing to guess"
    return None


def guesses(study: OpenStudy) -> Iterator[tuple[int, ...]]:
    """All noise out to about eight deviations of each value; the law is public."""
    draw = study.manifest.figures.mechanism.draw
    widths = np.abs(np.array([draw(1) for _ in range(500)])).max(axis=0) * 5 // 2
    return itertools.product(*(range(-int(width), int(width) + 1) for width in widths))
