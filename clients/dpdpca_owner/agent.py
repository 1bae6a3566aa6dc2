"""The owner's agent: follows every study that was approved to be followed.

The agent decides nothing. It joins a study that a person approved, or that is approved by a rule which a
person wrote into the policy (`approving`), and the later rounds that this approval covers. It may be stopped
at any moment: everything that it knows is in the home.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace

from dpdpca_owner.actions import Desk
from dpdpca_owner.approving import Unmatched, approve_inbox
from dpdpca_owner.followed import FollowedStudy
from dpdpca_owner.following import FINAL, LOOK_SECONDS, Follower, Joined, Records, Result
from dpdpca_owner.home import OwnerHome
from dpdpca_owner.upload import Watcher
from dpdpca_protocol.errors import ConflictError, DpdpcaError, PolicyError
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_runtime.files import private_dir
from dpdpca_runtime.http.address import StudyAddress
from dpdpca_runtime.locks import locked

Place = StudyAddress | str | None
"""Where a problem is: a study, something that a text names, or the agent as a whole."""

_PROBE_SECONDS = 2.0
"""Longer than `is_agent_running` holds the lock."""


@contextmanager
def only_agent(home: OwnerHome) -> Iterator[None]:
    """Raises ConflictError `busy` if another agent works in this home."""
    with _lock(home, _PROBE_SECONDS):
        yield


def is_agent_running(home: OwnerHome) -> bool:
    """Whether an agent works in this home. It may end or start at any moment after the answer, so whatever it
    is to do must be kept in the home before this is asked."""
    try:
        with _lock(home, 0):
            return False
    except ConflictError:
        return True


def _lock(home: OwnerHome, patience_seconds: float) -> AbstractContextManager[None]:
    busy = ConflictError(
        "busy", f"another agent is already running in {home.path}", "stop it first, or use another home"
    )
    return locked(private_dir(home.path) / "agent.lock", patience_seconds=patience_seconds, busy=busy)


@dataclass
class Agent:
    """Follows the studies of one home. Hold `only_agent` while it works.

    Attributes:
        desk: this owner; its `say` receives what happens.
        environment: may hold a database URL.
        passphrase: of the keys. `dpdpca owner rotate` protects new keys with the same one.
        news: receives each share that a proxy has received, and each study's components.
        watching: makes the receiver of the progress of each share.
        problems: why a study, a proxy or the approval by rule cannot go on now; under None, why nothing can.
    """

    desk: Desk
    environment: Mapping[str, str]
    passphrase: bytes | None = field(default=None, repr=False)
    news: Callable[[Joined | Result], None] = lambda news: None
    watching: Callable[[Manifest], Watcher] = lambda manifest: Watcher()
    problems: dict[Place, str] = field(default_factory=dict)
    _followers: dict[FollowedStudy, Follower] = field(default_factory=dict)
    _unmatched: Unmatched = field(default_factory=Unmatched)

    def run(self, sleep: Callable[[float], object], every_seconds: float = LOOK_SECONDS) -> None:
        """Work until `sleep` or the process ends it."""
        while True:
            self.look()
            sleep(every_seconds)

    def look(self) -> list[Result]:
        """Do all that can be done now. A study that fails does not hold up the others, and is tried again.

        Everything is read again: keys, policy, ledger, sources and approvals may have changed.
        """
        results: list[Result] = []
        try:
            self._take_new_keys()
            self._approve_by_rule()
            all_followed = self.desk.home.followed.all()
        except (DpdpcaError, OSError) as error:
            self._tell_once(None, f"the agent does nothing until this is corrected: {error}")
            return results
        self.problems.pop(None, None)
        for followed in all_followed:
            try:
                result = self._follower(followed).advance()
            except (DpdpcaError, OSError) as error:
                self._tell_once(followed.address, str(error))
                if isinstance(error, DpdpcaError) and error.slug in FINAL:
                    self._forget(followed)
                continue
            self.problems.pop(followed.address, None)
            if result is not None:
                self._forget(followed)
                self.desk.say(f"{result.address}: the components are in {result.path}")
                self.news(result)
                results.append(result)
        return results

    def _take_new_keys(self) -> None:
        """Go on with the keys that `dpdpca owner rotate` has made: proxies refuse the old ones."""
        owner = self.desk.home.load(self.passphrase)
        if owner.key.public != self.desk.owner.key.public:
            self.desk = replace(self.desk, owner=owner)
            self._followers.clear()
            self.desk.say(f"{owner.name} has new keys: {owner.words}")

    def _follower(self, followed: FollowedStudy) -> Follower:
        source = self.desk.home.sources.find(followed.source)
        data_set = source.counts_in(self.desk.home.policy())
        if data_set != followed.data_set:
            raise PolicyError(
                "not-approved",
                f"'{followed.source}' now counts in the data set '{data_set}', but the study was approved for"
                f" '{followed.data_set}'",
                f"decide again: dpdpca owner join {followed.address} --source {followed.source} --follow",
            )
        records = Records(source.location(self.environment), data_set, followed.strict)
        kept = self._followers.get(followed)
        if kept is None or kept.records != records:
            kept = Follower(
                self.desk,
                followed.address,
                records,
                is_approved=True,
                watching=self.watching,
                on_joined=self.news,
            )
            self._followers[followed] = kept
        return kept

    def _forget(self, followed: FollowedStudy) -> None:
        self.desk.home.followed.remove(followed.address)
        self._followers.pop(followed, None)

    def _approve_by_rule(self) -> None:
        try:
            for each in approve_inbox(self.desk, self._tell_once, self._unmatched):
                self.desk.say(f"{each.address}: '{each.title}' is approved by the rule '{each.rule}'")
            self.problems.pop("approval by rule", None)
        except (DpdpcaError, OSError) as error:
            self._tell_once("approval by rule", str(error))

    def _tell_once(self, place: Place, problem: str) -> None:
        if self.problems.get(place) != problem:
            self.problems[place] = problem
            self.desk.say(problem if place is None else f"{place}: {problem}")
