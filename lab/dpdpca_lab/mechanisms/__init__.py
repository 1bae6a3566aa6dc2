"""Mechanisms of the literature with the noise that their papers publish, for comparison with ours.

These mechanisms have the interface of `dpdpca_protocol.privacy.mechanisms`. Each states what is proved for
its noise, and also what its paper claims. No study can use any of these mechanisms, because all roles refuse
them.
"""

from dpdpca_lab.mechanisms.discretizer import PublishedDiscretizer
from dpdpca_lab.mechanisms.gaussian import PublishedGaussian
from dpdpca_lab.mechanisms.laplace import PublishedLaplace
from dpdpca_lab.mechanisms.modsulq import ModSulq
from dpdpca_lab.mechanisms.noise import noise_matrix, unit_setting
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
    "noise_matrix",
    "unit_setting",
]

PUBLISHED = (PublishedGaussian, PublishedLaplace, ModSulq, Wishart)
