"""The stages of a study in this service, as one transition table.

No stage is entered twice. The proxy's states are the same for all parties (`dpdpca_protocol.study`). The
stages say what this service has done and stored, so that it can continue after any crash.
"""

from enum import StrEnum

from dpdpca_protocol.errors import ConflictError


class Stage(StrEnum):
    DRAFTED = "drafted"
    """The draft is stored; the key is being made."""
    SIGNED = "signed"
    """The secret key and the signed manifest are stored. The proxy may or may not have the manifest."""
    OPEN = "open"
    """The proxy has the manifest."""
    ANSWERED = "counted"
    """Only in a masked study: the answer to the count challenge is stored, and no second answer is ever made.
    The proxy may or may not have the answer."""
    FETCHED = "released"
    """The verified release and its chunks are stored."""
    FITTED = "fitted"
    """The model is stored, and the secret key was deleted."""
    PUBLISHED = "published"
    """The proxy has the components, sealed to the owners."""
    CANCELLED = "cancelled"
    FAILED = "failed"


_S = Stage
STAGES: dict[Stage, frozenset[Stage]] = {
    _S.DRAFTED: frozenset({_S.SIGNED, _S.CANCELLED, _S.FAILED}),
    _S.SIGNED: frozenset({_S.OPEN, _S.CANCELLED, _S.FAILED}),
    _S.OPEN: frozenset({_S.ANSWERED, _S.FETCHED, _S.CANCELLED, _S.FAILED}),
    _S.ANSWERED: frozenset({_S.FETCHED, _S.CANCELLED, _S.FAILED}),
    _S.FETCHED: frozenset({_S.FITTED, _S.FAILED}),
    _S.FITTED: frozenset({_S.PUBLISHED}),
    _S.PUBLISHED: frozenset(),
    _S.CANCELLED: frozenset(),
    _S.FAILED: frozenset(),
}

ENDED = frozenset({_S.PUBLISHED, _S.CANCELLED, _S.FAILED})
MODELLED = frozenset({_S.FITTED, _S.PUBLISHED})


def check_move(stage: Stage, following: Stage) -> None:
    """Raises ConflictError unless the table has this transition."""
    if following not in STAGES[stage]:
        raise ConflictError("wrong-state", f"a study in stage {stage} cannot change to {following}")
