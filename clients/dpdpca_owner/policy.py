"""The owner's policy: a file in which the owner writes what it agrees to. Nothing overrides the policy, not
even --yes.

Every study is checked against the policy before anything is read, asked or sent. If the file has a member
that this version does not know, or a value out of range, no study can be joined until the file is corrected.
"""

import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

from dpdpca_owner.accepted import REMEDY, is_accepted, software_text
from dpdpca_owner.accounts.budget import Budget
from dpdpca_owner.accounts.charge import DATA_SET_NAME
from dpdpca_owner.known_parties import Recognised, read_recognised
from dpdpca_owner.rules import Rule, read_rules
from dpdpca_protocol.errors import MessageError, PolicyError, UsageError
from dpdpca_protocol.messages.software import MOST_SOFTWARE, Software, read_software_digest
from dpdpca_protocol.privacy.mechanisms import MECHANISMS
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.features import MAX_LISTED_FEATURES
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.members import MAX_OWNERS
from dpdpca_protocol.wire.fields import (
    check_members,
    decimal_text,
    malformed,
    read_integer,
    read_list,
    read_text,
    real_of,
    refused,
)
from dpdpca_runtime.files import may_others_write
from dpdpca_runtime.text import load_text

_NAME = 200
_MOST = 10_000
_MOST_REAL = 10**30


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


DEFAULT_POLICY = f"""\
# What this owner agrees to. Nothing overrides this file, not even `dpdpca owner join --yes`.
# Lower the figures to what your board has agreed to. A line that you delete keeps the value shown here.

[study]                      # limits for one study
max_epsilon = 10             # 1 is a strong guarantee; 10 is about the largest useful value
max_delta = 1e-5
max_features = 10000         # encoded columns; a categorical feature has one column for each level
min_owners = 3               # smallest cohort; with two owners, each learns the other's noisy statistics
min_known_owners = 0         # in a blinded study: other owners whose words you compared (dpdpca owner trust)
min_records = 1              # of all owners together; only a masked study enforces it before the release
releases = [{_listed(ReleaseKind)}]
mechanisms = [{_listed(each.name for each in MECHANISMS)}]
software = []                # accepted digests of the proxy's software (dpdpca version --wheel); empty: any

[budget]                     # limit for all studies on the same records together
epsilon = 10
delta = 1e-6
# rho = 0.5                  # instead of epsilon, if you account in zCDP

[data]
# By default, records are recognised by their content, and changed records have a budget of their own. If you
# give a name here, all records with which this owner joins count as one data set, whatever the files contain:
# dataset = "patients"

# Owners that you know. If you list any, only listed owners count towards min_owners, and a masked study may
# name no others. Give the key, or its words as you compared them:
# [[recognised]]
# name = "Hospital B"
# ed25519 = "64 hex digits"
# words = "twelve words"

# Approval by rule. Without a rule, the agent (dpdpca owner serve) joins only what a person has approved.
# With one, it also approves studies of these data users for the records of one registered source, without
# asking. All lines above still apply. A masked study always needs a person. So does a blinded study in which
# you have compared the words of too few owners. The ledger records each approval with the rule.
# [[rule]]
# name = "blood pressure studies"
# source = "patients"           # see: dpdpca owner data list
# max_epsilon = 0.5             # the most for one study, or for all rounds of a chain together
# max_delta = 1e-6
# month_epsilon = 1             # the most in a calendar month (UTC): the sum over all studies
# month_delta = 2e-6
# releases = ["pre-study", "joint", "pairs", "sketch", "lift", "scores"]   # a chain needs all of them
# min_owners = 3
# [[rule.user]]                 # a data user, by its key or by its words; repeat the table for each
# name = "Institute"
# words = "twelve words"
"""


@dataclass(frozen=True, slots=True)
class PolicyLine:
    """One line of the policy, compared with a study.

    Attributes:
        slug: of the error for a study that violates the line.
        holds: whether this study complies.
        text: the study's value and the policy's limit, in words.
        next_step: what to do about a violation.
    """

    slug: str
    holds: bool
    text: str
    next_step: str = "ask the data user for other terms; --yes does not override the policy"


