"""The proxy as one value: its settings, keys, database, files, clock and randomness, handed to every act.

Clock and randomness enter here and nowhere else. What tests may change (a smaller key, another clock) is an
argument of `open_proxy`, never a setting.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from gmpy2 import mpz

from dpdpca_protocol.errors import ConflictError, IntegrityError, MessageError, NotFoundError, PolicyError
from dpdpca_protocol.messages.study_messages import ProxyCard
from dpdpca_protocol.paillier.keys import PRODUCT_KEYS, KeyRules, PublicKey
from dpdpca_protocol.randomness import OS_RANDOMNESS, Randomness
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.signed_manifest import parse_manifest
from dpdpca_protocol.wire.canonical import parse_canonical
from dpdpca_protocol.wire.identifiers import PartyId, StudyId
from dpdpca_protocol.wire.sealing import open_sealed
from dpdpca_protocol.wire.signing import IdentityKey, Statement
from dpdpca_proxy.settings import PREFIX, Settings
from dpdpca_proxy.store.database import ProxyDatabase
from dpdpca_proxy.store.files import FileStore
from dpdpca_proxy.store.releases import find_data_key
from dpdpca_proxy.store.studies import load_blob, load_study
from dpdpca_proxy.store.witness import Witness
from dpdpca_runtime.asgi.observe import Metrics
from dpdpca_runtime.evidence import kept_manifests
from dpdpca_runtime.files import private_dir
from dpdpca_runtime.identity_files import IdentityFiles, IdentityKeys
from dpdpca_runtime.passphrase import unlock

DATABASE_FILE = "proxy.sqlite3"
FILES_FOLDER = "studies"

Clock = Callable[[], datetime]


@dataclass(frozen=True, slots=True)
class StudyTerms:
    """A manifest that was accepted before, and its public key."""

    manifest: Manifest
    public_key: PublicKey


@dataclass(frozen=True)
class Proxy:
    """Everything that an act of the proxy stands on."""

    settings: Settings
    keys: IdentityKeys
    database: ProxyDatabase
    files: FileStore
    now: Clock
    randomness: Randomness
    metrics: Metrics
    key_rules: KeyRules
    terms: Callable[[StudyId], StudyTerms]
    """The terms of a study that stands in the database; parsed once, then remembered."""
    wake: Callable[[], None] = field(default=lambda: None)
    """Told after a commit that there may be work for the jobs or news for the streams."""

    @property
    def key(self) -> IdentityKey:
        """The key in use, for all that belongs to no study yet."""
        return self.keys.current

    def key_of(self, study: StudyId) -> IdentityKey:
        """The key that the study's manifest names: a study keeps the keys that it started with.

        Raises:
            IntegrityError: `state-corrupt`, that key is not in the home.
        """
        key = self.keys.of(self.terms(study).manifest.proxy.ed25519)
        if key is None:
            raise IntegrityError(
                "state-corrupt",
                "the proxy's key that this study began with is missing",
                "put the whole home back from one backup",
                place=str(self.settings.home),
            )
        return key

    @property
    def card(self) -> Statement:
        """How the proxy introduces itself: the same bytes at every asking."""
        return ProxyCard(self.settings.name, self.settings.public_url, self.key.public).sign(self.key)

    def data_key(self, study: StudyId) -> bytes:
        """The key that seals the study's chunks, products, noise and mask.

        Raises:
            ConflictError: `shares-deleted`, it was destroyed with the release.
        """
        with self.database.reading("load data key") as connection:
            sealed = find_data_key(connection, study)
        return self.open_data_key(study, sealed)

    def open_data_key(self, study: StudyId, sealed: bytes | None) -> bytes:
        """As `data_key`, of what is stored."""
        if sealed is None:
            raise ConflictError(
                "shares-deleted", "the shares of this study are deleted", "read the study's state"
            )
        return open_sealed(sealed, self.key_of(study).x25519, data_key_info(study))


def data_key_info(study: StudyId) -> bytes:
    return b"dpdpca/data-key/v1" + study


def system_clock() -> datetime:
    return datetime.now(UTC)


def key_files(home: Path) -> IdentityFiles:
    """The keys of the proxy in `home`, which are those that its studies name."""

    def named() -> frozenset[PartyId]:
        manifests = kept_manifests(home / DATABASE_FILE)
        return frozenset(PartyId.of(bytes.fromhex(each.body["proxy"]["ed25519"])) for each in manifests)

    return IdentityFiles(home, named)


def make_home(settings: Settings, passphrase: bytes | None = None) -> bool:
    """Makes the home folder, the identity and the database where they are missing.

    Args:
        settings: of the operator.
        passphrase: seals an identity that is made; None leaves it open.

    Returns:
        Whether a new identity was made; one that is there is kept.
    """
    home = private_dir(settings.home)
    private_dir(home / FILES_FOLDER)
    files = key_files(home)
    fresh = not files.exist
    if fresh:
        files.create(passphrase)
    database = ProxyDatabase(home / DATABASE_FILE)
    database.upgrade()
    database.close()
    return fresh


def open_proxy(
    settings: Settings,
    *,
    now: Clock = system_clock,
    randomness: Randomness = OS_RANDOMNESS,
    key_rules: KeyRules = PRODUCT_KEYS,
    metrics: Metrics | None = None,
    wake: Callable[[], None] = lambda: None,
) -> Proxy:
    """The proxy that lives in `settings.home`, its database brought up to date.

    Args:
        settings: of the operator.
        now: the clock.
        randomness: of the operating system outside tests.
        key_rules: which moduli it takes.
        metrics: where acts are counted.
        wake: see `Proxy.wake`.

    Raises:
        NotFoundError: `not-initialised`.
        AuthenticationError: `wrong-passphrase`.
    """
    home = settings.home
    files = key_files(home)
    if not files.exist:
        raise NotFoundError("not-initialised", f"there is no proxy in {home}", "run: dpdpca proxy init")
    keys = files.load(passphrase_of(settings))
    counted = metrics or Metrics()

    @lru_cache(maxsize=64)
    def terms(study: StudyId) -> StudyTerms:
        return _load_terms(database, study)

    database = ProxyDatabase(
        home / DATABASE_FILE,
        lambda name: counted.count("dpdpca_transactions_total", transaction=name),
        Witness(settings.witness_path),
    )
    database.upgrade()
    with suppress(ConflictError):  # told by readiness, and to whoever asks for something that it forbids
        database.settle_witness()
    return Proxy(
        settings=settings,
        keys=keys,
        database=database,
        files=FileStore(_folder(home)),
        now=now,
        randomness=randomness,
        metrics=counted,
        key_rules=key_rules,
        terms=terms,
        wake=wake,
    )


def passphrase_of(settings: Settings) -> bytes | None:
    """The passphrase of the keys in the home; asked for where they need one and the settings name no file."""
    return unlock(key_files(settings.home), settings.passphrase_file, f"{PREFIX}PASSPHRASE_FILE")


def _load_terms(database: ProxyDatabase, study: StudyId) -> StudyTerms:
    with database.reading("load terms") as connection:
        load_study(connection, study)
        encoded = load_blob(connection, study, "manifest")
    assert encoded is not None
    try:
        # The statement was verified, figures and key proof included, before it was stored.
        manifest = parse_manifest(parse_canonical(encoded)["body"])
    except (MessageError, PolicyError) as error:
        raise IntegrityError(
            "state-corrupt",
            "the stored manifest of a study is none any more",
            "keep a copy of the home, and put the home back from the newest backup",
            place=str(database.path),
        ) from error
    return StudyTerms(manifest, PublicKey(mpz(manifest.key.modulus)))


def _folder(home: Path) -> Path:
    return private_dir(home / FILES_FOLDER)
