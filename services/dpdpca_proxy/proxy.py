"""The proxy as one value: settings, keys, database, files, clock and randomness.

Every operation of the proxy takes a `Proxy` as an argument. `open_proxy` sets the clock and the randomness
for all operations. Whatever tests may change (a smaller key, another clock) is an argument of `open_proxy`,
never a setting.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache

from dpdpca_protocol.errors import (
    AuthenticationError,
    ConflictError,
    CryptographicError,
    IntegrityError,
    MessageError,
    NotFoundError,
    PolicyError,
)
from dpdpca_protocol.messages.software import Software
from dpdpca_protocol.messages.study_messages import ProxyCard
from dpdpca_protocol.paillier.keys import PRODUCT_KEYS, KeyRules, PublicKey
from dpdpca_protocol.randomness import OS_RANDOMNESS, Randomness
from dpdpca_protocol.release.suite import Suite
from dpdpca_protocol.terms.feature_list import FeatureLists
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.signed_manifest import paillier_key, parse_manifest, suite_of
from dpdpca_protocol.wire.identifiers import Digest, PartyId, StudyId
from dpdpca_protocol.wire.sealing import open_sealed
from dpdpca_protocol.wire.signing import IdentityKey, Statement, hex_bytes, verify_statement
from dpdpca_proxy.settings import PREFIX, Settings
from dpdpca_proxy.store.database import DATABASE_FILE, ProxyDatabase
from dpdpca_proxy.store.feature_lists import is_listed
from dpdpca_proxy.store.files import FileStore, FolderStore, feature_list_name
from dpdpca_proxy.store.releases import find_data_key
from dpdpca_proxy.store.studies import load_blob, load_study
from dpdpca_proxy.store.witness import Witness
from dpdpca_runtime.asgi.observe import Metrics
from dpdpca_runtime.asgi.traces import NO_TRACES, Traces
from dpdpca_runtime.database import RESTORE, Place, as_written
from dpdpca_runtime.evidence import kept_manifests
from dpdpca_runtime.files import private_dir
from dpdpca_runtime.identity_files import IdentityFiles, IdentityKeys
from dpdpca_runtime.passphrase import unlock
from dpdpca_runtime.software import running_software

FILES_FOLDER = "studies"
_LONG_TERMS = 4
"""The terms of so few studies with a list of features are cached: each may take 200 MB."""

Clock = Callable[[], datetime]


class RefusedTermsError(IntegrityError):
    """A stored study, whose signature holds, has a format or terms that this version refuses."""


@dataclass(frozen=True, slots=True)
class StudyTerms:
    """An accepted manifest, with what follows from its key."""

    manifest: Manifest
    suite: Suite

    @property
    def public_key(self) -> PublicKey:
        """The Paillier key. Raises UsageError in a study under pads."""
        return paillier_key(self.manifest)


@dataclass(frozen=True)
class Proxy:
    """Everything that an operation of the proxy needs."""

    settings: Settings
    keys: IdentityKeys
    database: ProxyDatabase
    files: FileStore
    now: Clock
    randomness: Randomness
    metrics: Metrics
    key_rules: KeyRules
    software: Software
    """What runs here, as the card and every release name it."""
    terms: Callable[[StudyId], StudyTerms]
    """Returns the terms of a stored study. The terms are parsed once and then cached."""
    feature_lists: FeatureLists
    """Returns the bytes of a stored list of features."""
    signer: Callable[[StudyId], bytes]
    """Returns the raw Ed25519 key of this proxy that a stored study names, even if its terms are refused."""
    wake: Callable[[], None] = field(default=lambda: None)
    """Called after a commit, when there may be work for the jobs or news for the streams."""
    traces: Traces = NO_TRACES

    @property
    def key(self) -> IdentityKey:
        """The key in use, for everything that does not belong to a study yet."""
        return self.keys.current

    def key_of(self, study: StudyId) -> IdentityKey:
        """The key that the study's manifest names. A study keeps the keys that it started with.

        Raises:
            IntegrityError: `state-corrupt`, this key is not in the home.
        """
        key = self.keys.of(self.signer(study))
        if key is None:
            raise IntegrityError(
                "state-corrupt",
                "the proxy's key with which this study began is missing",
                "restore the whole home from one backup",
                place=str(self.settings.home),
            )
        return key

    @property
    def card(self) -> Statement:
        """The proxy's signed card: always the same bytes, as long as settings, keys and software stay."""
        settings = self.settings
        return ProxyCard(settings.name, settings.public_url, self.key.public, self.software).sign(self.key)

    def data_key(self, study: StudyId) -> bytes:
        """The key that seals the study's chunks, products, noise and mask.

        Raises:
            ConflictError: `shares-deleted`, the key was destroyed when the shares were deleted.
        """
        with self.database.reading("load data key") as connection:
            sealed = find_data_key(connection, study)
        return self.open_data_key(study, sealed)

    def open_data_key(self, study: StudyId, sealed: bytes | None) -> bytes:
        """Like `data_key`, for the stored form of the key."""
        if sealed is None:
            raise ConflictError(
                "shares-deleted", "the shares of this study are deleted", "read the study's state"
            )
        try:
            return open_sealed(sealed, self.key_of(study).opening_key, data_key_info(study))
        except CryptographicError as error:
            raise IntegrityError(
                "state-corrupt",
                "the stored key of a study's shares is damaged",
                RESTORE,
                place=self.database.place,
            ) from error


def data_key_info(study: StudyId) -> bytes:
    return b"dpdpca/data-key/v1" + study


def system_clock() -> datetime:
    return datetime.now(UTC)


