"""What must be true of a proxy's store at any moment, and what is in a release but for its noise."""

import sqlite3
from collections.abc import Iterable, Sequence

from proxy_process import released_noise
from proxy_world import PATIENCE_SECONDS, OpenStudy, ProxyWorld, Values, wait_for

from dpdpca_protocol.layout.packing import BlockLayout, symmetric_rows
from dpdpca_protocol.messages.share import Receipt
from dpdpca_protocol.messages.study_messages import ReleaseStatement
from dpdpca_protocol.paillier.chunks import decode_chunk
from dpdpca_protocol.release.release import open_masked_release, triangle_index
from dpdpca_protocol.release.vectors import PaillierVectors
from dpdpca_protocol.study import RELEASED_STATES, ReleaseKind, ShareState, StudyState
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_protocol.wire.signing import IdentityKey, Statement, verify_statement
from dpdpca_proxy.audit import HOLDS, audit_study
from dpdpca_proxy.store.files import chunk_name
from dpdpca_proxy.store.releases import find_data_key, find_draw
from dpdpca_proxy.store.shares import chunk_digests, find_share, find_signed
from dpdpca_proxy.store.studies import StudyRow, frozen_cohort, load_study

_CLOSED = frozenset({StudyState.CLOSED, StudyState.COUNTED}) | RELEASED_STATES
_ENDED = frozenset({StudyState.CANCELLED, StudyState.FAILED})


def row_of(study: OpenStudy) -> StudyRow:
    """The study as it stands on the disk; asks nobody."""
    with study.world.proxy.database.reading("test: look") as connection:
        return load_study(connection, study.study)


def wait_on_disk(study: OpenStudy, *states: str, seconds: float = PATIENCE_SECONDS) -> None:
    wait_for(lambda: row_of(study).state in states, seconds)


def check_store(study: OpenStudy, owners: Iterable[IdentityKey], receipts: Iterable[Statement]) -> None:
    """As `check_rows`, and the proxy that runs there has a whole paper trail and no file too many."""
    check_rows(study, owners, receipts)
    # Sealed files without a key are removed by the tidying that follows a start.
    wait_for(lambda: {check.outcome for check in audit_study(study.world.proxy, study.study)} == {HOLDS})


def check_rows(study: OpenStudy, owners: Iterable[IdentityKey], receipts: Iterable[Statement]) -> None:
    """In a store that nobody changes: rows and files agree, and every receipt that anybody holds is known."""
    world = study.world
    _check_database(world)
    with world.proxy.database.reading("test: check") as connection:
        row = load_study(connection, study.study)
        sealed = find_data_key(connection, study.study)
        draw = find_draw(connection, study.study)
        members = frozen_cohort(connection, study.study)
        for receipt in receipts:
            said = Receipt.parse(receipt)
            kept = find_signed(connection, study.study, said.owner, said.version)
            assert kept is not None, "a receipt was lost"
            assert kept.receipt == receipt.encoded, "another receipt was given for one version"
        for owner in owners:
            share = find_share(connection, study.study, owner.public.party_id)
            signed = find_signed(connection, study.study, share.owner, share.signed_version)
            assert (signed is None) == (share.signed_version == 0)
            if signed is not None and share.state is not ShareState.PARTIAL:
                kinds = {ShareState.COMPLETE: "share", ShareState.WITHDRAWN: "withdrawal"}
                assert signed.subject == kinds[share.state]
            if row.state in _CLOSED:
                assert (share.owner in {member.owner for member in members}) == (
                    signed is not None and signed.subject == "share" and share.state is ShareState.COMPLETE
                )
            if sealed is None:
                continue
            for version in {share.signed_version, share.upload_version or 0}:
                there = chunk_digests(connection, study.study, share.owner, version)
                for position, digest in there.items():
                    name = chunk_name(study.study, share.owner, version, position, digest)
                    content = world.proxy.files.read_sealed(name, world.proxy.data_key(study.study))
                    assert Digest.of(content) == digest
    is_over = row.state in RELEASED_STATES | _ENDED
    if row.state not in _ENDED:  # these are reached before closing and after
        assert (row.cohort_digest is not None) == (row.state in _CLOSED)
    assert (draw is not None) == (row.noise_drawn_at is not None and not is_over)
    assert (sealed is None) == is_over


