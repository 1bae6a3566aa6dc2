"""The draft of a study that adds newcomers to a finished one, on the same terms."""

from collections.abc import Sequence
from typing import Any

from dpdpca_protocol.errors import PolicyError
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.members import MEMBERS, Drafted
from dpdpca_protocol.terms.terms import NoiseBy

_ITS_OWN = (
    *("title", "participants", "max_colluding", "min_owners", "max_owners", "min_records", "max_records"),
    *(
        "delta",
        "closing",
        "closes_at",
        "rho_share",
        "pre_studies",
        "suite",
        "blinding",
        "noise_by",
        "extends",
    ),
)
"""Members that an extension does not take over."""


def extension_draft(
    manifest: Manifest, records: int, participants: Sequence[str], min_owners: int | None
) -> dict[str, Any]:
    """A draft with the features, scaling, centres, clip norm, fraction bits and release of a finished study.

    Args:
        manifest: of the study. If it is an extension itself, the draft extends the same study.
        records: the most records that the newcomers have together.
        participants: their names; if empty, any enrolled owner may join, and the proxy draws the noise.
        min_owners: the smallest number of them for a release; None for the default.

    Raises:
        PolicyError: `no-extension`, the study is masked or gives no components.
    """
    if manifest.rules.is_masked or manifest.rules.is_wide or not manifest.release.has_components:
        raise PolicyError(
            "no-extension",
            f"a {manifest.release} study cannot be extended, because its result does not add up with another",
            "extend a joint study or a study of pairs",
        )
    written = manifest.to_body()
    taken = (member.name for member in MEMBERS if member.drafted is not Drafted.NEVER)
    draft = {name: written[name] for name in taken if name in written and name not in _ITS_OWN}
    draft |= {
        "title": manifest.title,
        "extends": (manifest.extends or manifest.study_id).hex(),
        "max_records": records,
        "participants": list(participants),
        "noise_by": str(NoiseBy.OWNERS if participants else NoiseBy.PROXY),
    }
    if participants:
        draft["blinding"] = "pairwise"
    if min_owners is not None:
        draft["min_owners"] = min_owners
    return draft