@dataclass(frozen=True, slots=True)
class Policy:
    """An owner's policy, with all values in range.

    Attributes:
        budget: for all studies on the same records together.
        dataset: the name of the one data set to which all records belong, or None.
        recognised: the owners that count towards `min_owners`; None if every owner counts.
        rules: by which the agent may approve studies.
        software: the digests of a proxy's software that are accepted; if empty, any software is.
    """

    max_epsilon: Fraction
    max_delta: Fraction
    max_features: int
    min_owners: int
    min_known_owners: int
    min_records: int
    releases: tuple[str, ...]
    mechanisms: tuple[str, ...]
    budget: Budget
    dataset: str | None
    recognised: tuple[Recognised, ...] | None
    rules: tuple[Rule, ...] = ()
    software: tuple[str, ...] = ()

    def judge(
        self,
        manifest: Manifest,
        owner: bytes,
        compared: Collection[bytes] = (),
        software: Software | None = None,
    ) -> tuple[PolicyLine, ...]:
        """All lines that can be compared with a manifest and a proxy's card; the budget is not among them.

        Args:
            manifest: opened and checked.
            owner: this owner's raw Ed25519 key.
            compared: the keys of the other named owners whose words this owner has compared.
            software: what the proxy's card names; None if it names nothing.
        """
        features, mechanism = manifest.figures.encoded_features, manifest.mechanism
        strangers = self._strangers(manifest, owner)
        lines = [
            _at_most("policy-epsilon", "ε", manifest.epsilon, self.max_epsilon),
            _at_most("policy-delta", "δ", manifest.delta, self.max_delta),
            PolicyLine(
                "policy-features",
                features <= self.max_features,
                f"{features} encoded features (limit: {self.max_features})",
                f"to agree to so many features, set max_features = {features} in your policy; --yes does not"
                " override the policy",
            ),
            _owners_line(manifest.min_owners, strangers, self.min_owners),
            PolicyLine(
                "policy-records",
                manifest.min_records >= self.min_records,
                f"at least {manifest.min_records} records in all (required: {self.min_records})",
            ),
            PolicyLine(
                "policy-release",
                str(manifest.release) in self.releases,
                f"{manifest.release} release (accepted: {', '.join(self.releases)})",
            ),
            PolicyLine(
                "policy-mechanism",
                mechanism in self.mechanisms,
                f"mechanism {mechanism} (accepted: {', '.join(self.mechanisms)})",
            ),
        ]
        if manifest.rules.is_masked and self.recognised is not None:
            lines.append(
                PolicyLine(
                    "policy-recognised",
                    strangers == 0,
                    f"{strangers} of {len(manifest.participants)} named owners are not recognised (a masked"
                    " study may name recognised owners only)",
                )
            )
        if manifest.is_blinded:
            lines.append(
                PolicyLine(
                    "policy-known-owners",
                    len(compared) >= self.min_known_owners,
                    f"other owners whose words you have compared: {len(compared)} (required: at least"
                    f" {self.min_known_owners})",
                )
            )
        if self.software:
            lines.append(self.judge_software(software))
        return tuple(lines)

    def check(
        self,
        manifest: Manifest,
        owner: bytes,
        compared: Collection[bytes] = (),
        software: Software | None = None,
    ) -> None:
        """Raises PolicyError with all lines that the study violates, under the slug of the first one."""
        broken = [line for line in self.judge(manifest, owner, compared, software) if not line.holds]
        if broken:
            raise PolicyError(
                broken[0].slug,
                f"this owner's policy refuses the study: {'; '.join(line.text for line in broken)}",
                broken[0].next_step,
            )

    def judge_software(self, software: Software | None, what: str = "the proxy runs") -> PolicyLine:
        """Whether the policy accepts a proxy's software; see `software_text`."""
        holds = is_accepted(software, self.software)
        return PolicyLine("policy-software", holds, software_text(software, self.software, what), REMEDY)

    def _strangers(self, manifest: Manifest, owner: bytes) -> int:
        """How many owners that may be in the cohort are not recognised."""
        if self.recognised is None:
            return 0
        named = [participant.ed25519 for participant in manifest.participants if participant.ed25519 != owner]
        if not manifest.participants:
            return manifest.max_owners
        return sum(not any(known.is_key(key) for known in self.recognised) for key in named)