_DAMAGED_TABLES = "SELECT relname FROM pg_class, verify_heapam(oid) WHERE relkind = 'r' AND relnamespace = \
'public'::regnamespace"
_CHECK_INDICES = "SELECT bt_index_check(oid, true) FROM pg_class WHERE relkind = 'i' AND relnamespace = \
'public'::regnamespace"


def _check_database(world: ProxyWorld) -> None:
    engine = world.proxy.database._engine
    if engine.dialect.name == "postgresql":
        with engine.begin() as connection:
            connection.exec_driver_sql("CREATE EXTENSION IF NOT EXISTS amcheck")
            assert connection.exec_driver_sql(_DAMAGED_TABLES).all() == []
            connection.exec_driver_sql(_CHECK_INDICES)  # raises what it finds
        return
    database = sqlite3.connect(f"file:{world.home / 'proxy.sqlite3'}?mode=ro", uri=True, timeout=120)
    try:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert database.execute("PRAGMA foreign_key_check").fetchall() == []
    finally:
        database.close()


def the_noise(study: OpenStudy) -> list[int]:
    """The one noise that ever went into making the release of this study."""
    drawn = released_noise(study.world.home, study.study.hex())
    assert len(drawn) == 1, f"{len(drawn)} draws went into releases of one study"
    return next(iter(drawn.values()))


def _release_chunks(study: OpenStudy) -> int:
    world = study.world
    bundle = world.client(world.user).release(study.study)
    return len(
        ReleaseStatement.parse(verify_statement("release", bundle.release, world.proxy_key)).chunk_digests
    )


def check_sum(study: OpenStudy, values: Sequence[Values], drawn: Sequence[int] | None = None) -> None:
    """The release, its noise taken out, is the exact sum of these values.

    Args:
        study: released.
        values: one for each owner of the cohort.
        drawn: the noise that is in it; by default what its process noted.
    """
    world, most = study.world, study.manifest.figures.share_bytes * 2
    client = world.client(world.user)
    chunks = [client.release_chunk(study.study, k, most) for k in range(_release_chunks(study))]
    check_opened(study, chunks, values, the_noise(study) if drawn is None else drawn)


def check_opened(
    study: OpenStudy, chunks: Iterable[bytes], values: Sequence[Values], noise: Sequence[int]
) -> None:
    """The same of the chunks of a release and the noise in it."""
    total = Values(
        sum(value.count for value in values),
        [sum(column) for column in zip(*(value.sums for value in values), strict=True)],
        [sum(column) for column in zip(*(value.upper for value in values), strict=True)],
    )
    world, figures, public = study.world, study.manifest.figures, study.world.secret.public
    ciphertexts = [ciphertext for chunk in chunks for ciphertext in decode_chunk(chunk, public)]
    if study.manifest.release == ReleaseKind.JOINT:
        vectors = PaillierVectors(public, figures.slot_bits)
        opened = vectors.decrypt_vector(world.secret, ciphertexts, len(total.flat))
        assert [x - g for x, g in zip(opened, noise, strict=True)] == total.flat
        return
    d = study.d
    layout = BlockLayout(d, figures.slot_bits, figures.slots)
    opened_scatter = open_masked_release(world.secret, layout, ciphertexts, total.count).scaled_scatter
    exact = symmetric_rows(d, total.upper)
    for i in range(d):
        for j in range(d):
            h = noise[triangle_index(d, min(i, j), max(i, j))]
            assert opened_scatter[i][j] - h == total.count * exact[i][j] - total.sums[i] * total.sums[j]