def key_files(settings: Settings) -> IdentityFiles:
    """The key files in the proxy's home. The keys must include every key of the proxy that a stored manifest
    names."""

    def named() -> frozenset[PartyId]:
        manifests = kept_manifests(_database_of(settings))
        return frozenset(PartyId.of(bytes.fromhex(each.body["proxy"]["ed25519"])) for each in manifests)

    return IdentityFiles(settings.home, named, role="proxy")


def _database_of(settings: Settings) -> Place:
    return settings.database_or(settings.home / DATABASE_FILE)


def make_home(settings: Settings, passphrase: bytes | None = None) -> bool:
    """Creates the home folder, the identity and the database if they are missing.

    Args:
        settings: the operator's settings.
        passphrase: seals a new identity; None leaves it unsealed.

    Returns:
        Whether a new identity was made. An existing identity is kept.
    """
    home = private_dir(settings.home)
    private_dir(home / FILES_FOLDER)
    files = key_files(settings)
    fresh = not files.exist
    if fresh:
        files.create(passphrase)
    database = ProxyDatabase(_database_of(settings))
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
    """Opens the proxy in `settings.home` and upgrades its database.

    Args:
        settings: the operator's settings.
        now: the clock.
        randomness: the operating system's, except in tests.
        key_rules: which moduli the proxy accepts.
        metrics: where operations are counted.
        wake: see `Proxy.wake`.

    Raises:
        NotFoundError: `not-initialised`.
        AuthenticationError: `wrong-passphrase`.
        CryptographicError: `unfit-sealing-key`, the keys come from an earlier version.
        UsageError: object storage cannot be used as the environment describes it.
    """
    home = settings.home
    files = key_files(settings)
    if not files.exist:
        raise NotFoundError(
            "not-initialised", f"there is no proxy in {home}", "create a proxy with: dpdpca proxy init"
        )
    keys = files.load(passphrase_of(settings))
    _ = keys.current.opening_key  # raises for keys from an earlier version, which no card can state
    counted = metrics or Metrics()

    @lru_cache(maxsize=64)
    def usual_terms(study: StudyId) -> StudyTerms | None:
        statement = _load_manifest(database, study)
        return None if "feature_list" in statement.body else _terms_of(statement, lists, database.place)

    @lru_cache(maxsize=_LONG_TERMS)
    def long_terms(study: StudyId) -> StudyTerms:
        return _terms_of(_load_manifest(database, study), lists, database.place)

    def terms(study: StudyId) -> StudyTerms:
        return usual_terms(study) or long_terms(study)

    @lru_cache(maxsize=64)
    def signer(study: StudyId) -> bytes:
        return _load_signer(database, study)

    database = ProxyDatabase(
        _database_of(settings),
        lambda name: counted.count("dpdpca_transactions_total", transaction=name),
        Witness(settings.witness_path),
    )
    database.upgrade()
    store = _open_files(settings)
    lists = _stored_lists(database, store)
    with suppress(ConflictError):  # readiness reports it, and so does every request that it blocks
        database.settle_witness()
    return Proxy(
        settings=settings,
        keys=keys,
        database=database,
        files=store,
        now=now,
        randomness=randomness,
        metrics=counted,
        key_rules=key_rules,
        software=running_software(settings.image_digest),
        terms=terms,
        feature_lists=lists,
        signer=signer,
        wake=wake,
    )


def passphrase_of(settings: Settings) -> bytes | None:
    """The passphrase of the keys in the home.

    If the keys need a passphrase and the settings name no file, the program asks for it at the terminal.
    """
    return unlock(key_files(settings), settings.passphrase_file, f"{PREFIX}PASSPHRASE_FILE")


def _terms_of(statement: Statement, lists: FeatureLists, place: str) -> StudyTerms:
    try:
        # The statement was verified before it was stored, including figures and key proof.
        manifest = parse_manifest(statement.body, lists)
    except (MessageError, NotFoundError, PolicyError) as error:
        raise RefusedTermsError(
            "state-corrupt",
            f"this version refuses the terms of a stored study: {error.problem}",
            "go back to the version that opened the study, or cancel the study",
            place=place,
        ) from error
    return StudyTerms(manifest, suite_of(manifest))


def _stored_lists(database: ProxyDatabase, files: FileStore) -> FeatureLists:
    def find(digest: Digest) -> bytes | None:
        with database.reading("find feature list") as connection:
            if not is_listed(connection, digest):
                return None
        name = feature_list_name(digest)
        content = files.read(name)
        if Digest.of(content) != digest:
            raise files.altered(name)
        return content

    return find


def _load_signer(database: ProxyDatabase, study: StudyId) -> bytes:
    with as_written():
        named = _load_manifest(database, study).body["proxy"]["ed25519"]
        return hex_bytes(named, 32, "ed25519")


def _load_manifest(database: ProxyDatabase, study: StudyId) -> Statement:
    """The stored manifest. Raises IntegrityError unless its digest is the study's id."""
    with database.reading("load manifest") as connection:
        load_study(connection, study)
        encoded = load_blob(connection, study, "manifest")
    try:
        statement = verify_statement("manifest", encoded or b"")
        if statement.digest == study:
            return statement
    except (MessageError, AuthenticationError):
        pass
    raise IntegrityError(
        "state-corrupt", "the stored manifest of a study is damaged", RESTORE, place=database.place
    )


def _open_files(settings: Settings) -> FileStore:
    if settings.store is None:
        return FolderStore(private_dir(settings.home / FILES_FOLDER))
    from dpdpca_proxy.store.objects import open_objects  # obstore is needed only here

    return open_objects(settings.store)
