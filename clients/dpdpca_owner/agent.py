"""The owner's agent: follows every study that a person has approved to be followed.

The agent decides nothing. It joins the study that a person approved, or a rule that a person wrote into the
policy (`approving`), and the later rounds that this approval covers. It may be stopped at any moment:
everything that it knows is in the home.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from dpdpca_owner.actions import Desk
from dpdpca_owner.approving import approve_inbox
from dpdpca_owner.followed import FollowedStudy
from dpdpca_owner.following import FINAL, LOOK_SECONDS, Follower, Records, Result
from dpdpca_owner.home import OwnerHome
from dpdpca_protocol.errors import ConflictError, DpdpcaError, PolicyError
from dpdpca_runtime.files import private_dir
from dpdpca_runtime.locks import locked


@contextmanager
def only_agent(home: OwnerHome) -> Iterator[None]:
    """Raises ConflictError `busy` if another agent works in this home."""
    busy = ConflictError(
        "busy", f"another agent is already running in {home.path}", "stop it first, or use another home"
    )
    with locked(private_dir(home.path) / "agent.lock", patience_seconds=0, busy=busy):
        yield


@dataclass
class Agent:
    """Follows the studies of one home. Hold `only_agent` while it works.

    Attributes:
        desk: this owner; its `say` receives what happens.
        environment: may hold a database URL.
    """

    desk: Desk
    environment: Mapping[str, str]
    _followers: dict[FollowedStudy, Follower] = field(default_factory=dict)
    _told: dict[str, str] = field(default_factory=dict)

    def run(self, sleep: Callable[[float], object]) -> None:
        """Work until `sleep` or the process ends it."""
        while True:
            self.look()
            sleep(LOOK_SECONDS)

    def look(self) -> list[Result]:
        """Do all that can be done now. A study that fails does not hold up the others, and is tried again."""
        self._approve_by_rule()
        results = []
        for followed in self.desk.home.followed.all():
            try:
                result = self._follower(followed).advance()
            except (DpdpcaError, OSError) as error:
                self._tell_once(str(followed.address), str(error))
                if isinstance(error, DpdpcaError) and error.slug in FINAL:
                    self._forget(followed)
                continue
            self._told.pop(str(followed.address), None)
            if result is not None:
                self._forget(followed)
                self.desk.say(f"{result.address}: the components are in {result.path}")
                results.append(result)
        return results

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
            kept = Follower(self.desk, followed.address, records, is_approved=True)
            self._followers[followed] = kept
        return kept

    def _forget(self, followed: FollowedStudy) -> None:
        self.desk.home.followed.remove(followed.address)
        self._followers.pop(followed, None)

    def _approve_by_rule(self) -> None:
        try:
            for each in approve_inbox(self.desk, self._tell_once):
                self.desk.say(f"{each.address}: '{each.title}' is approved by the rule '{each.rule}'")
            self._told.pop("approval by rule", None)
        except (DpdpcaError, OSError) as error:
            self._tell_once("approval by rule", str(error))

    def _tell_once(self, place: str, problem: str) -> None:
        if self._told.get(place) != problem:
            self._told[place] = problem
            self.desk.say(f"{place}: {problem}")
