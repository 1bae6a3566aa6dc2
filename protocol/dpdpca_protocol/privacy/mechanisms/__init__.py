"""Mechanisms of symmetric noise that a proxy can apply to ciphertexts, by their names in manifests.

The noise of each mechanism is calibrated by a proof. The lab has the mechanisms of the literature as
published.
"""

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.privacy.mechanisms.blocks import BlockGaussian
from dpdpca_protocol.privacy.mechanisms.gaussian import Gaussian
from dpdpca_protocol.privacy.mechanisms.interface import (
    Guarantee,
    Mechanism,
    NoiseLaw,
    PrivacyEvent,
    Quantity,
    Setting,
)
from dpdpca_protocol.privacy.mechanisms.laplace import Laplace
from dpdpca_protocol.privacy.mechanisms.lift import LiftGaussian
from dpdpca_protocol.privacy.mechanisms.shared import SharedGaussian

__all__ = [
    "MECHANISMS",
    "BlockGaussian",
    "Gaussian",
    "Guarantee",
    "Laplace",
    "LiftGaussian",
    "Mechanism",
    "NoiseLaw",
    "PrivacyEvent",
    "Quantity",
    "Setting",
    "SharedGaussian",
    "mechanism_for",
]

MECHANISMS: tuple[type[Mechanism], ...] = (Gaussian, Laplace)
_OF_QUANTITY: dict[Quantity, type[Gaussian]] = {
    Quantity.PRE_STUDY: BlockGaussian,
    Quantity.LIFT: LiftGaussian,
}
"""The quantities on which Gaussian noise has a shape of its own."""


def mechanism_for(name: str, quantity: Quantity) -> type[Mechanism]:
    """The mechanism with this name for this quantity.

    Raises:
        UsageError: there is no mechanism with this name, or it does not support the quantity.
    """
    for mechanism in MECHANISMS:
        if mechanism.name == name:
            if mechanism is Gaussian and quantity in _OF_QUANTITY:
                return _OF_QUANTITY[quantity]
            mechanism.check_quantity(quantity)
            return mechanism
    offered = " or ".join(mechanism.name for mechanism in MECHANISMS)
    raise UsageError("unknown-mechanism", f"there is no mechanism {name!r}; the mechanism must be {offered}")
