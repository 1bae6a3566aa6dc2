"""The pipelines of Huang et al. 2021 as scikit-learn estimators, and what can really be claimed."""

from dpdpca_lab.pipelines.dppca_svm import DPPCASVM
from dpdpca_lab.pipelines.pca_dpsvm import PCADPSVM
from dpdpca_lab.pipelines.scores import ClassScores, class_scores

__all__ = ["DPPCASVM", "PCADPSVM", "ClassScores", "class_scores"]
