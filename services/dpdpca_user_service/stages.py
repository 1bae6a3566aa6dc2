"""How far the service has brought a study, as one table. Monotone: no stage is entered twice.

The proxy's own states are for all parties (`dpdpca_protocol.study`); these are what this service has done and
stored, so that it goes on from here after any crash.
"""

from enum import StrEnum

from dpdpca_protocol.errors import ConflictError


class Stage(StrEnum):
    DRAFTED = "drafted"
    """The draft is stored; the key is being made."""
    SIGNED = "signed"
    """Secret key and signed manifest are stored; the proxy may or may not have the manifest."""
    OPEN = "open"
    """The proxy has the manifest."""
    ANSWERED = "counted"
    """Masked: the one answer to the count challenge is stored; the proxy may or may not have it."""
    FETCHED = "released"
    """The verified release and its chunks are stored."""
    FITTED = "fitted"
    """The model is stored, and the secret key is deleted."""
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
    """Raises ConflictError unless the table has this move."""
    if following not in STAGES[stage]:
        raise ConflictError("wrong-state", f"a study that is {stage} does not become {following}")
