"""A proxy's home of an earlier version: it opens, and its studies go on to the same numbers."""

import base64
import io
import json
import sqlite3
import tarfile
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from archives import extract
from promises import Promise
from proxy_world import OpenStudy, ProxyWorld, refused, values_of, wait_for

from dpdpca_protocol.errors import CryptographicError
from dpdpca_protocol.messages.study_messages import StudyAct
from dpdpca_protocol.paillier.keys import SecretKey
from dpdpca_protocol.paillier.proof import prove_key
from dpdpca_protocol.wire.identifiers import Digest, StudyId
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_proxy.audit import HOLDS, audit_study
from dpdpca_proxy.proxy import open_proxy
from dpdpca_proxy.rotation import rotate_proxy
from dpdpca_proxy.settings import load_settings
from dpdpca_proxy.store.database import DATABASE_FILE, ProxyDatabase

STORED = Path(__file__).parents[2] / "vectors" / "proxy_home_0001.json"


@pytest.fixture
def stored() -> dict[str, Any]:
    read = json.loads(STORED.read_text())
    assert isinstance(read, dict)
    return read


def unpacked(stored: dict[str, Any], to: Path) -> Path:
    packed = base64.b64decode("".join(stored["home_tar_gz"]))
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
        extract(archive, to)
    home = to / "proxy"
    for path in (home, *home.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return home


def test_a_home_of_the_first_version_goes_on(
    stored: dict[str, Any], tmp_path: Path, promise: Promise
) -> None:
    """Its studies are of message format 1: one is finished and served, the other can only be cancelled."""
    home = unpacked(stored, tmp_path)
    with sqlite3.connect(home / DATABASE_FILE) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [("0001",)]
    user = IdentityKey.from_pem(stored["user_pem"].encode())
    secret = SecretKey.from_bytes(bytes.fromhex(stored["secrets"][1]))
    owners = [IdentityKey.generate() for _ in range(2)]
    world = ProxyWorld(home, user, owners, secret, prove_key(secret, user.public.ed25519))
    with pytest.raises(CryptographicError, match="dpdpca proxy rotate") as caught:
        open_proxy(load_settings(home))
    assert caught.value.slug == "unfit-sealing-key"
    rotate_proxy(home, datetime.now(UTC))
    world.start()
    try:
        client = world.client(user)
        finished, waiting = StudyId.parse(stored["released"]), StudyId.parse(stored["waiting"])
        assert Digest.of(client.release(finished).release).hex() == stored["release_digest"]
        assert len(client.transcript(finished)) == stored["transcript_events"]
        # The user is enrolled by a statement of format 1. Its next study goes from beginning to end.
        for letter, owner in zip("AB", owners, strict=True):
            world.enrol(owner, "owner", f"Hospital {letter} of today")
        refusal = refused(partial(world.client(owners[0]).put_chunk, waiting, 1, 0, b"chunk"))
        assert refusal.slug == "state-corrupt"
        assert "this version refuses the terms of a stored study" in refusal.problem
        client.cancel_study(waiting, StudyAct("cancel", waiting).sign(user))
        assert client.study(waiting).state == "cancelled"

        world.with_new_key()
        study = world.open_study(named=False)
        for seed, owner in enumerate(owners):
            study.deliver(owner, values_of(study.d, seed))
        study.close()
        study.wait_state("released")
        wait_for(partial(holds, study))
        with world.proxy.database.reading("version") as looking:
            version = looking.exec_driver_sql("SELECT version_num FROM alembic_version").scalar_one()
            features = looking.exec_driver_sql("SELECT count(*) FROM study_features").scalar_one()
        assert (version, features) == (max(_versions()), 9)
    finally:
        world.stop()
    promise(
        "P34",
        counted=f"a proxy's home of schema 0001 opened by {version}: a release, and then a new study",
        result="same release bytes, the new study released, its audit holds",
    )


def holds(study: OpenStudy) -> bool:
    """What is stored of it is in order; the last files are removed just after the release."""
    return {check.outcome for check in audit_study(study.world.proxy, study.study)} == {HOLDS}


def _versions() -> list[str]:
    import dpdpca_proxy.store.migrations.versions as versions

    return [path.name[:4] for path in Path(versions.__path__[0]).glob("0*.py")]


def test_a_home_of_a_later_version_is_refused_and_left_alone(
    stored: dict[str, Any], tmp_path: Path, promise: Promise
) -> None:
    home = unpacked(stored, tmp_path)
    with sqlite3.connect(home / DATABASE_FILE) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    before = (home / DATABASE_FILE).read_bytes()
    error = refused(ProxyDatabase(home / DATABASE_FILE).upgrade)
    assert error.slug == "newer-store"
    assert "later version" in error.problem
    with sqlite3.connect(home / DATABASE_FILE) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [("9999",)]
        assert not connection.execute("SELECT name FROM sqlite_master WHERE name = 'log'").fetchall()
    assert len((home / DATABASE_FILE).read_bytes()) == len(before)
    promise("P34", counted="a proxy's home of schema 9999", result="refused by its own message, unchanged")
