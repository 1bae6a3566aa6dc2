"""What an owner keeps between commands: its identity, pinned keys, and a folder for each study."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from dpdpca_owner.accounts.approvals import Approvals
from dpdpca_owner.accounts.ledger_file import LedgerFile
from dpdpca_owner.followed import FollowedStudies
from dpdpca_owner.pins import Pins
from dpdpca_owner.policy import DEFAULT_POLICY, Policy, load_policy
from dpdpca_owner.sources import Sources
from dpdpca_owner.study_folder import StudyFolder
from dpdpca_protocol.errors import DpdpcaError, NotFoundError, UsageError
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.wire.fields import read_text
from dpdpca_protocol.wire.identifiers import Digest, PartyId, StudyId
from dpdpca_protocol.wire.signing import IdentityKey, Statement
from dpdpca_runtime.feature_lists import KeptLists
from dpdpca_runtime.files import private_dir, write_private
from dpdpca_runtime.http.marks import SeenMarks
from dpdpca_runtime.identity_files import IdentityFiles
from dpdpca_runtime.own_files import load, own_file, save
from dpdpca_runtime.words import fingerprint_words

_NAME_LIMIT = 200


@dataclass(frozen=True, slots=True)
class Owner:
    """This owner: its name and its keys. `former` holds the replaced keys, the newest first."""

    name: str
    key: IdentityKey
    former: tuple[IdentityKey, ...] = ()

    @property
    def words(self) -> str:
        return fingerprint_words(self.key.public.ed25519)

    @property
    def parties(self) -> frozenset[PartyId]:
        """The party ids of all keys of this owner."""
        return frozenset(key.public.party_id for key in (self.key, *self.former))


class OwnerHome:
    """An owner's folder.

    Args:
        path: the folder; made on the first write.
        witness: a folder outside `path` with a second copy of the ledger's head, or None.
    """

    def __init__(self, path: Path, witness: Path | None = None) -> None:
        self.path = path
        self.keys = IdentityFiles(path, self._acted)
        self.pins = Pins(path)
        self.marks = SeenMarks(path / "marks.json", self.pins.first_key)
        self.policy_path = path / "policy.toml"
        self.page_link_path = path / "page-link.json"
        self.approvals = Approvals(path / "chains")
        self.sources = Sources(path / "sources")
        self.feature_lists = KeptLists(path / "feature-lists")
        self.followed = FollowedStudies(path / "followed")
        self.ledger = LedgerFile(path / "ledger", witness, self._joined)

    def create(self, name: str, passphrase: bytes | None, now: datetime | None = None) -> Owner:
        """Make this owner's keys, its ledger and its policy file.

        Raises:
            UsageError: the name is empty, too long or not plain text.
            ConflictError: the folder already has keys.
        """
        try:
            read_text(name, "the name", _NAME_LIMIT)
        except DpdpcaError as error:
            raise UsageError("bad-name", error.problem, "give a short name in plain text") from error
        self.keys.check_unused()
        private_dir(self.path)
        save(self._name_path, {"name": name})
        self.ledger.create(now or datetime.now(UTC), OS_RANDOMNESS)
        if not self.policy_path.exists():
            write_private(self.policy_path, DEFAULT_POLICY.encode())
        # The keys are written last, so that an interrupted init never looks finished.
        return Owner(name, self.keys.create(passphrase))

    def load(self, passphrase: bytes | None = None) -> Owner:
        """This owner. Raises NotFoundError before `create`, AuthenticationError for a wrong passphrase."""
        self.check_made()
        keys = self.keys.load(passphrase)
        body = load(self._name_path, "name")
        with own_file(self._name_path):
            return Owner(read_text(body["name"], "the name", _NAME_LIMIT), keys.current, keys.former)

    def rotate(self, passphrase: bytes | None, now: datetime, announce: Callable[[Statement], None]) -> Owner:
        """Replace the keys by new ones; see `IdentityFiles.rotate`."""
        self.check_made()
        self.keys.rotate(passphrase, now, announce)
        return self.load(passphrase)

    def owner_in(self, owner: Owner, manifest: Manifest) -> Owner:
        """`owner` with its key in a study: the key that it joined with, else the key that the study names."""
        keys, folder = (owner.key, *owner.former), self.study(manifest.study_id)
        named = {participant.ed25519 for participant in manifest.participants}
        recorded = folder.owner_key()
        if recorded is None and not named and folder.is_joined:
            return replace(owner, key=keys[-1])  # joined with a version that had no key rotation
        wanted = {recorded} if recorded is not None else named
        key = next((key for key in keys if key.public.ed25519 in wanted), owner.key)
        return replace(owner, key=key)

    def policy(self) -> Policy:
        """The owner's policy.

        Raises:
            UsageError: `bad-policy`, its file is not a valid policy, or a rule names a source that is not
                registered.
            PolicyError: `file-not-private`, other users of this machine may write to its file.
        """
        policy = load_policy(self.policy_path)
        for rule in policy.rules:
            try:
                self.sources.find(rule.source)
            except (NotFoundError, UsageError) as error:
                raise UsageError(
                    "bad-policy",
                    f"{self.policy_path}: the rule '{rule.name}' names the source '{rule.source}', which is"
                    " not registered",
                    "register it with: dpdpca owner data add; or correct the rule",
                ) from error
        return policy

    def study(self, study: StudyId) -> StudyFolder:
        return StudyFolder(self.path / "studies" / study.hex(), study)

    def studies(self) -> list[StudyFolder]:
        """The studies of which this owner keeps files, sorted by id."""
        root, found = self.path / "studies", []
        for folder in sorted(root.iterdir()) if root.is_dir() else []:
            if folder.is_dir():  # file managers leave files of their own
                with own_file(folder):
                    found.append(self.study(StudyId.parse(folder.name)))
        return found

    def joined(self) -> list[StudyFolder]:
        """The studies to which this owner has sent, or tried to send, a share; sorted by id."""
        return [folder for folder in self.studies() if folder.is_joined]

    def known_moduli(self, besides: StudyId) -> frozenset[Digest]:
        """Digests of the moduli of all other studies joined before. No two studies may share a key."""
        moduli = (folder.modulus() for folder in self.studies() if folder.study != besides)
        return frozenset(modulus for modulus in moduli if modulus is not None)

    def _acted(self) -> frozenset[PartyId]:
        """The parties that joined studies from this folder.

        Older versions did not record the key of the folder; then the parties in the ledger are included.
        """
        acted = set() if self.keys.are_remembered else set(self.ledger.owners())
        for folder in self.studies():
            with suppress(DpdpcaError, OSError):  # a damaged file proves nothing
                acted |= folder.owners()
        return frozenset(acted)

    def _joined(self) -> frozenset[StudyId]:
        return frozenset(folder.study for folder in self.joined())

    def check_made(self) -> None:
        """Raises NotFoundError before `create`."""
        if not self.keys.exist:
            raise NotFoundError(
                "not-initialised",
                f"{self.path} does not contain an owner's keys",
                "run: dpdpca owner init --name NAME",
            )

    @property
    def _name_path(self) -> Path:
        return self.path / "owner.json"
