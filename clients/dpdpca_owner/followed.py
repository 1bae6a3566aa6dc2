"""The studies that a person, or a rule of the policy, has approved to be followed, and with which registered
source."""

from dataclasses import dataclass
from pathlib import Path

from dpdpca_protocol.errors import MessageError
from dpdpca_runtime.files import remove_private
from dpdpca_runtime.http.address import StudyAddress, parse_study_address
from dpdpca_runtime.own_files import load, own_file, save


@dataclass(frozen=True, slots=True)
class FollowedStudy:
    """The approval of one study, by a person or by a rule, and the wish to follow it.

    Attributes:
        address: the study that was approved.
        source: the name of the registered source.
        data_set: the data set in which its records counted at the approval.
        strict: whether a value that its feature does not take stops a share.
    """

    address: StudyAddress
    source: str
    data_set: str
    strict: bool = False


class FollowedStudies:
    """The followed studies in an owner's home, one private file for each.

    Args:
        folder: created with the first study.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, followed: FollowedStudy) -> None:
        body = {
            "address": str(followed.address),
            "data_set": followed.data_set,
            "source": followed.source,
            "strict": followed.strict,
        }
        save(self._path(followed.address), body)

    def all(self) -> list[FollowedStudy]:
        """The followed studies, sorted by id. Raises IntegrityError if a file is damaged."""
        return [_load(path) for path in sorted(self._folder.glob("*.json"))]

    def addresses(self) -> set[StudyAddress]:
        """The addresses of all followed studies. Raises like `all`."""
        return {each.address for each in self.all()}

    def remove(self, address: StudyAddress) -> None:
        """Follow a study no longer; nothing happens if it is not followed."""
        path = self._path(address)
        if path.exists():
            remove_private(path)

    def _path(self, address: StudyAddress) -> Path:
        return self._folder / f"{address.study.hex()}.json"


def _load(path: Path) -> FollowedStudy:
    body = load(path, "address", "data_set", "source", "strict")
    with own_file(path):
        if not all(isinstance(body[name], str) for name in ("address", "data_set", "source")):
            raise MessageError("malformed", "a member is not a text")
        if type(body["strict"]) is not bool:
            raise MessageError("malformed", "the member strict is neither true nor false")
        address = parse_study_address(body["address"])
        return FollowedStudy(address, body["source"], body["data_set"], body["strict"])
