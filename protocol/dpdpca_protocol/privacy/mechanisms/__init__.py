"""Mechanisms of symmetric noise that a proxy can apply to ciphertexts, by their names in manifests."""

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.privacy.mechanisms.blocks import BlockGaussian
from dpdpca_protocol.privacy.mechanisms.gaussian import Gaussian
from dpdpca_protocol.privacy.mechanisms.interface import (
    Calibration,
    Guarantee,
    GuaranteeKind,
    Mechanism,
    NoiseLaw,
    PrivacyEvent,
    Quantity,
    Sensitivity,
    Setting,
)
from dpdpca_protocol.privacy.mechanisms.laplace import Laplace, PublishedLaplace
from dpdpca_protocol.privacy.mechanisms.modsulq import ModSulq
from dpdpca_protocol.privacy.mechanisms.published import PublishedDiscretizer, PublishedGaussian
from dpdpca_protocol.privacy.mechanisms.shared import SharedGaussian
from dpdpca_protocol.privacy.mechanisms.wishart import Wishart

__all__ = [
    "MECHANISMS",
    "BlockGaussian",
    "Calibration",
    "Gaussian",
    "Guarantee",
    "GuaranteeKind",
    "Laplace",
    "Mechanism",
    "ModSulq",
    "NoiseLaw",
    "PrivacyEvent",
    "PublishedDiscretizer",
    "PublishedGaussian",
    "PublishedLaplace",
    "Quantity",
    "Sensitivity",
    "Setting",
    "SharedGaussian",
    "Wishart",
    "mechanism_class",
    "mechanism_for",
]

MECHANISMS: tuple[type[Mechanism], ...] = (
    Gaussian,
    Laplace,
    PublishedGaussian,
    PublishedLaplace,
    ModSulq,
    Wishart,
)


def mechanism_class(name: str, calibration: Calibration = Calibration.PROVED) -> type[Mechanism]:
    """The mechanism with this name and calibration.

    Raises:
        UsageError: there is none. The message lists the existing ones.
    """
    for mechanism in MECHANISMS:
        if (mechanism.name, mechanism.calibration) == (name, calibration):
            return mechanism
    offered = ", ".join(f"{m.name} ({m.calibration})" for m in MECHANISMS)
    raise UsageError("unknown-mechanism", f"mechanism and calibration must be one of: {offered}")


def mechanism_for(name: str, calibration: Calibration, quantity: Quantity) -> type[Mechanism]:
    """The mechanism with this name and calibration for this quantity.

    Raises:
        UsageError: there is none, or it does not support the quantity.
    """
    found = mechanism_class(name, calibration)
    if found is Gaussian and quantity is Quantity.PRE_STUDY:
        return BlockGaussian
    found.check_quantity(quantity)
    return found
