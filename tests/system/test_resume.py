"""An owner that is killed in the middle of its upload goes on where it was, with the same ciphertexts."""

import csv
import os
import random
import signal
from pathlib import Path

from federation.bare_user import BareUser
from federation.relay import relaying
from federation.world import Federation
from promises import Promise

from dpdpca_owner.study_folder import StudyFolder
from dpdpca_protocol.layout.packing import unpack
from dpdpca_protocol.messages.share import ShareStatement
from dpdpca_protocol.wire.identifiers import Digest, StudyId
from dpdpca_protocol.wire.signing import verify_statement

COLUMNS = 500
"""Wide enough for a share of three chunks."""

RECORDS = 60


def _write_wide(path: Path) -> Path:
    source = random.Random(0)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(f"c{index}" for index in range(COLUMNS))
        writer.writerows([round(source.random(), 3) for _ in range(COLUMNS)] for _ in range(RECORDS))
    return path


def test_killed_owner_sends_only_what_is_missing(
    federation: Federation, tmp_path: Path, promise: Promise
) -> None:
    user = BareUser(federation, "Wide Institute")
    data = _write_wide(tmp_path / "wide.csv")
    with relaying(federation.relay_port, federation.port) as relay:
        owner = federation.new_owner("Hospital on a bad line", federation.relay_url)
        study = user.open_study(
            [owner],
            features=[{"name": f"c{index}", "lower": 0, "upper": 1} for index in range(COLUMNS)],
            clip_norm=5,
            min_owners=1,
            closing="when-complete",
        )
        assert study.manifest.figures.chunk_count == 3
        address = f"{federation.relay_url}/{study.id.hex()}"
        chunks = f"{study.path}/share/chunks/"
        relay.cut = lambda method, path: method == "PUT" and path.startswith((f"{chunks}1?", f"{chunks}2?"))

        process = owner.start("owner", "join", address, "--data", data, "--yes")
        assert relay.fell_silent.wait(60), "the second chunk never came"
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        process.communicate()

        before = federation.client(owner.key()).share(study.id)
        assert (before.state, before.version, before.chunks) == ("partial", 1, frozenset({0}))
        kept = _kept_digests(owner.home / "studies" / study.id.hex())
        assert len(kept) >= 2, "the chunk under way was on the disk before it was sent"
        sent_before = relay.count("PUT", chunks)

        relay.cut = lambda method, path: False
        joined = owner.join(address, data)

        assert (joined["version"], joined["sent_chunks"], joined["already"]) == (1, 2, False)
        resent = [path for method, path in relay.seen[:] if method == "PUT"][sent_before:]
        assert sorted(resent) == [f"{chunks}1?version=1", f"{chunks}2?version=1"]

    claim = ShareStatement.parse(
        verify_statement("share", (owner.home / "studies" / study.id.hex() / "share-1.json").read_bytes())
    )
    assert list(claim.chunk_digests[: len(kept)]) == kept
    assert not (owner.home / "studies" / study.id.hex() / "chunks").exists()

    study.wait_state("released")
    first = study.released_ciphertexts(most_chunks=1)[0]
    figures = study.manifest.figures
    count, *_ = unpack(int(study.secret.decrypt(first)), figures.slot_bits, figures.slots)
    assert count == RECORDS
    promise(
        "P7",
        counted="an owner killed in the second of three chunks",
        result="2 chunks sent again, the first not",
    )


def _kept_digests(folder: Path) -> list[Digest]:
    """Digests of the ciphertexts that the killed owner left on its disk, in order."""
    files = sorted((folder / "chunks").glob("*.bin"), key=lambda path: int(path.stem))
    study = StudyFolder(folder, StudyId.parse(folder.name))
    return [Digest.of(chunk) for path in files if (chunk := study.chunk(int(path.stem)))]
