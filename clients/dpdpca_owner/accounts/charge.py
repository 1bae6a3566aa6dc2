"""What an owner's ledger records: the charge for one study, and its state."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from fractions import Fraction
from typing import Any, Self

from dpdpca_owner.accounts.budget import NOT_KNOWN, Cost, rational_text, read_rational
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.statements import round_privacy
from dpdpca_protocol.wire.fields import decimal_text, malformed, read_decimal, read_text, read_time, time_text
from dpdpca_protocol.wire.identifiers import Digest, PartyId, StudyId
from dpdpca_protocol.wire.signing import hex_bytes

DATA_SET_NAME = 100
TITLE = 200


@dataclass(frozen=True, slots=True)
class Charge:
    """What one study costs an owner's records, and whose signature can refund it.

    Attributes:
        user: name of the data user.
        proxy: raw Ed25519 key of the study's proxy.
        owner: the party id under which this owner joins.
        epsilon, delta: what is proved for the study, rounded up, for display. None if nothing is proved.
        cost: what is booked.
    """

    study: StudyId
    title: str
    user: str
    proxy: bytes
    owner: PartyId
    epsilon: Fraction | None
    delta: Fraction | None
    closes_at: datetime
    cost: Cost

    @classmethod
    def of(cls, manifest: Manifest, owner: PartyId) -> Self:
        epsilon, delta = round_privacy(manifest)
        return cls(
            manifest.study_id,
            manifest.title,
            manifest.user.name,
            manifest.proxy.ed25519,
            owner,
            epsilon,
            delta,
            manifest.closes_at,
            Cost.of(manifest.figures),
        )


class SpendState(StrEnum):
    """`RESERVED`: parts may have been sent. `COMMITTED`: the proxy signed a receipt. The rest is free."""

    RESERVED = "reserved"
    COMMITTED = "committed"
    WITHDRAWN = "withdrawn"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Spend:
    """What one study has spent on one data set.

    Attributes:
        data_set: its name when booked; None if it is no longer known; the spend then counts in every data
            set.
        version: the highest share version for which the proxy signed a receipt; 0 before the first.
        reserved_at, settled_at: times of the entries; `settled_at` is None while the state is `RESERVED`.
        is_final: whether this is never refunded, because part of a blinded share may have been sent.
    """

    charge: Charge
    data_set: str | None
    state: SpendState
    version: int
    reserved_at: str
    settled_at: str | None = None
    is_final: bool = False

    @property
    def is_live(self) -> bool:
        return self.state in (SpendState.RESERVED, SpendState.COMMITTED)


@dataclass(frozen=True, slots=True)
class RuleApproval:
    """The approval of a study, or of a round of a chain, by a rule of the policy instead of a person.

    Attributes:
        chain: the first round of the study's chain; the study itself if it is no later round.
        name, text: the rule's name and its exact text at the approval.
        epsilon, delta: as in the manifest; the total of a chain.
        source, data_set: the registered source, and the data set in which its records counted.
        time: of the entry; "" before it is written.
    """

    study: StudyId
    chain: StudyId
    name: str
    text: str
    epsilon: Fraction
    delta: Fraction
    source: str
    data_set: str
    time: str = ""

    def to_body(self) -> dict[str, Any]:
        return {
            "chain": self.chain.hex(),
            "data_set": self.data_set,
            "delta": decimal_text(self.delta),
            "epsilon": decimal_text(self.epsilon),
            "name": self.name,
            "source": self.source,
            "study": self.study.hex(),
            "text": self.text,
        }

    @classmethod
    def parse(cls, detail: Any, time: str) -> Self:
        """Raises MessageError or PolicyError for what `to_body` did not write."""
        if not isinstance(detail["text"], str):
            malformed("text", "a text")
        return cls(
            StudyId.parse(detail["study"]),
            StudyId.parse(detail["chain"]),
            read_text(detail["name"], "name", TITLE),
            detail["text"],
            read_decimal(detail["epsilon"], "epsilon"),
            read_decimal(detail["delta"], "delta"),
            read_text(detail["source"], "source", DATA_SET_NAME),
            read_text(detail["data_set"], "data_set", DATA_SET_NAME),
            time,
        )


@dataclass(frozen=True, slots=True)
class Content:
    """The number of records and their keyed fingerprint, which is the same in every file format."""

    fingerprint: Digest
    records: int


def charge_body(charge: Charge, data_set: str | None) -> dict[str, Any]:
    """The members of an entry that books `charge`."""
    return {
        "closes_at": time_text(charge.closes_at),
        "data_set": data_set,
        "delta": None if charge.delta is None else decimal_text(charge.delta),
        "epsilon": None if charge.epsilon is None else decimal_text(charge.epsilon),
        "outside_delta": rational_text(charge.cost.outside_delta),
        "owner": charge.owner.hex(),
        "proxy": charge.proxy.hex(),
        "rho": None if charge.cost.unproved else rational_text(charge.cost.rho),
        "study": charge.study.hex(),
        "title": charge.title,
        "user": charge.user,
    }


def read_charge(detail: Any) -> tuple[Charge, str | None]:
    """Read what `charge_body` wrote. Raises MessageError or PolicyError for anything else."""
    if detail["rho"] is None:
        cost = NOT_KNOWN
    else:
        outside = read_rational(detail["outside_delta"], "outside_delta")
        cost = Cost(read_rational(detail["rho"], "rho"), outside, 1)
    charge = Charge(
        StudyId.parse(detail["study"]),
        read_text(detail["title"], "title", TITLE),
        read_text(detail["user"], "user", TITLE),
        hex_bytes(detail["proxy"], 32, "proxy"),
        PartyId.parse(detail["owner"]),
        None if detail["epsilon"] is None else read_decimal(detail["epsilon"], "epsilon"),
        None if detail["delta"] is None else read_decimal(detail["delta"], "delta"),
        read_time(detail["closes_at"], "closes_at"),
        cost,
    )
    name = detail["data_set"]
    return charge, None if name is None else read_text(name, "data_set", DATA_SET_NAME)
