"""Takes part in all rounds of an approved chain, and fetches the components at its end.

What is done next follows only from signed manifests, from this owner's approvals, ledger and policy, and
from what the proxy says of its studies. It never follows from a value in the records. Nothing is remembered
besides the files of the studies, so a run that ends at any point is continued by the next run.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from dpdpca_owner.accounts.approvals import WHOLE, first_round
from dpdpca_owner.actions import Desk, components, join, joined_at, prepare_join
from dpdpca_owner.home import OwnerHome
from dpdpca_owner.inbox import share_state
from dpdpca_owner.projection import record_count
from dpdpca_owner.records.source import DataLocation
from dpdpca_owner.reports import status
from dpdpca_owner.study_checks import look_at, read_manifest, with_list
from dpdpca_owner.upload import Watcher
from dpdpca_protocol.errors import ConflictError, DpdpcaError, IntegrityError, PolicyError, UnavailableError
from dpdpca_protocol.result.components import Components
from dpdpca_protocol.study import TERMINAL_STATES, ShareState, StudyState
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_runtime.http.address import StudyAddress
from dpdpca_runtime.http.client import ProxyClient

LOOK_SECONDS = 10.0
"""How long to wait before the proxy is asked again."""

_PASSING = frozenset({"busy", "no-components-yet", "stale-request", "study-closed"})
"""Errors that are no UnavailableError and pass by themselves: another command has the lock, a lift has no
components yet, a clock is wrong and will be set, a study was closed in this moment."""

FINAL = frozenset({"followed-study-ended", "share-withdrawn", "study-declined"})
"""Errors after which a study is no longer followed."""

_ENDED = frozenset({StudyState.FAILED, StudyState.CANCELLED})


@dataclass(frozen=True, slots=True)
class Records:
    """The records with which all rounds are joined.

    Attributes:
        location: where they are.
        data_set: in which they count; None to recognise them in the first round.
        strict: whether a value that its feature does not take stops a share.
    """

    location: DataLocation
    data_set: str | None
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Joined:
    """A share that the proxy has received now.

    Attributes:
        records: how many records it sums up.
        seconds: from reading the records to the receipt.
    """

    address: StudyAddress
    title: str
    records: int
    sent_bytes: int
    receipt_time: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Result:
    """The published components of the study at `address`, which were saved to `path`."""

    address: StudyAddress
    manifest: Manifest
    components: Components
    records: int
    path: Path


@dataclass
class Follower:
    """Follows the study at `address`, and all later rounds if it is a round of a chain.

    Attributes:
        desk: this owner.
        address: a study that was joined or approved here.
        records: see `Records`.
        is_approved: whether the study at `address` itself was approved, for these records. Later rounds
            always need an approval of their chain (`accounts.approvals`).
        watching: makes the receiver of the progress of each share.
        on_joined: receives each share that the proxy has received.
    """

    desk: Desk
    address: StudyAddress
    records: Records
    is_approved: bool = False
    watching: Callable[[Manifest], Watcher] = lambda manifest: Watcher()
    on_joined: Callable[[Joined], None] = lambda joined: None
    _unrelated: set[StudyId] = field(default_factory=set)
    _missed: set[StudyId] = field(default_factory=set)
    _ended: dict[StudyId, str] = field(default_factory=dict)

    def advance(self) -> Result | None:
        """Do all that can be done now. Returns the components once they are published, else None.

        Raises:
            PolicyError: `not-approved`, a round needs an approval; `share-withdrawn`; `study-declined`; or
                the policy or the budget refuses a round.
            ConflictError: `followed-study-ended`, there will be no components.
            UnavailableError: try again later.
            DpdpcaError: like `prepare_join`, `join` and `status`.
        """
        self.desk.home.study(self.address.study).check_not_declined()
        with self.desk.client(self.address.proxy) as client:
            terms = self._terms(client)
            waiting = sorted(self._waiting(client, terms), key=_position)
        # Only now: another command may have sent the last share meanwhile, and the round then waits no more.
        rounds = list(self._joined(terms))
        self._check_not_withdrawn(rounds)
        errors = self._join_all(waiting)
        known = {each.study_id: each for each in (*rounds, *waiting)}
        self._look_for_receipts(known[study] for study in known.keys() - {each.study_id for each in waiting})
        rounds = [each for each in known.values() if self._share(each) is ShareState.COMPLETE]
        if not rounds and self.address.study not in {each.study_id for each in waiting}:
            raise self._ended_error("it was closed before this owner had sent its share")
        newest = max(rounds, key=_position, default=None)
        state = None if newest is None else self._state(newest)
        for manifest in sorted(rounds, key=_position, reverse=True):
            if self._state(manifest) == StudyState.PUBLISHED:
                address = StudyAddress(self.address.proxy, manifest.study_id)
                if state in _ENDED or not self._may_go_on(manifest, newest):
                    return self._fetch(address)
                self._keep_meanwhile(address)
                break
        if errors:
            raise errors[0]
        if state in _ENDED:
            raise self._ended_error(f"its last round is {state}")
        return None

    def _join_all(self, waiting: list[Manifest]) -> list[DpdpcaError]:
        """Join each open round that is approved. A round that fails does not hold up the others, nor the
        components of a round that is published."""
        errors: list[DpdpcaError] = []
        for manifest in waiting:
            done = self._share(manifest) in (ShareState.COMPLETE, ShareState.WITHDRAWN)
            if not done and not self._is_declined(manifest):
                try:
                    self._join(manifest)
                except DpdpcaError as error:
                    errors.append(error)
        return errors

    def _look_for_receipts(self, closed: Iterable[Manifest]) -> None:
        """Ask once more about shares that were begun: one may have arrived although this machine ended before
        it had the receipt. A repeated join then sends nothing."""
        for manifest in closed:
            is_begun = self._share(manifest) is ShareState.PARTIAL and not self._is_declined(manifest)
            if is_begun and manifest.study_id not in self._missed:
                try:
                    self._join(manifest)
                except ConflictError as error:
                    if error.slug != "study-closed":
                        raise
                    self._missed.add(manifest.study_id)

    def _join(self, manifest: Manifest) -> None:
        address, records = StudyAddress(self.address.proxy, manifest.study_id), self.records
        is_first = self.is_approved and address == self.address
        if not is_first:
            self._check_covered(manifest, address)  # before the records are read
        data_set = records.data_set or self._booked_on()
        begun = time.monotonic()
        prepared = prepare_join(self.desk, address, records.location, data_set, strict=records.strict)
        if not prepared.is_approved and not is_first:
            raise _not_approved(manifest, address)
        settled = join(self.desk, address, prepared, self.watching(manifest))
        self.desk.say(f"joined '{manifest.title}': receipt of {settled.receipt.time}")
        accepted, seconds = prepared.contribution.report.accepted, time.monotonic() - begun
        self.on_joined(
            Joined(address, manifest.title, accepted, settled.sent_bytes, settled.receipt.time, seconds)
        )

    def _check_covered(self, manifest: Manifest, address: StudyAddress) -> None:
        """Raises PolicyError if no approval of the chain covers this round, whatever records it is for."""
        chain = self.desk.home.approvals.chain(manifest, self.desk.home.ledger.read())
        if chain is not None:
            chain.check()
        if chain is None or not chain.is_covered:
            raise _not_approved(manifest, address)

    def _booked_on(self) -> str | None:
        """The data set of the followed study, if it is booked. If later rounds were placed by their content
        instead, a changed record would decide whether they are covered."""
        spend = self.desk.home.ledger.read().spend(self.address.study)
        return None if spend is None else spend.data_set

    def _terms(self, client: ProxyClient) -> Manifest:
        encoded = self.desk.home.study(self.address.study).manifest()
        encoded = with_list(encoded or client.manifest(self.address.study), self.desk.home, client)
        manifest = read_manifest(encoded, self.address.study, self.desk.home.feature_lists)
        if manifest is None:
            raise IntegrityError(
                "wrong-study", "the manifest does not belong to this study id", "tell the proxy's operator"
            )
        return manifest

    def _waiting(self, client: ProxyClient, terms: Manifest) -> Iterator[Manifest]:
        """The open rounds of the same chain and data user. Their terms are verified before they are joined.

        Somebody else's study that names this chain is left out: it must not be able to stop the owner.
        """
        for facts in client.inbox():
            if facts.study in self._unrelated:
                continue
            manifest = look_at(client, self.desk.home, facts.study)
            if manifest is not None and _is_round(manifest, terms):
                yield manifest
            else:
                self._unrelated.add(facts.study)

    def _joined(self, terms: Manifest) -> Iterator[Manifest]:
        """The rounds of the chain for which this machine has made a share."""
        for folder in self.desk.home.joined():
            with suppress(IntegrityError):  # a damaged folder of another study
                encoded = folder.manifest()
                lists = self.desk.home.feature_lists
                manifest = None if encoded is None else read_manifest(encoded, folder.study, lists)
                is_here = joined_at(folder).proxy == self.address.proxy
                if is_here and manifest is not None and _is_round(manifest, terms):
                    yield manifest

    def _check_not_withdrawn(self, rounds: list[Manifest]) -> None:
        for manifest in rounds:
            if self._share(manifest) is ShareState.WITHDRAWN:
                raise PolicyError(
                    "share-withdrawn",
                    f"you withdrew your share of '{manifest.title}'",
                    "to take part again, join that study yourself while it is open",
                )

    def _share(self, manifest: Manifest) -> ShareState:
        return share_state(self.desk.home.study(manifest.study_id), manifest.proxy.ed25519)

    def _is_declined(self, manifest: Manifest) -> bool:
        return self.desk.home.study(manifest.study_id).declined() is not None

    def _state(self, manifest: Manifest) -> str:
        """The state of a joined round, after its proxy was checked and a refund was booked (`status`)."""
        study = manifest.study_id
        if study not in self._ended:
            state = status(self.desk, StudyAddress(self.address.proxy, study)).facts.state
            if state not in TERMINAL_STATES:
                return state
            self._ended[study] = state
        return self._ended[study]

    def _may_go_on(self, manifest: Manifest, newest: Manifest | None) -> bool:
        """Whether the scores of a lift may still come: a chain ends when all of its total is spent."""
        if manifest.lift is None or newest is not manifest:
            return manifest.lift is not None
        chain = self.desk.home.approvals.chain(manifest, self.desk.home.ledger.read())
        return chain is not None and chain.after < WHOLE

    def _keep_meanwhile(self, address: StudyAddress) -> None:
        """Keep the components of a lift while its scores are waited for."""
        path = self.desk.home.study(address.study).components_path
        if not path.exists():
            self._fetch(address)
            self.desk.say(f"the components of the lift are in {path}; their variances may still come")

    def _fetch(self, address: StudyAddress) -> Result:
        path = self.desk.home.study(address.study).components_path
        found, manifest = components(self.desk, address, path)
        return Result(address, manifest, found, record_count(found, manifest), path)

    def _ended_error(self, why: str) -> ConflictError:
        return ConflictError(
            "followed-study-ended",
            f"the study {self.address} gives no components: {why}",
            "ask the data user; join again if it opens another round",
        )


def follow(follower: Follower, sleep: Callable[[float], object]) -> Result:
    """Follow until the components are published. What passes by itself is waited for, however long it takes.

    Raises like `Follower.advance`, except for what passes by itself.
    """
    told = ""
    while True:
        try:
            if (result := follower.advance()) is not None:
                return result
        except DpdpcaError as error:
            if not is_passing(error):
                raise
            if told != (told := str(error)):
                follower.desk.say(f"waiting: {error}")
        sleep(LOOK_SECONDS)


def _not_approved(manifest: Manifest, address: StudyAddress) -> PolicyError:
    return PolicyError(
        "not-approved",
        f"the round '{manifest.title}' needs your approval: nobody has approved it on these terms and for"
        " these records",
        f"read it and decide: dpdpca owner join {address}",
    )


def share_at(home: OwnerHome, address: StudyAddress) -> ShareState:
    """What this machine knows of its share in the study; see `inbox.share_state`."""
    folder = home.study(address.study)
    encoded = folder.manifest()
    lists = home.feature_lists
    manifest = None if encoded is None else read_manifest(encoded, address.study, lists)
    return ShareState.ABSENT if manifest is None else share_state(folder, manifest.proxy.ed25519)


def is_passing(error: DpdpcaError) -> bool:
    """Whether the same act may succeed later although nobody does anything here."""
    return isinstance(error, UnavailableError) or error.slug in _PASSING


def _is_round(manifest: Manifest, terms: Manifest) -> bool:
    same_user = manifest.user.ed25519 == terms.user.ed25519
    return same_user and first_round(manifest) == first_round(terms)


def _position(manifest: Manifest) -> int:
    return len(manifest.pre_studies)
