"""The consent sheet: the facts about what a study asks of an owner. Making it uploads nothing.

Every sentence says what holds, against whom it holds, and what does not hold. The figures are those of the
manifest, computed again on this machine.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from dpdpca_owner.accounts.approvals import Chain
from dpdpca_owner.accounts.spending import Spending
from dpdpca_owner.dry_run import DryRun
from dpdpca_owner.home import Owner
from dpdpca_owner.policy import PolicyLine
from dpdpca_owner.round_words import WHATEVER_RULE, RoundWords
from dpdpca_owner.study_checks import OpenedStudy, is_participant
from dpdpca_owner.summary import Summary
from dpdpca_protocol.layout.blocks import BlockName, gap_bound
from dpdpca_protocol.terms.features import Feature
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.parties import Participant
from dpdpca_protocol.terms.statements import privacy_figures, privacy_statements
from dpdpca_protocol.terms.terms import NoiseBy
from dpdpca_protocol.wire.fields import decimal_text, time_text
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_runtime.words import fingerprint_words

_COLLUSION = (
    "The proxy and the data user can undo all protection if they work together. They must be run by different"
    " organisations, and these must not work together."
)
_BLINDED = (
    "Only the sum over all named owners can be opened, even if the proxy and the data user work together. If"
    " other owners work with them, they can open the sum over the remaining owners. If ALL other owners work"
    " with them, they can open your share: it shows your exact number of records, and only your own part of"
    " the noise protects your records. This protection is computational."
)
_FINAL = (
    "BLINDED: all named owners must send a share, or nothing is released. A share cannot be replaced. Once"
    " any part of it has been sent, the cost of the study stays booked, even if the study fails, if it is"
    " cancelled, or if you withdraw. A withdrawal ends the study for all owners."
)
_UNIT = (
    "The guarantee protects one record. It does not protect an owner as a whole: if the cohorts of two"
    " studies differ by one owner, their results reveal that owner's statistics, hidden only by the noise."
)
_TOWARDS_PROXY = (
    "The proxy alone draws the noise. The guarantee therefore does not hold against the proxy if it sees the"
    " components. For this reason the components are sent to the owners sealed. One owner that works with the"
    " proxy undoes this: with the components, the proxy could compute exact sums over all owners."
)

_SECOND_NOISE = (
    "The proxy draws noise. Because nobody is named, any owner that the proxy enrols receives the components."
    " Therefore the data user's software adds a second draw of the same noise before it shows or sends"
    " anything. With this draw the guarantee holds against the proxy too, but no other party can check that"
    " the data user made it."
)

_OWNERS_DRAW = (
    "The proxy neither draws nor knows the noise. The guarantee therefore holds against the proxy too, and"
    " the components may be published in clear."
)

_OWNERS_DRAW_NUMBERS = (
    "The proxy neither draws nor knows the noise. What the data user puts into the manifests of later rounds"
    " therefore tells the proxy no more than the guarantee allows."
)

_NOT_PUBLISHED = (
    "The proxy draws noise, and the data user adds the same amount before it reads the numbers. What the data"
    " user puts into the manifests of later rounds therefore tells the proxy no more than the guarantee"
    " allows."
)
_CONTENTS = {
    BlockName.COUNT: "the number of records",
    BlockName.SUM: "the sums of the features",
    BlockName.SECOND_MOMENT: "the sums of products of two features",
    BlockName.PAIR_MOMENT: "the sums of products of the differences within pairs of records",
    BlockName.NORMS: "how many records fall into each range of sizes",
    BlockName.PAIR_NORMS: "how many pairs of records have a difference in each range of sizes",
    BlockName.OCTAVES: "how many pairs of records have a difference in each range, feature by feature",
    BlockName.FAR_PAIRS: "in how many pairs the records are closer to each other than, on average, to the"
    " centre of the features",
    BlockName.CLIPPED: "how many of them the clip norm shortened",
    BlockName.CLIPPED_SQUARES: "the sum of the squared lengths of these before that, with a limit on each",
    BlockName.GAPS: "how many of their values are missing or replaced, with a limit on each record",
}
_ENDS: Final = 3
"""Of a list of features, a sheet shows so many at each end."""
_MASKED_CONTENTS = (BlockName.COUNT, BlockName.SUM, BlockName.SECOND_MOMENT)


@dataclass(frozen=True, slots=True)
class ConsentSheet:
    """The facts about one study for one owner.

    Attributes:
        judged: the lines of the owner's policy, checked against the study.
        spending: how much of the owner's budget the study would use.
        chain: the round compared with what was approved for its chain; None if the study is not a round.
        misfit: why it does not fit the earlier rounds of its chain, so that this owner cannot join; or None.
    """

    study: OpenedStudy
    owner: Owner
    address: str
    judged: tuple[PolicyLine, ...]
    spending: Spending
    dry_run: DryRun | None = None
    chain: Chain | None = None
    misfit: str | None = None

    @property
    def manifest(self) -> Manifest:
        return self.study.manifest

    @property
    def sealed_bytes(self) -> int:
        return self.manifest.figures.sealed_bytes

    def summary(self) -> Summary:
        """The box at the top of the sheet."""
        named = [each.ed25519 for each in self.manifest.participants]
        others = [ed25519 for ed25519 in named if ed25519 != self.owner.key.public.ed25519]
        compared = sum(ed25519 in self.study.compared for ed25519 in others)
        stops = [f"This owner cannot join: {line.text}." for line in self.judged if not line.holds]
        if not is_participant(self.manifest, self.owner):
            stops.append("This owner cannot join: the study does not name it.")
        if self.misfit is not None:
            stops.append(f"This owner cannot join: {self.misfit}.")
        return Summary.of(self.manifest, self.sealed_bytes, compared, self.dry_run, stops)

    def sections(self) -> tuple[tuple[str, list[str]], ...]:
        """The parts of the sheet below the box: headings and sentences."""
        return (
            ("Who asks", self.who_asks()),
            ("Why", [self.manifest.purpose]),
            ("What leaves this machine", self.leaves()),
            ("Who could read what", self.who_can_decrypt()),
            ("What is promised", self.promise()),
            ("What depends on the owners", self.honesty()),
            ("The cohort", self.cohort()),
            ("Your records", self.records_rules()),
            ("Your policy", self.policy()),
            ("Your ledger", self.spending.lines()),
        )

    def who_asks(self) -> list[str]:
        user = self.manifest.user
        met = (
            f"known to this owner since {self.study.user_since}"
            if self.study.user_since
            else "first contact: compare the words with the data user, but not through this proxy"
        )
        return [f"{user.name}: {fingerprint_words(user.ed25519)}", met]

    def leaves(self) -> list[str]:
        figures = self.manifest.figures
        sealed = f"{self.sealed_bytes:,} bytes in all, sealed so that only the proxy can open them"
        if figures.ciphertext_count:
            bits = self.manifest.key.bits
            hidden = f"{figures.ciphertext_count:,} Paillier ciphertexts under a key of {bits} bits, {sealed}"
            held = f"the ciphertexts hold {figures.value_count:,} numbers: {self._contents()}"
            listed = "the digests of the ciphertexts"
        else:
            by = "a random pad and by masks, which vanish only in the sum over all owners,"
            if not self.manifest.is_blinded:
                by = "a random pad,"
            hidden = f"{figures.value_count:,} numbers, each hidden by {by} {sealed}"
            held = f"the hidden numbers are {self._contents()}"
            listed = "the digests of the hidden numbers, the sealed key of the pads"
        return [
            *([] if self._round is None else [self._round.released]),
            hidden,
            held,
            f"a signed statement that lists {listed} and this owner's public keys",
            "no record, no single value and no file leaves this machine",
        ]

    @property
    def _round(self) -> RoundWords | None:
        return RoundWords.of(self.manifest)

    def _contents(self) -> str:
        figures, own = self.manifest.figures, {} if self._round is None else self._round.contents
        names = [block.name for block in figures.blocks] or [*_MASKED_CONTENTS]
        *first, last = (own.get(name) or _CONTENTS[name] for name in names)
        if figures.rules.of_pairs:
            first[0] = "the number of pairs of records"
        return f"{', '.join(first)} and {last}"

    def who_can_decrypt(self) -> list[str]:
        user, proxy = self.manifest.user.name, self.manifest.proxy.name
        if self.manifest.rules.is_masked:
            count = (
                f"{proxy} learns the total number of records of all owners, because the data user proves it."
            )
        else:
            count = f"{proxy} does not learn the number of records"
            if self.manifest.rho_share < 1:
                count += (
                    " from the protocol. The terms of later rounds are computed from this number and may"
                    " reveal it"
                )
            count += "."
        hidden = "ciphertexts" if self.manifest.figures.ciphertext_count else "hidden numbers"
        by_owners = self.manifest.noise_by is NoiseBy.OWNERS
        towards = _OWNERS_DRAW if by_owners else _TOWARDS_PROXY
        if self.manifest.needs_second_noise:
            towards = _SECOND_NOISE
        if not self.manifest.release.has_components:
            towards = _OWNERS_DRAW_NUMBERS if by_owners else _NOT_PUBLISHED
        return [
            f"{user} holds the secret key. The data user receives only the sum over all owners, once, with"
            " noise. The proxy does not give the data user the shares of single owners.",
            f"{user} learns the exact total number of records of all owners.",
            f"{proxy} holds the {hidden} but no key. {towards}",
            f"{proxy} says that it runs {self._software()}. Nothing proves that.",
            count,
            _BLINDED if self.manifest.is_blinded else _COLLUSION,
        ]

    def _software(self) -> str:
        software = self.study.software
        return (
            "an earlier version of dpdpca, which does not name itself" if software is None else str(software)
        )

    def promise(self) -> list[str]:
        manifest, guarantee = self.manifest, self.manifest.figures.guarantee
        what = "for this study" if self.chain is None else "for this round by itself"
        promised = (
            f"ε = {float(guarantee.epsilon):.6g}, δ = {float(guarantee.delta):.6g} {what}, relation"
            f" {guarantee.relation}. This holds against the data user and everybody who sees the result:"
            " replacing one record by any other changes the probability of any result by a factor of at"
            " most e^ε, apart from δ. The number of records counts as public."
        )
        lines = [*self._of_chain(), promised]
        if manifest.rules.is_wide:
            lines.append(WHATEVER_RULE)
        lines.append(f"{manifest.release} release, noise drawn by the {manifest.noise_by}")
        if manifest.noise_by is NoiseBy.OWNERS:
            colluding = manifest.max_colluding
            lines.append(
                "this machine draws its own part of the noise and adds it before it hides its numbers. The"
                " guarantee"
                f" needs {manifest.min_owners - colluding} owners that do so and keep their noise secret;"
                f" up to {colluding} may tell their noise to the proxy or the data user"
            )
        if manifest.is_blinded:
            lines.append(self._among_known())
        first, *others = privacy_statements(manifest.figures)
        return [*lines, first, *others, _UNIT]

    def _among_known(self) -> str:
        """What holds if this owner can rely only on itself and the owners whose words it has compared."""
        known = len(self.study.compared)
        epsilon = self.manifest.figures.epsilon_among(1 + known)
        figure = f"ε = {float(epsilon):.4g}"
        if self.chain is not None:
            figure += " for this round by itself"
        if not known:
            return (
                "you have compared the words of no other owner, so the data user could have made up all other"
                f" owners. If it did, {figure} is all that holds for your records against it and the proxy"
                " together"
            )
        compared = "the owner" if known == 1 else f"the {known} owners"
        return (
            f"{figure} even if the proxy, the data user and all owners work together, apart from you and"
            f" {compared} whose words you have compared"
        )

    def _of_chain(self) -> list[str]:
        manifest, chain = self.manifest, self.chain
        if chain is None:
            return []
        total = f"ε = {float(manifest.epsilon):.6g}, δ = {float(manifest.delta):.6g}"
        lines = [
            f"this study is one round of a chain of studies: {total} is the TOTAL for all rounds together."
            f" This round spends {float(chain.share):.4%} of the total; with the earlier rounds,"
            f" {float(chain.after):.4%} is spent"
        ]
        if chain.after > 1:
            lines.append("this is ABOVE the total that you approved: this owner cannot join.")
        elif chain.is_covered:
            lines.append("you approved the total before, on the same terms: you need not approve it again")
        elif chain.is_other_data:
            lines.append(
                "you approved the total before, but for records that count in another data set: you need to"
                " approve it again for these records"
            )
        else:
            lines.append(
                "by joining you approve the total: later rounds of the same data user, with the same purpose,"
                " owners and features, may spend what is left of it without asking you again"
            )
        return lines

    def honesty(self) -> list[str]:
        """What depends on the honesty of the owners."""
        if self.manifest.rules.is_masked:
            return [
                "MASKED: every owner must be honest, and none may collude with the data user. One false"
                " share, such as a wrong number of records, shows the data user the exact sums over all"
                " owners. Join only if you know and trust every owner named below."
            ]
        kind = str(self.manifest.release).upper()
        final = [_FINAL] if self.manifest.is_blinded else []
        return [
            *final,
            f"{kind}: if an owner does not clip its records, the guarantee fails for that owner's records"
            " only.",
        ]

    def cohort(self) -> list[str]:
        manifest = self.manifest
        least, most = manifest.min_owners, manifest.max_owners
        lines = [f"at least {least} and at most {most} owners; you can rely only on the {least}"]
        if manifest.is_blinded:
            lines = [f"exactly these {least} owners:"]
        elif manifest.participants:
            lines[0] += f"; {len(manifest.participants)} are named:"
        if manifest.participants:
            lines += [self._named(participant) for participant in manifest.participants]
            if self._has_strangers:
                lines.append(
                    "The data user wrote this list. Compare the words of each new owner with that owner, but"
                    " not through this proxy or the data user."
                )
            if not is_participant(manifest, self.owner):
                lines.append("You are NOT among them: this owner cannot join.")
        else:
            lines.append(
                "Any enrolled owner may join. Owners without data could fill the cohort, so the number of"
                " owners protects you only as far as you trust the proxy's enrolment."
            )
            if manifest.noise_by is NoiseBy.OWNERS:
                lines.append("The same holds for the noise: a made-up owner may have drawn none.")
        records = f"{manifest.min_records} to {manifest.max_records} records in all"
        if manifest.rules.of_pairs:
            records += (
                "; for the minimum, each pair counts as two records, and records without a pair do not count"
            )
        if not manifest.rules.is_masked:
            records += (
                ". The minimum protects nobody from the data user, because it is checked only after the"
                " release"
            )
        lines.append(records)
        when = time_text(manifest.closes_at)
        if manifest.is_blinded:
            lines.append(
                f"closes when all named owners have joined; if one of them is missing on {when}, the study"
                " fails"
            )
        else:
            lines.append(
                f"closes when all named owners have joined, and no later than {when}"
                if manifest.closing == "when-complete"
                else f"closes on {when}"
            )
            lines.append(
                f"the data user may close earlier, with {least} owners or more; all parties can see this"
            )
        lines.append(
            "nothing is released if the cohort differs by fewer than"
            f" {manifest.cohort_distance} owners from the cohort of an earlier study with a common feature:"
            " the difference would reveal the sums of these few owners"
        )
        if least < 3:
            lines.append("With two owners, each learns the other's noisy statistics.")
        return lines

    def _named(self, participant: Participant) -> str:
        shown = f"{participant.name}: {fingerprint_words(participant.ed25519)}"
        if participant.ed25519 == self.owner.key.public.ed25519:
            return f"{shown} (you)"
        since = self.study.owners_since.get(participant.ed25519)
        met = f"known to this owner since {since}" if since else "new to this owner"
        if participant.ed25519 in self.study.compared:
            met += ", and you have compared its words"
        elif self.manifest.is_blinded:
            met += "; compare its words, then: dpdpca owner trust"
        return f"{shown} ({met})"

    @property
    def _has_strangers(self) -> bool:
        known = {self.owner.key.public.ed25519, *self.study.owners_since}
        return any(participant.ed25519 not in known for participant in self.manifest.participants)

    def records_rules(self) -> list[str]:
        manifest = self.manifest
        missing = (
            "a record with a missing value is left out; which records are complete is treated as public"
            if manifest.missing == "reject"
            else "a missing value is replaced by the feature's centre; every record counts"
        )
        unusable = (
            "a value that its feature does not take, such as text in a numeric column or an unlisted level,"
            " is replaced by the feature's centre"
        )
        norm = decimal_text(manifest.clip_norm)
        d, release = manifest.figures.encoded_features, manifest.rules
        rules = [] if manifest.extends is None else [_new_records(manifest.extends)]
        rules += self.feature_list()
        rules += [missing, unusable, f"values are clipped to the bounds and scaled ({manifest.scaling})"]
        if release.of_pairs:
            rules.append(
                f"the difference within each pair is clipped to norm {norm}; the largest possible is 2·√{d}"
            )
        elif release.clips_records or BlockName.SUM in dict(manifest.blocks):
            rules.append(f"records are clipped to norm {norm}; the largest possible norm is √{d}")
        if self._round is not None:
            rules.append(self._round.cut)
        if manifest.clip_share:
            figures = manifest.figures
            cap = (figures.mechanism.setting.clip_bound << figures.clip_shift) ** 0.5 / figures.grid
            rules.append(
                "the share also says how many of them were clipped to the norm, and how long these were"
                f" together; each counts with a length of at most {cap:.4g}"
            )
        if manifest.terms.tells_gaps:
            rules.append(
                "the share also says how much of your table is empty, as one number to which noise is added:"
                f" how many of the {d} encoded values of a record are missing or replaced, added up over all"
                f" records; each counts with at most {gap_bound(d)}"
            )
        if manifest.nonnegative:
            rules.append("no scaled value is below 0")
        if manifest.figures.mechanism.setting.has_pairs:
            rules.append(
                "records are paired at random: the pairing depends on the number of records and on a secret"
                " of this machine, never on the values. At least two records are needed; if their number is"
                " odd, one record is left out"
            )
        else:
            rules.append("at least one record is needed")
        return rules

    def feature_list(self) -> list[str]:
        """Of a list of features: how long it is, its digest, its ends, its bounds, and where to read it."""
        features, listed = self.manifest.features, self.manifest.feature_list
        if listed is None:
            return []
        shown = [feature.name for feature in shown_features(self.manifest)]
        if len(shown) < len(features):
            shown.insert(len(shown) // 2, "…")
        lines = [
            f"the study has {listed.count:,} features, in a list of {listed.bytes:,} bytes with the SHA-256"
            f" {listed.sha256.hex()}",
            f"the first and last of them: {', '.join(shown)}",
        ]
        if (bounds := widest_bounds(features)) is not None:
            lines.append(f"their bounds lie between {decimal_text(bounds[0])} and {decimal_text(bounds[1])}")
        if self.study.feature_list_path is not None:
            lines.append(f"read the whole list in {self.study.feature_list_path}")
        return lines

    def policy(self) -> list[str]:
        broken = [f"REFUSED: {line.text}" for line in self.judged if not line.holds]
        kept = [f"kept: {line.text}" for line in self.judged if line.holds]
        if broken:
            broken.append("This owner cannot join; --yes does not override the policy.")
        return broken + kept

    def to_json(self) -> dict[str, Any]:
        manifest, figures = self.manifest, self.manifest.figures
        user = manifest.user
        sheet: dict[str, Any] = {
            "study": self.study.signed.study_id.hex(),
            "address": self.address,
            "title": manifest.title,
            "summary": self.summary().to_json(),
            "purpose": manifest.purpose,
            "user": {
                "name": user.name,
                "ed25519": user.ed25519.hex(),
                "words": fingerprint_words(user.ed25519),
                "known_since": self.study.user_since,
            },
            "proxy": {
                "name": manifest.proxy.name,
                "url": manifest.proxy.url,
                "ed25519": manifest.proxy.ed25519.hex(),
                "words": fingerprint_words(manifest.proxy.ed25519),
                "software": None if self.study.software is None else self.study.software.to_body(),
            },
            "leaves": {
                "values": figures.value_count,
                "ciphertexts": figures.ciphertext_count,
                "chunks": figures.chunk_count,
                "bytes": self.sealed_bytes,
            },
            "extends": None if manifest.extends is None else manifest.extends.hex(),
            "release": str(manifest.release),
            "round": None if self._round is None else self._round.to_json(),
            "misfit": self.misfit,
            "mechanism": manifest.mechanism,
            "calibration": manifest.calibration,
            "guarantee": str(figures.guarantee),
            "chain": None
            if self.chain is None
            else {
                "share": decimal_text(self.chain.share),
                "share_before": decimal_text(self.chain.before),
                "is_approved": self.chain.is_covered,
                "pre_studies": [study.hex() for study in manifest.pre_studies],
            },
            **privacy_figures(figures),
            "noise_by": str(manifest.noise_by),
            "max_colluding": manifest.max_colluding,
            "blinding": str(manifest.blinding),
            "epsilon_among_compared": float(figures.epsilon_among(1 + len(self.study.compared)))
            if manifest.is_blinded
            else None,
            "epsilon": decimal_text(manifest.epsilon),
            "delta": decimal_text(manifest.delta),
            "claimed": {"epsilon": decimal_text(manifest.epsilon), "delta": decimal_text(manifest.delta)},
            "relation": str(manifest.relation),
            "clip_norm": decimal_text(manifest.clip_norm),
            "missing": manifest.missing,
            "scaling": manifest.scaling,
            "min_owners": manifest.min_owners,
            "max_owners": manifest.max_owners,
            "min_records": manifest.min_records,
            "max_records": manifest.max_records,
            "closing": manifest.closing,
            "closes_at": time_text(manifest.closes_at),
            "participants": [
                {
                    "name": participant.name,
                    "ed25519": participant.ed25519.hex(),
                    "words": fingerprint_words(participant.ed25519),
                    "known_since": self.study.owners_since.get(participant.ed25519),
                    "compared": participant.ed25519 in self.study.compared,
                }
                for participant in manifest.participants
            ],
            "you_may_join": is_participant(manifest, self.owner),
            "features": [feature.to_body() for feature in shown_features(manifest)],
            "feature_list": None if manifest.feature_list is None else manifest.feature_list.to_body(),
            "policy": {
                "holds": all(line.holds for line in self.judged),
                "lines": [
                    {"slug": line.slug, "holds": line.holds, "text": line.text} for line in self.judged
                ],
            },
            "ledger": self.spending.to_json(),
            "statements": {
                "decrypt": self.who_can_decrypt(),
                "promise": self.promise(),
                "honesty": self.honesty(),
                "cohort": self.cohort(),
                "records": self.records_rules(),
            },
        }
        if self.dry_run is not None:
            sheet["dry_run"] = self.dry_run.to_json(manifest)
        return sheet


def shown_features(manifest: Manifest) -> tuple[Feature, ...]:
    """The features that a sheet shows: all that stand in the manifest, or the ends of its list."""
    features = manifest.features
    if manifest.feature_list is None or len(features) <= 2 * _ENDS:
        return features
    return (*features[:_ENDS], *features[-_ENDS:])


def widest_bounds(features: Sequence[Feature]) -> tuple[Fraction, Fraction] | None:
    """The lowest and the highest bound of all numeric features; None if there are none."""
    lowest = [feature.lower for feature in features if feature.lower is not None]
    highest = [feature.upper for feature in features if feature.upper is not None]
    return (min(lowest), max(highest)) if lowest else None


def _new_records(extended: StudyId) -> str:
    return (
        f"this study adds to study {extended.hex()}, and the data user will combine the results. Bring only"
        " records that are in no part of it yet: by joining, you state that they are new. Whoever has records"
        " in both pays the privacy cost of both"
    )
