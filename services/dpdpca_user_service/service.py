"""The service as one value: settings, keys, store and workers.

All operations take it as an argument. `open_service` sets their clock and their rules for acceptable keys.
Whatever tests may change is an argument of `open_service`, never a setting.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache

from dpdpca_protocol.errors import IntegrityError, UsageError
from dpdpca_protocol.paillier.keys import PRODUCT_KEYS, KeyRules
from dpdpca_protocol.terms.parties import Party
from dpdpca_protocol.terms.signed_manifest import parse_manifest, suite_of
from dpdpca_protocol.wire.signing import IdentityKey, verify_statement
from dpdpca_runtime.asgi.traces import NO_TRACES, Traces
from dpdpca_runtime.feature_lists import KeptLists
from dpdpca_runtime.files import private_dir
from dpdpca_runtime.http.client import ProxyClient
from dpdpca_runtime.http.marks import SeenMarks
from dpdpca_runtime.http.retry import Patience
from dpdpca_runtime.identity_files import IdentityKeys
from dpdpca_runtime.workers import Background, BackgroundProcesses
from dpdpca_user.home import DATABASE_FILE, EnrolledProxy, UserHome, passphrase_of
from dpdpca_user.results.model import Model
from dpdpca_user_service.keyring import Keyring
from dpdpca_user_service.settings import Settings
from dpdpca_user_service.store.chains import ChainStore
from dpdpca_user_service.store.database import service_database
from dpdpca_user_service.store.studies import StudyRow, StudyStore
from dpdpca_user_service.study_keys import StudyKeys
from dpdpca_user_service.work import make_key

MARKS_FILE = "marks.json"
LISTS_FOLDER = "feature-lists"
_PATIENCE = Patience(seconds=5)

Clock = Callable[[], datetime]
Connect = Callable[[EnrolledProxy, IdentityKey], ProxyClient]


@dataclass(frozen=True)
class UserService:
    """Everything that an operation of the service needs."""

    settings: Settings
    home: UserHome
    keys: IdentityKeys
    party: Party
    token: str
    store: StudyStore
    chains: ChainStore
    keyring: Keyring
    workers: Background
    study_keys: StudyKeys
    connect: Connect
    now: Clock
    key_rules: KeyRules
    feature_lists: KeptLists
    """The lists of features that drafts and studies name."""
    model_of: Callable[[str], Model]
    """Returns the model of a row that has one. The last few models are cached."""
    wake: Callable[[], None] = field(default=lambda: None)
    """Called after a change that may make the next step of a study possible."""
    traces: Traces = NO_TRACES

    @property
    def key(self) -> IdentityKey:
        """The current key. Studies that have no manifest yet use this key."""
        return self.keys.current

    def key_of(self, row: StudyRow) -> IdentityKey:
        """The key that signed a study's manifest. A study keeps the keys that it started with.

        Raises:
            IntegrityError: `state-corrupt`, this key is not in the home.
        """
        if row.study is None:
            return self.key
        return self._key_and_proxy(row)[0]

    def secret(self, row: StudyRow) -> bytes:
        """The secret key of a study. The key must match the key in the manifest.

        Raises:
            AuthenticationError: the passphrase is wrong or missing.
            IntegrityError: `state-corrupt`, the key belongs to another study.
        """
        secret = self.keyring.open(self.store.need(row.id, "secret"), row.known_study)
        statement = verify_statement("manifest", self.store.need(row.id, "manifest"))
        if not suite_of(parse_manifest(statement.body, self.feature_lists)).fits(secret):
            raise IntegrityError(
                "state-corrupt",
                "the stored secret key does not match the study's manifest",
                "restore the whole home from one backup",
                place=str(self.settings.home),
            )
        return secret

    def client(self, row: StudyRow) -> ProxyClient:
        """A client for a study's proxy. The client signs with, and expects, the keys of the study."""
        proxy = self.home.proxy(row.proxy_url)
        if row.study is None:
            return self.connect(proxy, self.key)
        key, named = self._key_and_proxy(row)
        return self.connect(replace(proxy, ed25519=named), key)

    def _key_and_proxy(self, row: StudyRow) -> tuple[IdentityKey, str]:
        statement = verify_statement("manifest", self.store.need(row.id, "manifest"))
        key = self.keys.of(statement.signer)
        if key is None:
            raise IntegrityError(
                "state-corrupt",
                "the key with which this study began is missing",
                "restore the whole home from one backup",
                place=str(self.settings.home),
            )
        return key, statement.body["proxy"]["ed25519"]

    def close(self) -> None:
        self.workers.close()
        self.store.database.close()


def open_service(
    settings: Settings,
    *,
    now: Clock = lambda: datetime.now(UTC),
    connect: Connect | None = None,
    workers: Background | None = None,
    key_rules: KeyRules = PRODUCT_KEYS,
    wake: Callable[[], None] = lambda: None,
) -> UserService:
    """Opens the data user's service in `settings.home` and upgrades its database.

    Args:
        settings: the settings of the service.
        now: the clock.
        connect: makes the client for a proxy; tests pass their own.
        workers: where long work runs: a fresh process for each call, except in tests.
        key_rules: which keys it makes and accepts.
        wake: see `UserService.wake`.

    Raises:
        NotFoundError: `not-initialised`.
        AuthenticationError: the passphrase is wrong or missing.
        UsageError: `bad-settings`, a database server would receive secret keys without a seal.
    """
    place = settings.database_or(settings.home / DATABASE_FILE)
    home = UserHome(settings.home, place)
    passphrase = passphrase_of(home, settings.passphrase_file)
    keys = home.keys(passphrase)
    if settings.database is not None and passphrase is None:
        raise UsageError(
            "bad-settings",
            "the secret keys of studies would reach the database server without a seal, because the keys of "
            "this home have no passphrase",
            "make the home with a passphrase, or leave the database in the home",
        )
    private_dir(settings.home)
    database = service_database(place)
    database.upgrade()
    database.forget_deleted()
    store = StudyStore(database)
    marks = SeenMarks(settings.home / MARKS_FILE, home.first_key)
    background = workers or BackgroundProcesses()
    identity = keys.current.public.ed25519

    @lru_cache(maxsize=16)
    def model_of(row_id: str) -> Model:
        return Model.from_bytes(store.need(row_id, "model"))

    return UserService(
        settings=settings,
        home=home,
        keys=keys,
        party=home.party(keys.current),
        token=home.token(),
        store=store,
        chains=ChainStore(database),
        keyring=Keyring(passphrase),
        workers=background,
        study_keys=StudyKeys(
            lambda progress: background.call(
                make_key, settings.key_bits, identity, key_rules, progress=progress
            )
        ),
        connect=connect
        or (
            lambda proxy, key: ProxyClient(
                proxy.url, key, proxy.identity.ed25519, patience=_PATIENCE, marks=marks
            )
        ),
        now=now,
        key_rules=key_rules,
        feature_lists=KeptLists(settings.home / LISTS_FOLDER),
        model_of=model_of,
        wake=wake,
    )
