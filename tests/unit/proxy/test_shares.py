"""Chunks, statements, withdrawals: every refusal has its type and changes nothing."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from proxy_world import OpenStudy, ProxyWorld, dump, refused, slug, values_of, wait_for

from dpdpca_protocol.errors import UnavailableError
from dpdpca_protocol.messages.share import ShareStatement
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_protocol.wire.salts import SALT_BYTES, salted_chunk, unsalted
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_proxy import shares
from dpdpca_proxy.audit import HOLDS, audit_study
from dpdpca_proxy.store.files import FolderStore, share_folder


@pytest.fixture
def study(world: ProxyWorld) -> OpenStudy:
    return world.open_study(3)


def test_the_same_chunk_twice_is_fine_and_another_is_a_conflict(study: OpenStudy) -> None:
    world, owner = study.world, study.world.owners[0]
    client = world.client(owner)
    chunks = study.plain_chunks(values_of(3, 0))
    others = study.plain_chunks(values_of(3, 0))
    study.upload(owner, chunks)
    before = dump(world.proxy)
    study.upload(owner, chunks)
    assert refused(lambda: study.upload(owner, others)).slug == "chunk-differs"
    assert dump(world.proxy) == before
    status = client.share(study.study)
    assert (status.state, status.version, status.chunks) == ("partial", 1, frozenset({0}))
    claim = study.claim(owner, chunks)
    receipt = client.complete_share(study.study, claim)
    study.upload(owner, chunks)
    again = client.complete_share(study.study, claim)
    assert again.encoded == receipt.encoded
    assert client.share(study.study).receipt == receipt.encoded


def test_a_chunk_opens_only_in_its_own_place(study: OpenStudy) -> None:
    world, owner = study.world, study.world.owners[0]
    (chunk,) = study.plain_chunks(values_of(3, 0))
    client = world.client(owner)
    before = dump(world.proxy)
    for sealed in (
        study.seal(owner, chunk, 2, 0),
        study.seal(owner, chunk, 1, 1),
        study.seal(world.owners[1], chunk, 1, 0),
        chunk,
        b"",
        study.seal(owner, chunk, 1, 0)[:-1],
        study.seal(owner, chunk, 1, 0) + b"\0",
    ):
        error = refused(partial(client.put_chunk, study.study, 1, 0, sealed))
        assert error.slug in ("sealed-body-does-not-open", "malformed", "bad-signature")
    assert dump(world.proxy) == before


@pytest.mark.parametrize(
    "bad", ["zero", "one", "modulus", "too large", "repeated", "short", "long", "without salt"]
)
def test_a_chunk_with_one_bad_ciphertext_is_refused_whole(study: OpenStudy, bad: str) -> None:
    world, owner = study.world, study.world.owners[0]
    (chunk,) = study.plain_chunks(values_of(3, 0))
    public = world.secret.public
    width = public.ciphertext_bytes
    salt, first, rest = chunk[:32], chunk[32 : 32 + width], chunk[32 + width :]
    changed = {
        "zero": salt + bytes(width) + rest,
        "one": salt + (1).to_bytes(width, "big") + rest,
        "modulus": salt + int(public.modulus).to_bytes(width, "big") + rest,
        "too large": salt + int(public.ciphertext_modulus).to_bytes(width, "big") + rest,
        "repeated": salt + (rest[:width] + rest if rest else first + first),
        "short": chunk[:-width],
        "long": chunk + first,
        "without salt": first + rest,
    }[bad]
    before = dump(world.proxy)
    sealed = study.seal(owner, changed, 1, 0)
    error = refused(lambda: world.client(owner).put_chunk(study.study, 1, 0, sealed))
    assert error.slug in (
        "ciphertext-out-of-range",
        "ciphertext-not-a-unit",
        "ciphertext-repeated",
        "malformed",
    )
    assert dump(world.proxy) == before
    assert not list((world.home / "studies").rglob("0-*"))


@pytest.mark.parametrize("version", [None, "0", "-1", "01", "1e3", "x", "99999999999"])
def test_a_chunk_needs_a_version(study: OpenStudy, version: str | None) -> None:
    owner = study.world.owners[0]
    path = f"{study.path}/share/chunks/0" + (f"?version={version}" if version else "")
    response = study.world.request(owner, "PUT", path, b"x", "application/octet-stream")
    assert (response.status_code, slug(response)) == (400, "malformed")


def test_an_owner_that_is_not_named_is_refused(study: OpenStudy) -> None:
    world = study.world
    stranger = IdentityKey.generate()
    world.enrol(stranger, "owner", "Stranger")
    assert refused(lambda: study.deliver(stranger, values_of(3, 0))).slug == "not-a-participant"


def test_an_open_study_takes_anyone_up_to_its_size(world: ProxyWorld) -> None:
    study = world.open_study(3, named=False, min_owners=1, max_owners=2)
    study.deliver(world.owners[0], values_of(3, 0))
    study.deliver(world.owners[1], values_of(3, 1))
    assert refused(lambda: study.deliver(world.owners[2], values_of(3, 2))).slug == "cohort-full"
    study.deliver(world.owners[1], values_of(3, 4), version=2)


def test_a_share_is_complete_only_when_whole_and_as_claimed(study: OpenStudy) -> None:
    world, owner = study.world, study.world.owners[0]
    client = world.client(owner)
    chunks = study.plain_chunks(values_of(3, 0))
    others = study.plain_chunks(values_of(3, 0))

    def complete(claimed: list[bytes], version: int = 1) -> str:
        return refused(lambda: client.complete_share(study.study, study.claim(owner, claimed, version))).slug

    before = dump(world.proxy)
    assert complete(chunks) == "share-incomplete"
    assert dump(world.proxy) == before
    study.upload(owner, chunks)
    before = dump(world.proxy)
    assert complete(others) == "chunk-differs"
    assert complete(chunks * 2) == "malformed"
    assert complete(chunks, 2) == "share-incomplete"
    forged = study.claim(world.owners[1], chunks)
    assert refused(lambda: client.complete_share(study.study, forged)).slug == "bad-signature"
    assert dump(world.proxy) == before


def test_a_ciphertext_that_stands_in_two_chunks_is_refused(world: ProxyWorld) -> None:
    study = world.open_study(d=180)
    owner = world.owners[0]
    chunks = study.plain_chunks(values_of(180, 0))
    assert len(chunks) == 2
    begin, end = SALT_BYTES, SALT_BYTES + world.secret.public.ciphertext_bytes
    again = [chunks[0], chunks[1][:begin] + chunks[0][begin:end] + chunks[1][end:]]
    study.upload(owner, again)
    before = dump(world.proxy)
    client = world.client(owner)
    error = refused(lambda: client.complete_share(study.study, study.claim(owner, again)))
    assert (error.slug, error.status) == ("ciphertext-repeated", 422)
    assert dump(world.proxy) == before
    study.upload(owner, chunks, version=2)
    client.complete_share(study.study, study.claim(owner, chunks, version=2))


def test_a_statement_about_another_study_is_refused(study: OpenStudy) -> None:
    world, owner = study.world, study.world.owners[0]
    chunks = study.plain_chunks(values_of(3, 0))
    study.upload(owner, chunks)
    claim = ShareStatement.parse(study.claim(owner, chunks))
    statement = replace(claim, study=StudyId(bytes(32))).sign(owner)
    assert refused(lambda: world.client(owner).complete_share(study.study, statement)).slug == "malformed"


def test_versions_only_rise(study: OpenStudy) -> None:
    world, owner = study.world, study.world.owners[0]
    client = world.client(owner)
    first = study.plain_chunks(values_of(3, 0))
    second = study.plain_chunks(values_of(3, 1))
    study.upload(owner, first)
    old = study.claim(owner, first)
    receipt = client.complete_share(study.study, old)
    study.upload(owner, second, version=2)
    client.complete_share(study.study, study.claim(owner, second, 2))
    # The first statement again only repeats its receipt: version 2 stays what counts.
    assert client.complete_share(study.study, old).encoded == receipt.encoded
    assert client.share(study.study).version == 2
    other = study.claim(owner, second, 1)
    assert refused(lambda: client.complete_share(study.study, other)).slug == "statement-differs"
    assert refused(lambda: study.upload(owner, second, version=1)).slug in (
        "share-version-not-newer",
        "chunk-differs",
    )
    study.withdraw(owner, 3)
    assert client.share(study.study).state == "withdrawn"
    assert refused(lambda: study.withdraw(owner, 4)).slug == "wrong-state"
    assert client.complete_share(study.study, old).encoded == receipt.encoded
    assert client.share(study.study).state == "withdrawn"


def test_a_newer_upload_takes_the_place_of_an_unfinished_one(study: OpenStudy) -> None:
    world, owner = study.world, study.world.owners[0]
    chunks = study.plain_chunks(values_of(3, 0))
    study.upload(owner, chunks, version=3)
    study.upload(owner, chunks, version=5)
    assert refused(lambda: study.upload(owner, chunks, version=4)).slug == "share-version-not-newer"
    folders = {path.name for path in (world.home / "studies").rglob("shares/*/*")}
    assert folders == {"5"}


def test_a_withdrawal_is_above_what_is_being_uploaded(study: OpenStudy) -> None:
    owner = study.world.owners[0]
    study.deliver(owner, values_of(3, 0))
    study.upload(owner, study.plain_chunks(values_of(3, 1)), version=7)
    before = dump(study.world.proxy)
    assert refused(lambda: study.withdraw(owner, 2)).slug == "share-version-not-newer"
    assert dump(study.world.proxy) == before
    study.withdraw(owner, 8)


def test_files_of_withdrawn_and_replaced_shares_that_a_crash_left_go_with_the_next_start(
    study: OpenStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, (first, second, third) = study.world, study.world.owners
    study.deliver(third, values_of(3, 2))
    with monkeypatch.context() as patch:
        patch.setattr(FolderStore, "remove", lambda self, name: None)  # where a process had died
        study.deliver(first, values_of(3, 0))
        study.withdraw(first, 2)
        study.deliver(second, values_of(3, 1))
        study.deliver(second, values_of(3, 3), version=2)
        assert len(shares.replaced_folders(world.proxy, study.study)) == 2
        stray = world.home / "studies" / share_folder(study.study, first.public.party_id, 1)
        stray.with_name("1.orig").mkdir()
        assert {check.outcome for check in audit_study(world.proxy, study.study)} != {HOLDS}
    world.restart()
    wait_for(lambda: {check.outcome for check in audit_study(world.proxy, study.study)} == {HOLDS})
    folders = {path.name for path in (world.home / "studies").rglob("shares/*/*")}
    assert folders == {"1", "2", "1.orig"}
    assert len(shares.replaced_folders(world.proxy, study.study)) == 0


def test_a_share_that_holds_another_owners_chunk_is_refused(world: ProxyWorld) -> None:
    """Sealed anew, as whoever sees the unsealed bytes could, with the same salt or with another one."""
    study = world.open_study(d=180)
    first, second, third = world.owners
    theirs, mine = study.plain_chunks(values_of(180, 0)), study.plain_chunks(values_of(180, 1))
    assert len(theirs) == 2
    study.upload(first, theirs)
    world.client(first).complete_share(study.study, study.claim(first, theirs))
    disguised = salted_chunk(unsalted(theirs[1]), OS_RANDOMNESS)
    assert disguised != theirs[1]
    for thief, stolen in ((second, theirs), (third, [mine[0], disguised])):
        study.upload(thief, stolen)
        before = dump(world.proxy)
        client = world.client(thief)
        error = refused(lambda: client.complete_share(study.study, study.claim(thief, stolen)))  # noqa: B023 # called here
        assert (error.slug, error.status) == ("chunk-of-another-owner", 422)
        assert dump(world.proxy) == before
    study.upload(second, mine, version=2)
    world.client(second).complete_share(study.study, study.claim(second, mine, version=2))
    # An owner's own chunk under its next version is no copy of anybody's.
    study.upload(second, mine, version=3)
    world.client(second).complete_share(study.study, study.claim(second, mine, version=3))


def test_nobody_is_told_of_a_copy_once_the_study_is_closed(world: ProxyWorld) -> None:
    """With the release at hand, the answer would tell a right guess of another share from a wrong one."""
    study = world.open_study(3)
    first, second, third = world.owners
    theirs, mine = study.plain_chunks(values_of(3, 0)), study.plain_chunks(values_of(3, 1))
    study.upload(first, theirs)
    world.client(first).complete_share(study.study, study.claim(first, theirs))
    study.deliver(second, values_of(3, 2))
    study.upload(third, theirs)
    study.close()
    study.wait_state("released")
    right, wrong = (
        refused(partial(world.client(third).complete_share, study.study, study.claim(third, chunks)))
        for chunks in (theirs, mine)
    )
    assert (right.slug, right.problem) == (wrong.slug, wrong.problem)
    assert right.slug == "study-closed"


def test_the_mark_of_a_chunk_depends_on_the_ciphertexts_and_on_the_studys_key() -> None:
    key, other = OS_RANDOMNESS.bytes(32), OS_RANDOMNESS.bytes(32)
    one, again = (salted_chunk(b"ciphertexts", OS_RANDOMNESS) for _ in range(2))
    assert one != again
    assert shares.copy_mark(one, key) == shares.copy_mark(again, key)
    assert shares.copy_mark(one, key) != shares.copy_mark(one, other)
    assert shares.copy_mark(one, key) != shares.copy_mark(salted_chunk(b"others", OS_RANDOMNESS), key)


def test_an_owner_cannot_make_the_transcript_long(study: OpenStudy, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shares.MOST_VERSIONS == 64
    monkeypatch.setattr(shares, "MOST_VERSIONS", 3)
    world, owner = study.world, study.world.owners[0]
    study.deliver(owner, values_of(3, 0), version=1)
    study.withdraw(owner, 2)
    study.deliver(owner, values_of(3, 1), version=3)
    study.deliver(owner, values_of(3, 2), version=9)
    chunks = study.plain_chunks(values_of(3, 3))
    before = dump(world.proxy)
    assert refused(lambda: study.upload(owner, chunks, version=10)).slug == "too-many-versions"
    claim = study.claim(owner, chunks, 10)
    assert refused(lambda: world.client(owner).complete_share(study.study, claim)).slug == "too-many-versions"
    assert dump(world.proxy) == before
    study.deliver(world.owners[1], values_of(3, 1))
    study.withdraw(owner, 10)
    assert refused(lambda: study.upload(owner, chunks, version=11)).slug == "too-many-versions"


def test_a_chunk_that_is_refused_takes_no_file_from_the_same_chunk_that_is_not(
    study: OpenStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sent twice at once, and the database has no time for one of the two while the other waits."""
    world, owner = study.world, study.world.owners[0]
    chunks = study.plain_chunks(values_of(3, 0))
    record, requests = shares._record_chunk, 0

    def interleaved(*given: Any) -> Any:
        nonlocal requests
        requests += 1
        if requests == 2:
            raise UnavailableError("busy", "the database is busy", retry_after_seconds=1)
        if requests == 1:
            assert refused(lambda: study.upload(owner, chunks)).slug == "busy"
        return record(*given)

    monkeypatch.setattr(shares, "_record_chunk", interleaved)
    study.upload(owner, chunks)
    assert requests == 2
    assert len(list((world.home / "studies").rglob("0-*"))) == 1
    world.client(owner).complete_share(study.study, study.claim(owner, chunks))
