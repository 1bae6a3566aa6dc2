"""Precision, recall and F1 of a classifier over all classes."""

from dataclasses import dataclass
from typing import Any

from sklearn.metrics import precision_recall_fscore_support


@dataclass(frozen=True, slots=True)
class ClassScores:
    """Means over the classes (macro averages), each in [0, 1]."""

    precision: float
    recall: float
    f1: float


def class_scores(truth: Any, predicted: Any) -> ClassScores:
    """The scores of (n,) predicted labels. What is undefined for a class counts as 0.

    Wang and Chang 2018 (equations 23 to 25) do not say how they average over classes.
    """
    precision, recall, f1, _ = precision_recall_fscore_support(
        truth, predicted, average="macro", zero_division=0
    )
    return ClassScores(float(precision), float(recall), float(f1))
