"""The files that an owner keeps for one study: manifest, plan of the share, receipts and, for a while,
chunks.

Paillier encryption is randomised, so an interrupted share can only be resumed with the same ciphertexts. The
ciphertexts stay here, unsealed, until the proxy's receipt is verified. Only the data user's key can decrypt
the ciphertexts, and the owner's machine does not have this key. Under pads the secrets of the share stay here
instead, because the same chunks can be made from them again.
"""

import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpdpca_owner.records.source import AS_IT_STANDS, LATER_READING_MEMBERS, READING_MEMBERS, Reading
from dpdpca_protocol.errors import ConflictError, IntegrityError, MessageError, PolicyError
from dpdpca_protocol.messages.share import Receipt
from dpdpca_protocol.release.suite import BegunShare
from dpdpca_protocol.wire.canonical import canonical_json, parse_canonical
from dpdpca_protocol.wire.fields import malformed, read_time
from dpdpca_protocol.wire.identifiers import Digest, PartyId, StudyId
from dpdpca_protocol.wire.signing import Statement, hex_bytes, verify_statement
from dpdpca_runtime.files import private_dir, read_private, remove_private, write_private
from dpdpca_runtime.locks import locked
from dpdpca_runtime.own_files import load, own_file, save

_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class Plan:
    """The share that is being sent or was sent last.

    Attributes:
        proxy: the address of the proxy.
        version: the version of the share.
        moments: digest of the exact integers in the share; the same data gives the same digest.
        modulus: digest of the study's key, of either suite.
    """

    proxy: str
    version: int
    moments: Digest
    modulus: Digest


@dataclass(frozen=True, slots=True)
class KeptSecrets:
    """The secrets of one share version, and the one list of values that they may hide.

    Two lists under one key would show their exact difference to the proxy.

    Attributes:
        version: the version of the share.
        values: digest of the values, noise included.
        begun: the secrets, and the member of the statement that belongs to them.
    """

    version: int
    values: Digest
    begun: BegunShare


@dataclass(frozen=True, slots=True)
class Declined:
    """A person's decision that this owner does not take part in a study.

    Attributes:
        time: RFC 3339 UTC, by this machine's clock.
        why: what the data user is told, or None.
        is_told: whether the proxy has accepted it for the data user.
    """

    time: str
    why: str | None = None
    is_told: bool = False


