"""Homes of parties whose keys a test has made already."""

from pathlib import Path

from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_runtime.files import write_private


def give_key(home: Path, key: IdentityKey) -> None:
    """Let `key` be the one of this home, as in one from before homes remembered their keys."""
    (home / "known-key.json").unlink(missing_ok=True)
    write_private(home / "identity.pem", key.to_pem())
