"""The service as one value: settings, keys, store and workers, handed to every act.

Clock and key size enter here; what tests may change is an argument of `open_service`, never a setting.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from dpdpca_disk.private import private_dir
from dpdpca_http.client import ProxyClient
from dpdpca_http.retry import Patience
from dpdpca_protocol.manifest import LEAST_MODULUS_BITS
from dpdpca_protocol.parties import Party
from dpdpca_protocol.signing import IdentityKey
from dpdpca_user.home import EnrolledProxy, UserHome, read_passphrase
from dpdpca_user.model import Model
from dpdpca_user_service.keyring import Keyring
from dpdpca_user_service.settings import Settings
from dpdpca_user_service.store.database import Database
from dpdpca_user_service.store.studies import StudyStore
from dpdpca_user_service.work import Workers

DATABASE_FILE = "user.sqlite3"
_PATIENCE = Patience(seconds=5)

Clock = Callable[[], datetime]
Connect = Callable[[EnrolledProxy], ProxyClient]


@dataclass(frozen=True)
class UserService:
    """Everything that an act of the service stands on."""

    settings: Settings
    home: UserHome
    key: IdentityKey
    party: Party
    token: str
    store: StudyStore
    keyring: Keyring
    workers: Workers
    connect: Connect
    now: Clock
    least_modulus_bits: int
    model_of: Callable[[str], Model]
    """The model of a row that has one; the last few are remembered."""
    wake: Callable[[], None] = field(default=lambda: None)
    """Told after a change that there may be something to do."""

    def close(self) -> None:
        self.workers.close()
        self.store.database.close()


def open_service(
    settings: Settings,
    *,
    now: Clock = lambda: datetime.now(UTC),
    connect: Connect | None = None,
    workers: Workers | None = None,
    least_modulus_bits: int = LEAST_MODULUS_BITS,
    wake: Callable[[], None] = lambda: None,
) -> UserService:
    """The service of the data user that lives in `settings.home`, its database brought up to date.

    Args:
        settings: of whoever runs it.
        now: the clock.
        connect: makes the client of a proxy; tests put their own in.
        workers: where long work runs; processes of their own outside tests.
        least_modulus_bits: lower only in tests.
        wake: see `UserService.wake`.

    Raises:
        NotFoundError: `not-initialised`.
        AuthenticationError: the passphrase is wrong or missing.
    """
    home = UserHome(settings.home)
    passphrase = read_passphrase(settings.passphrase_file)
    key = home.identity(passphrase)
    database = Database(_database_path(settings.home))
    database.upgrade()
    database.forget_deleted()
    store = StudyStore(database)

    @lru_cache(maxsize=16)
    def model_of(row_id: str) -> Model:
        return Model.from_bytes(store.need(row_id, "model"), least_modulus_bits=least_modulus_bits)

    return UserService(
        settings=settings,
        home=home,
        key=key,
        party=home.party(key),
        token=home.token(),
        store=store,
        keyring=Keyring(passphrase),
        workers=workers or Workers(),
        connect=connect
        or (lambda proxy: ProxyClient(proxy.url, key, proxy.identity.ed25519, patience=_PATIENCE)),
        now=now,
        least_modulus_bits=least_modulus_bits,
        model_of=model_of,
        wake=wake,
    )


def _database_path(home: Path) -> Path:
    return private_dir(home) / DATABASE_FILE