def load_policy(path: Path) -> Policy:
    """The policy in a TOML file; the default policy if there is no file.

    Raises:
        UsageError: `bad-policy`, with the member and its range; or `not-text`.
        PolicyError: other users of this machine may write to the file.
    """
    try:
        text = load_text(path)
    except FileNotFoundError:
        return parse_policy(DEFAULT_POLICY)
    if may_others_write(path):
        raise PolicyError(
            "file-not-private", f"other users of this machine may change {path}", f"run: chmod go-w '{path}'"
        )
    try:
        return parse_policy(text)
    except UsageError as error:
        raise UsageError("bad-policy", f"{path}: {error.problem}", "correct the file") from error


def parse_policy(text: str) -> Policy:
    """The policy that `text` describes. Raises UsageError `bad-policy`."""
    try:
        body = tomllib.loads(text, parse_float=Decimal)
    except tomllib.TOMLDecodeError as error:
        raise UsageError("bad-policy", "the policy is not valid TOML") from error
    try:
        return _read(body, text)
    except (MessageError, PolicyError, UsageError) as error:
        raise UsageError("bad-policy", error.problem) from error


def _read(body: Mapping[str, Any], text: str) -> Policy:
    default = tomllib.loads(DEFAULT_POLICY, parse_float=Decimal)
    check_members(body, "the policy", (), ("study", "budget", "data", "recognised", "rule"))
    given = body.get("study", {})
    check_members(given, "[study]", (), default["study"])
    study = default["study"] | given
    data = body.get("data", {})
    check_members(data, "[data]", (), ("dataset",))
    name = data.get("dataset")
    recognised = body.get("recognised")
    min_owners = read_integer(study["min_owners"], "min_owners", 1, MAX_OWNERS)
    return Policy(
        max_epsilon=_positive(study["max_epsilon"], "max_epsilon"),
        max_delta=_positive(study["max_delta"], "max_delta"),
        max_features=read_integer(study["max_features"], "max_features", 1, MAX_LISTED_FEATURES),
        min_owners=min_owners,
        min_known_owners=read_integer(study["min_known_owners"], "min_known_owners", 0, MAX_OWNERS),
        min_records=read_integer(study["min_records"], "min_records", 1),
        releases=_names(study["releases"], "releases", [*ReleaseKind]),
        mechanisms=_names(study["mechanisms"], "mechanisms", [each.name for each in MECHANISMS]),
        budget=_budget(body.get("budget", default["budget"]), default["budget"]),
        dataset=None if name is None else read_text(name, "dataset", DATA_SET_NAME),
        recognised=None if recognised is None else read_recognised(recognised, "recognised"),
        rules=read_rules(body.get("rule", []), text, min_owners),
        software=tuple(
            read_software_digest(each) for each in read_list(study["software"], "software", MOST_SOFTWARE)
        ),
    )


def _budget(given: Any, default: Mapping[str, Any]) -> Budget:
    check_members(given, "[budget]", (), ("epsilon", "delta", "rho"))
    delta = _positive(given.get("delta", default["delta"]), "delta")
    if "rho" not in given:
        return Budget.of_epsilon(_positive(given.get("epsilon", default["epsilon"]), "epsilon"), delta)
    if "epsilon" in given:
        malformed("[budget]", "set by either epsilon or rho, not by both")
    return Budget.of_rho(_positive(given["rho"], "rho"), delta)


def _at_most(slug: str, what: str, value: Fraction, most: Fraction) -> PolicyLine:
    return PolicyLine(slug, value <= most, f"{what} = {_text(value)} (limit: {_text(most)})")


def _owners_line(min_owners: int, strangers: int, least: int) -> PolicyLine:
    """Assumes the worst case: the smallest cohort allowed, with all unrecognised owners in it."""
    known = max(0, min_owners - strangers)
    text = f"at least {min_owners} owners"
    if strangers:
        text += f", of whom only {known} are sure to be recognised"
    return PolicyLine("policy-owners", known >= least, f"{text} (required: {least})")


def _positive(value: Any, where: str) -> Fraction:
    number = real_of(value, where)
    if not 0 < number < _MOST_REAL:
        refused(f"{where} must be above 0 and below 10^30")
    decimal_text(number)  # refuses what the ledger could not write exactly
    return number


def _names(value: Any, where: str, known: Sequence[str]) -> tuple[str, ...]:
    names = tuple(read_text(name, where, _NAME) for name in read_list(value, where, _MOST))
    if not set(names) <= {str(name) for name in known}:
        refused(f"{where} may list only {', '.join(known)}")
    return names


def _text(value: Fraction) -> str:
    return f"{float(value):.6g}"
