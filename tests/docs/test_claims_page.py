"""docs/claims.md names a test for every row and statement, and docs/trust.md says what the program prints."""

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dpdpca_cli.demo.drafts import drafts_of
from dpdpca_cli.demo.records import bundled_draft
from dpdpca_protocol.messages.schemas import BODIES
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.parties import Party, ProxyParty
from dpdpca_protocol.terms.statements import privacy_statements
from dpdpca_protocol.wire.kem import PREVIEW_KEM
from dpdpca_proxy.store.columns import DigestColumn
from dpdpca_proxy.store.tables import metadata
from dpdpca_user.planning.lint import TOML_MEDIA_TYPE, lint, parse_draft
from dpdpca_user.results.model import Model, assumptions, claim

ROOT = Path(__file__).resolve().parents[2]
TRUST = (ROOT / "docs" / "trust.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`(tests/[\w/]+\.py)`")
SECTIONS = dict(re.findall(r"^## (C\d+)\. [^\n]*\n(.*?)(?=^## )", PAGE, re.DOTALL | re.MULTILINE))


def test_every_row_of_the_claims_names_its_tests() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("|")]
    claims = rows[2 : next(i for i, row in enumerate(rows[2:], 2) if row.startswith("| quantity"))]
    assert len(claims) == 9
    for row in claims:
        assert NAMED.search(row.split("|")[-2]), row


@pytest.mark.parametrize("section", SECTIONS)
def test_every_statement_names_its_tests(section: str) -> None:
    assert NAMED.search(SECTIONS[section])


def test_statements_stand_in_the_order_of_their_numbers() -> None:
    numbers = [int(section[1:]) for section in SECTIONS]
    assert numbers == sorted(set(numbers))


def test_every_named_test_exists() -> None:
    assert all((ROOT / name).is_file() for name in NAMED.findall(PAGE))


def demo_study(release: str) -> Manifest:
    drafts = drafts_of(parse_draft(bundled_draft().encode(), TOML_MEDIA_TYPE), 3)
    draft = drafts.masked if release == "masked" else drafts.joint
    user, proxy = (
        Party("U", b"\x01" * 32),
        ProxyParty("P", "https://p", b"\x03" * 32, PREVIEW_KEM),
    )
    return lint(draft, user, proxy, datetime(2030, 1, 1, tzinfo=UTC), 3072)


def test_the_page_on_trust_has_the_statement_that_the_program_prints() -> None:
    """Of the demo's own draft, word by word, and nothing else as if it were printed."""
    quoted = {line[2:] for line in TRUST.splitlines() if line.startswith("> ")}
    joint, masked = (demo_study(release) for release in ("joint", "masked"))
    printed = set()
    for manifest in (joint, masked):
        model = Model(
            manifest.study_id,
            manifest,
            None,  # type: ignore[arg-type] # no statement needs components
            None,  # type: ignore[arg-type] # nor where they came from
        )
        printed |= {claim(model), *assumptions(model)}
    printed |= set(privacy_statements(joint.figures))
    assert quoted == printed


LEAVES = {
    "digest of a chunk of a share,": "share.chunk_digests chunks.digest",
    "digest of a chunk of a share under `pads`": "share.chunk_digests",
    "`pad`,": "share.pad",
    "digest of a share statement,": "receipt.statement release.owners release.cohort opened.cohort"
    " count-challenge.cohort statements.digest contradictions.digest cohort.statement_digest"
    " studies.cohort_digest",
    "digests of the product": "aggregate_chunks.digest",
    "mark by which": "chunks.copy_mark",
    "digests of the chunks of a release,": "release.chunk_digests release_chunks.digest opened.release",
    "digest of the count challenge,": "count-challenge.ciphertext count-answer.challenge"
    " count-answer.randomizer",
    "number of records and the proof": "count-answer.records release.records",
    "sealed chunks and sealed components,": "components.sealed components.body components.digest",
    "token of a draw of noise,": "log.subject",
    "head of the proxy's log and of the data user's log;": "mark.head mark.generation share.proxy_log"
    " components.log count-answer.log event.previous event.index log.previous log.digest",
    "entries of the proxy's log": "log.subject event.detail events.digest",
    "list of features,": "feature_lists.digest",
    "`opened` and its digest": "opened.cohort opened.release",
    "the proxy's `answer` to a carried request": "answer.content answer.nonce answer.time",
    "head of an owner's ledger,": "share.log withdrawal.log",
    "`decline`:": "decline.owner decline.time decline.why",
    "study id,": "studies.modulus_digest",
    "names, public keys,": "enrolment.ed25519 enrolment.kem enrolment.name enrolment.proxy enrolment.role"
    " enrolment.x25519 proxy.ed25519 proxy.kem proxy.name proxy.url receipt.owner release.release"
    " rotation.acceptance rotation.ed25519 rotation.kem rotation.previous rotation.role rotation.time"
    " rotation.version rotation.x25519 share.kem share.owner withdrawal.owner",
    "`software` in the proxy's card": "proxy.software release.software event.detail",
    "digest of an invitation,": "invitations.token_digest",
    "refusal of a release": "mark.state event.kind",
    "sizes of shares,": "share.chunk_count",
    "state of a study,": "mark.state mark.time event.kind event.time receipt.subject receipt.time"
    " receipt.version share.version withdrawal.version",
}
"""First words of a row, and what it covers: members of statements, and digests that the proxy keeps."""


def test_one_table_covers_every_member_of_a_statement_and_every_digest_that_the_proxy_keeps() -> None:
    section = PAGE.partition("## What leaves a role")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    for words in LEAVES:
        assert sum(row.startswith(f"| {words}") for row in rows) == 1, words
    for row in rows:
        assert len(row.split(" | ")) == 4, row
    stated = {
        f"{kind}.{member}"
        for kind, body in BODIES.items()
        for part in body.get("oneOf", [body])
        for member in part["properties"].keys() - {"format", "study"}
    }
    kept = {
        f"{table.name}.{column.name}"
        for table in metadata.tables.values()
        for column in table.columns
        if isinstance(column.type, DigestColumn)
    }
    assert set(" ".join(LEAVES.values()).split()) == stated | kept
