"""What this owner has approved for chains of studies: one (ε, δ) for all rounds, and how much is used.

A manifest with a `rho_share` is a round of a chain. The id of the first round identifies the chain. An owner
that joins the first round has seen the total and approved it. Later rounds on the same terms then need no new
approval, and none can take more than is left. A round that the ledger shows as withdrawn or cancelled has
used nothing of the total.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from dpdpca_owner.accounts.budget import Cost
from dpdpca_owner.accounts.ledger import Ledger
from dpdpca_owner.accounts.spending import Placed
from dpdpca_protocol.errors import PolicyError
from dpdpca_protocol.terms.figures import MAX_ROUNDS
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.wire.canonical import canonical_texts
from dpdpca_protocol.wire.fields import decimal_text, read_decimal
from dpdpca_protocol.wire.identifiers import Digest, StudyId
from dpdpca_runtime.own_files import load, own_file, save

WHOLE = Fraction(1)


@dataclass(frozen=True, slots=True)
class Chain:
    """One round, compared with what was approved for its chain.

    Attributes:
        before: the share of the total that other live rounds have taken.
        rounds: the number of these rounds.
        share: the share of the total that this round takes.
        is_same_total: whether its ε and δ are those that were approved, or nothing was approved yet.
        is_covered: whether an earlier round on the same terms was approved and enough of the total is left.
        data_sets: the data sets on which earlier rounds are booked.
        is_other_data: whether it would be covered, except that its records count in another data set.
    """

    before: Fraction
    rounds: int
    share: Fraction
    is_same_total: bool
    is_covered: bool
    data_sets: frozenset[str] = frozenset()
    is_other_data: bool = False

    @property
    def after(self) -> Fraction:
        return self.before + self.share

    def on(self, placed: Placed) -> "Chain":
        """The chain for records of this data set. An approval does not cover records of another data set."""
        same = not placed.is_new and self.data_sets <= {placed.data_set, *placed.merges}
        return self if same or not self.is_covered else replace(self, is_covered=False, is_other_data=True)

    def check(self) -> None:
        """Raises PolicyError: `chain-differs` for another total, `chain-exceeded` if too little is left."""
        if not self.is_same_total:
            raise PolicyError(
                "chain-differs",
                "the total ε or δ of the chain differs in this round from the one in its earlier rounds",
                "ask the data user for a round with the same total, or for a new chain",
            )
        if self.after > WHOLE:
            raise PolicyError(
                "chain-exceeded",
                f"earlier rounds have taken {float(self.before):.4g} of the approved total, and this round"
                f" asks for {float(self.share):.4g} of it",
                "ask the data user for a round with a smaller rho_share; --yes does not override this",
            )
        if self.rounds >= MAX_ROUNDS:
            raise PolicyError(
                "chain-exceeded",
                f"the chain already has {self.rounds} rounds, the most that one δ covers",
                "ask the data user for a new chain",
            )


@dataclass(frozen=True, slots=True)
class _Approved:
    """The content of a chain's file: the total, the terms that were approved last, and the rounds."""

    total: tuple[str, str]
    terms: Digest
    rounds: Mapping[StudyId, Fraction]


