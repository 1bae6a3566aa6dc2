"""The pipelines of Huang et al.

2021 as scikit-learn estimators, with what can really be claimed about them.
"""

from dpdpca_lab.pipelines.dppca_svm import DPPCASVM
from dpdpca_lab.pipelines.pca_dpsvm import PCADPSVM

__all__ = ["DPPCASVM", "PCADPSVM"]