class StudyFolder:
    """The files of one study. The methods take no lock themselves: hold `locked` while a share changes."""

    def __init__(self, path: Path, study: StudyId) -> None:
        self.path = path
        self.study = study

    def locked(self) -> AbstractContextManager[None]:
        """A lock, so that only one command at a time changes the study's share.

        Raises:
            ConflictError: another command holds the lock.
        """
        busy = ConflictError(
            "busy",
            "another command of this owner is working on this study",
            "wait until the other command has ended",
        )
        return locked(private_dir(self.path) / "lock", patience_seconds=0, busy=busy)

    # Manifest and plan

    def manifest(self) -> bytes | None:
        """The signed manifest with which this owner joined, or None. The stored manifest must be checked like
        any other."""
        path = self.path / "manifest.json"
        if not path.exists():
            return None
        with own_file(path):
            return verify_statement("manifest", read_private(path)).encoded

    def save_manifest(self, statement: Statement) -> None:
        private_dir(self.path)
        write_private(self.path / "manifest.json", statement.encoded)

    def owner_key(self) -> bytes | None:
        """The raw Ed25519 key with which this owner joined, or None."""
        path = self.path / "owner.json"
        if not path.exists():
            return None
        body = load(path, "ed25519")
        with own_file(path):
            return hex_bytes(body["ed25519"], 32, "ed25519")

    def save_owner_key(self, ed25519: bytes) -> None:
        save(self.path / "owner.json", {"ed25519": ed25519.hex()})

    def reading(self) -> Reading:
        """How the owner's data was read when it joined; nothing is said before the first join."""
        path = self.path / "reading.json"
        if not path.exists():
            return AS_IT_STANDS
        body = load(path, *READING_MEMBERS, optional=LATER_READING_MEMBERS)
        with own_file(path):
            return Reading.parse(body)

    def save_reading(self, reading: Reading) -> None:
        save(self.path / "reading.json", reading.to_body())

    def declined(self) -> Declined | None:
        """The decision to decline the study; None if there is none, or if a person joined the study later."""
        path = self._declined_path
        if not path.exists():
            return None
        body = load(path, "told", "time", "why")
        with own_file(path):
            read_time(body["time"], "time")
            if not isinstance(body["why"], str | None) or type(body["told"]) is not bool:
                malformed("why and told", "a text, and true or false")
        return Declined(body["time"], body["why"], body["told"])

    def save_declined(self, declined: Declined) -> None:
        save(self._declined_path, {"told": declined.is_told, "time": declined.time, "why": declined.why})

    def drop_declined(self) -> None:
        """Take the decision back: a person joins the study after all."""
        if self._declined_path.exists():
            remove_private(self._declined_path)

    def check_not_declined(self) -> None:
        """Raises PolicyError `study-declined`."""
        if (declined := self.declined()) is not None:
            raise PolicyError(
                "study-declined",
                f"you declined this study on {declined.time[:10]}, so no earlier approval joins it",
                "to take part after all, join it yourself: dpdpca owner join",
            )

    def owners(self) -> frozenset[PartyId]:
        """The owner that joined the study from this folder; empty before the first join. Raises like
        `owner_key`."""
        if (key := self.owner_key()) is not None:
            return frozenset({PartyId.of(key)})
        shares = map(read_private, self.path.glob("share-*.json"))  # an older version kept no key file
        return frozenset(PartyId.of(verify_statement("share", share).signer) for share in shares)

    @property
    def is_joined(self) -> bool:
        """Whether a share was planned, even if the file with the plan is damaged."""
        return self._plan_path.exists()

    def plan(self) -> Plan | None:
        return self.need_plan() if self.is_joined else None

    def need_plan(self) -> Plan:
        """The plan of a joined study. Raises IntegrityError if the file with the plan is damaged."""
        path = self._plan_path
        body = load(path, "modulus", "moments", "proxy", "version")
        with own_file(path):
            moments, modulus = Digest.parse(body["moments"]), Digest.parse(body["modulus"])
        if type(body["version"]) is not int or not isinstance(body["proxy"], str):
            raise IntegrityError(
                "state-corrupt",
                "a file of the study is damaged, or was not written by this program",
                "restore the file from a backup",
                place=str(path),
            )
        return Plan(body["proxy"], body["version"], moments, modulus)

    def modulus(self) -> Digest | None:
        plan = self.plan()
        return plan.modulus if plan else None

    def save_plan(self, plan: Plan) -> None:
        """Save which data is sent under which version. Ciphertexts of other data are deleted first."""
        before = self.plan()
        if before is None or before.moments != plan.moments:
            self.drop_chunks()
        save(
            self._plan_path,
            {
                "modulus": plan.modulus.hex(),
                "moments": plan.moments.hex(),
                "proxy": plan.proxy,
                "version": plan.version,
            },
        )

    # Ciphertexts

    def chunk(self, index: int) -> bytes | None:
        """The chunk that was kept, or None if there is none or its file has changed."""
        path = self._chunk_path(index)
        return _read_checked(path) if path.exists() else None

    def save_chunk(self, index: int, chunk: bytes) -> None:
        private_dir(self._chunks_path)
        _write_checked(self._chunk_path(index), chunk)

    # Secrets of a share whose chunks can be made again

    def secrets(self) -> KeptSecrets | None:
        """The secrets of the version that is being sent, or None. A damaged file counts as none."""
        path = self._secrets_path
        if not path.exists():
            return None
        try:
            body = load(path, "pad", "secrets", "values", "version")
            with own_file(path):
                begun = BegunShare(_bytes_of(body["secrets"]), _bytes_of(body["pad"]))
                return KeptSecrets(int(body["version"]), Digest.parse(body["values"]), begun)
        except IntegrityError:
            return None  # a new version draws new secrets

    def save_secrets(self, kept: KeptSecrets) -> None:
        """Keep the secrets of a version before its first chunk is made."""
        assert kept.begun.pad is not None
        save(
            self._secrets_path,
            {
                "pad": kept.begun.pad.hex(),
                "secrets": kept.begun.secrets.hex(),
                "values": kept.values.hex(),
                "version": kept.version,
            },
        )

    def drop_share(self) -> None:
        """Delete what is only needed until the share has arrived: chunks and secrets."""
        self.drop_chunks()
        if self._secrets_path.exists():
            remove_private(self._secrets_path)

    def drop_chunks(self) -> None:
        if self._chunks_path.exists():
            shutil.rmtree(self._chunks_path)

    # Encryptions of 0 made ahead

    def has_randomizers(self, index: int) -> bool:
        path = self._randomizers_path(index)
        return path.exists() and _read_checked(path) is not None

    def save_randomizers(self, index: int, encoded: bytes) -> None:
        """Keep encryptions of 0 for the ciphertexts of a chunk. Whoever reads these encryptions can decrypt
        the chunk."""
        private_dir(self._randomizers_path(index).parent)
        _write_checked(self._randomizers_path(index), encoded)

    def take_randomizers(self, index: int) -> bytes | None:
        """The encryptions of 0 for a chunk, once only: they are deleted from the disk before use."""
        path = self._randomizers_path(index)
        if not path.exists():
            return None
        encoded = _read_checked(path)
        remove_private(path)
        return encoded

    def _randomizers_path(self, index: int) -> Path:
        return self.path / "randomizers" / f"{index}.bin"

    # Statements and receipts

    def save_statement(self, version: int, statement: Statement) -> None:
        """Keep a statement of kind "share" or "withdrawal" before it is sent."""
        write_private(self.path / f"{statement.kind}-{version}.json", statement.encoded)

    def statement(self, kind: str, version: int) -> Statement | None:
        """The statement of this kind that was made under `version`, if there was one."""
        path = self.path / f"{kind}-{version}.json"
        if not path.exists():
            return None
        with own_file(path):
            return verify_statement(kind, read_private(path))

    def last_withdrawal(self) -> int:
        """The highest version under which a withdrawal was signed, whether it has arrived or not; 0 if none
        was."""
        return max(self._versions("withdrawal"), default=0)

    def save_receipt(self, receipt: Receipt, statement: Statement) -> None:
        write_private(self.path / f"receipt-{receipt.version}.json", statement.encoded)

    def last_receipt(self, proxy: bytes) -> Receipt | None:
        """The receipt of the highest version, its signature verified again."""
        path = self._last_receipt_path()
        if path is None:
            return None
        with own_file(path):
            return Receipt.parse(verify_statement("receipt", read_private(path), proxy))

    def last_receipt_statement(self) -> bytes | None:
        """The same receipt as signed bytes, not verified: whoever relies on it must verify it."""
        path = self._last_receipt_path()
        return None if path is None else read_private(path)

    # What the proxy last said and signed about the study

    def save_seen(self, answer: Mapping[str, Any], transcript: Sequence[bytes]) -> None:
        """Keep an answer about the study and the transcript that proves it, to be checked again later."""
        events = [parse_canonical(event) for event in transcript]
        save(self.path / "seen.json", {"answer": dict(answer), "transcript": events})

    def seen(self) -> tuple[dict[str, Any], tuple[bytes, ...]] | None:
        """The last answer and transcript that were kept, or None."""
        path = self.path / "seen.json"
        if not path.exists():
            return None
        body = load(path, "answer", "transcript")
        with own_file(path):
            return body["answer"], tuple(canonical_json(event) for event in body["transcript"])

    def _last_receipt_path(self) -> Path | None:
        versions = self._versions("receipt")
        return self.path / f"receipt-{max(versions)}.json" if versions else None

    def _versions(self, kind: str) -> list[int]:
        names = (path.stem.removeprefix(f"{kind}-") for path in self.path.glob(f"{kind}-*.json"))
        return [int(name) for name in names if name.isascii() and name.isdigit()]

    @property
    def components_path(self) -> Path:
        """Where the agent, or `join --follow`, puts the published components."""
        return self.path / "components.npz"

    @property
    def _declined_path(self) -> Path:
        return self.path / "declined.json"

    @property
    def _plan_path(self) -> Path:
        return self.path / "plan.json"

    @property
    def _secrets_path(self) -> Path:
        return self.path / "secrets.json"

    @property
    def _chunks_path(self) -> Path:
        return self.path / "chunks"

    def _chunk_path(self, index: int) -> Path:
        return self._chunks_path / f"{index}.bin"


def _bytes_of(untrusted: Any) -> bytes:
    if not isinstance(untrusted, str) or not re.fullmatch("([0-9a-f]{2})+", untrusted):
        raise MessageError("malformed", "a value is not in lower-case hex")
    return bytes.fromhex(untrusted)


def _write_checked(path: Path, content: bytes) -> None:
    """Write a digest and then the content, because a flipped bit gives another ciphertext that looks
    valid."""
    write_private(path, Digest.of(content) + content)


def _read_checked(path: Path) -> bytes | None:
    kept = read_private(path)
    digest, content = kept[:_DIGEST_BYTES], kept[_DIGEST_BYTES:]
    return content if Digest.of(content) == digest else None