class Approvals:
    """The chains in an owner's home, one private file for each.

    Args:
        folder: created with the first write.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def chain(self, manifest: Manifest, ledger: Ledger) -> Chain | None:
        """A study compared with what was approved; None if it is not a round of a chain.

        Raises:
            IntegrityError: the file of the chain is damaged, or was not written by this program.
        """
        if manifest.rho_share == WHOLE:
            return None
        known = self._read(manifest)
        others = (
            []
            if known is None
            else [share for study, share in known.rounds.items() if _counts(study, manifest.study_id, ledger)]
        )
        is_known_round = known is not None and manifest.study_id in known.rounds
        before = sum(others, Fraction(0))
        covered = (
            known is not None
            and known.terms == lasting_terms(manifest)
            and before + manifest.rho_share <= WHOLE
            and (bool(manifest.pre_studies) or is_known_round)
            and not manifest.rules.is_masked  # it relies on every owner, so it always needs a new approval
        )
        is_same_total = known is None or known.total == _total(manifest)
        booked = [ledger.spend(study) for study in (known.rounds if known else ())]
        data_sets = frozenset(
            ledger.root(spend.data_set)
            for spend in booked
            if spend is not None and spend.is_live and spend.data_set is not None
        )
        return Chain(before, len(others), manifest.rho_share, is_same_total, covered, data_sets)

    def approve(self, manifest: Manifest, ledger: Ledger) -> None:
        """Add a round to its chain. The caller must hold the lock of the ledger.

        Raises:
            PolicyError: `chain-differs` or `chain-exceeded`.
        """
        chain = self.chain(manifest, ledger)
        if chain is None:
            return
        chain.check()
        known = self._read(manifest)
        rounds = {} if known is None else dict(known.rounds)
        rounds[manifest.study_id] = manifest.rho_share
        epsilon, delta = _total(manifest)
        body = {
            "delta": delta,
            "epsilon": epsilon,
            "rounds": {study.hex(): decimal_text(share) for study, share in rounds.items()},
            "terms": lasting_terms(manifest).hex(),
        }
        save(self._path(manifest), body)

    def _read(self, manifest: Manifest) -> _Approved | None:
        """None before the first approval."""
        path = self._path(manifest)
        if not path.exists():
            return None
        body = load(path, "delta", "epsilon", "rounds", "terms")
        with own_file(path):
            rounds: dict[str, Any] = body["rounds"]
            shares = {StudyId.parse(study): read_decimal(share, "share") for study, share in rounds.items()}
            return _Approved((body["epsilon"], body["delta"]), Digest.parse(body["terms"]), shares)

    def _path(self, manifest: Manifest) -> Path:
        return self._folder / f"{first_round(manifest).hex()}.json"


def first_round(manifest: Manifest) -> StudyId:
    """The first round of the chain of a study; the study itself if no round came before it."""
    return manifest.pre_studies[0] if manifest.pre_studies else manifest.study_id


def later_rounds(manifest: Manifest, chain: Chain) -> Cost:
    """What the rounds after this one may still spend."""
    left = max(WHOLE - chain.after, Fraction(0))
    return Cost(left * manifest.figures.rho_total, Fraction(0), 0)


def lasting_terms(manifest: Manifest) -> Digest:
    """Digest of the terms that must stay the same in all rounds for an approval to remain valid.

    Bounds, centres, the clip norm and the limits for records may change from round to round, and so may what
    is released. All other terms that protect owners must stay the same, such as the named owners and their
    number, the distance of cohorts, and the length of the key.
    """
    body = manifest.to_body()
    members = (
        *("user", "proxy", "purpose", "participants", "min_owners", "max_owners", "missing", "relation"),
        *("epsilon", "delta", "noise_by", "max_colluding", "mechanism", "suite"),
    )
    terms: dict[str, Any] = {member: body[member] for member in members}
    terms["features"] = [
        [feature.name, feature.kind, list(feature.levels), feature.unit or ""]
        for feature in manifest.features
    ]
    terms["calibration"] = manifest.calibration
    terms["blinding"] = str(manifest.blinding)
    terms["cohort_distance"] = manifest.cohort_distance
    terms["key_bits"] = manifest.key.bits
    return Digest.of(b"dpdpca/chain/v1\x00" + canonical_texts(terms).encode())


def _total(manifest: Manifest) -> tuple[str, str]:
    return decimal_text(manifest.epsilon), decimal_text(manifest.delta)


def _counts(study: StudyId, asking: StudyId, ledger: Ledger) -> bool:
    """Whether the part of the total that was approved for the round `study` is not available to the round
    `asking`. A refunded part is available again, and the part of `asking` is available to `asking`."""
    spend = ledger.spend(study)
    return study != asking and (spend is None or spend.is_live)
