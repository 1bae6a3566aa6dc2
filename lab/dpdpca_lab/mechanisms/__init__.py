"""Mechanisms of the literature with the noise that their papers publish, for comparison with ours.

They have the interface of `dpdpca_protocol.privacy.mechanisms`. They state what is proved for their noise,
and also what their papers claim. No study can use one: draft, data user, proxy and owner refuse it.
"""

from dpdpca_lab.mechanisms.discretizer import PublishedDiscretizer
from dpdpca_lab.mechanisms.gaussian import PublishedGaussian
from dpdpca_lab.mechanisms.laplace import PublishedLaplace
from dpdpca_lab.mechanisms.modsulq import ModSulq
from dpdpca_lab.mechanisms.published import Calibration, NoGuarantee, Published
from dpdpca_lab.mechanisms.wishart import Wishart

__all__ = [
    "PUBLISHED",
    "Calibration",
    "ModSulq",
    "NoGuarantee",
    "Published",
    "PublishedDiscretizer",
    "PublishedGaussian",
    "PublishedLaplace",
    "Wishart",
]

PUBLISHED = (PublishedGaussian, PublishedLaplace, ModSulq, Wishart)
