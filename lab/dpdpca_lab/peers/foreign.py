"""Fits the PCA of another library. The Python of that library's own environment runs this file as a program.

It imports nothing of this project. Arguments: library, file with the rows, ε, k, and how many fits. It writes
one line of JSON for the version of the library and one for each fit, as soon as it is there. It ends when its
standard input does, so that no fit outlives the process that asked for it.
"""

import json
import os
import sys
import threading
from importlib import import_module
from importlib.metadata import version
from typing import Any

import numpy as np


def _diffprivlib() -> Any:
    """Rows of norm 1 about the public centre 0, so that no ε is spent on a mean."""
    from diffprivlib.models import PCA

    def fit(rows: Any, epsilon: float, k: int) -> Any:
        # It writes into the rows that it gets.
        return PCA(n_components=k, epsilon=epsilon, data_norm=1.0, centered=True).fit(rows.copy()).components_

    return fit


def _opendp() -> Any:
    """The measurement below the estimator, which would spend a third of ε on a mean that is public here."""
    dp: Any = import_module("opendp.prelude")  # it has types, but hides what it loads late
    dp.enable_features("contrib", "idealized-numerics", "honest-but-curious")

    def fit(rows: Any, epsilon: float, k: int) -> Any:
        n, d = rows.shape
        space = dp.numpy.array2_domain(num_columns=d, size=n, T=float, norm=1.0, p=2, origin=np.zeros(d))
        pca = dp.sklearn.decomposition.make_private_pca(
            space, dp.symmetric_distance(), epsilon, num_components=k
        )
        spent = pca.map(2)  # one replaced record: one removed, one added
        if spent > epsilon * (1 + 1e-9):
            raise ValueError(f"OpenDP would spend {spent} where {epsilon} was asked for")
        return pca(rows).Vt[:k]

    return fit


_LIBRARIES = {"diffprivlib": _diffprivlib, "opendp": _opendp}


def _end_with_the_asker() -> None:
    while os.read(0, 4096):  # a lock of sys.stdin would be in the way when the program ends
        pass
    os._exit(1)


def _say(body: object) -> None:
    sys.stdout.write(json.dumps(body) + "\n")
    sys.stdout.flush()


def main(library: str, file: str, epsilon: str, k: str, count: str) -> None:
    threading.Thread(target=_end_with_the_asker, daemon=True).start()
    fit = _LIBRARIES[library]()
    rows = np.load(file, allow_pickle=False)["rows"]
    _say({"version": version(library)})
    for _ in range(int(count)):
        _say({"components": np.asarray(fit(rows, float(epsilon), int(k)), dtype=float).tolist()})


if __name__ == "__main__":
    main(*sys.argv[1:])
