"""What is compared with ours, and what each claims. The page on the papers shows it."""

import os
from dataclasses import dataclass
from pathlib import Path

from dpdpca_protocol.errors import UsageError

_CHECKOUT = Path(__file__).resolve().parents[3]
_PROGRAM = Path(__file__).with_name("foreign.py")
MAKE = "make peers"
"""Installs all of them."""


@dataclass(frozen=True, slots=True)
class Library:
    """A library that runs in an environment of its own.

    Attributes:
        package: as the package index knows it; its lock is `requirements/peers-PACKAGE.txt`.
        label: for legends, without the version.
        guarantee: for tables.
        version: changes with every change of how we call it.
    """

    package: str
    label: str
    guarantee: str
    version: int = 1

    @property
    def environment(self) -> Path:
        return _CHECKOUT / f".venv-peers-{self.package}"

    @property
    def is_installed(self) -> bool:
        return (self.environment / "stamp").is_file()

    @property
    def program(self) -> tuple[str | Path, ...]:
        """How to start `foreign.py` for it."""
        python = self.environment.joinpath(
            *(("Scripts", "python.exe") if os.name == "nt" else ("bin", "python"))
        )
        return python, "-E", "-s", _PROGRAM, self.package


def library(method: str) -> Library:
    """The library of this method of an experiment.

    Raises:
        UsageError: there is none.
    """
    if method not in LIBRARIES:
        raise UsageError(
            "unknown-method", f"there is no library {method!r}; the libraries are {', '.join(LIBRARIES)}"
        )
    return LIBRARIES[method]


_NOT_HELD = "pure ε claimed; not held, see Peers"
LIBRARIES = {
    "diffprivlib": Library("diffprivlib", "diffprivlib", _NOT_HELD),
    "opendp": Library("opendp", "OpenDP", _NOT_HELD),
}


@dataclass(frozen=True, slots=True)
class Peer:
    """What others offer, for people.

    Attributes:
        package: its name in `LIBRARIES`; empty if none is run.
        relation: which data sets are neighbours.
        claim: about privacy.
        ran: how we compare with it.
        known: what is known about it. Each text says whether we measured, computed or read it.
    """

    name: str
    relation: str
    claim: str
    ran: str
    known: tuple[str, ...] = ()
    package: str = ""


_ACCEPTANCE = (
    "Its sampler of eigenvectors accepts with the factor (uᵀΩu)^(d/2) in the denominator, where the source"
    " that it cites has it in the numerator. So it draws from another law. Measured at d = 4, with one"
    " eigenvalue of 12 and ε = 4: the mean of u₁² over 20,000 draws is 0.974 ± 0.0002. That of the law with"
    " the factor as it stands is 0.973, and that of the right law 0.868"
)
PEERS = (
    Peer(
        "diffprivlib, `models.PCA`",
        "one replaced record, n public",
        "pure ε",
        "`centered=True, data_norm=1`, so that the whole ε goes to eigenvectors and eigenvalues",
        (
            _ACCEPTANCE,
            "Computed for that law, at d = 64, ε = 1 and 1,803 rows on two axes: one replaced record moves"
            " the logarithm of the density of one draw by up to 20 times the draw's ε. Under the right law,"
            " it is 0.27 times",
            "The same factor makes it accept almost nothing at larger ε, so that a fit may take for ever"
            " (measured: see the table)",
            "Without bounds or a norm, it takes them from the data and warns (measured)",
            "Version 0.6.6 does not import under scikit-learn 1.9 (measured); the lock has 1.5",
        ),
        "diffprivlib",
    ),
    Peer(
        "OpenDP, `sklearn.decomposition`",
        "symmetric distance, n public: one replaced record is a distance of 2",
        "pure ε, in idealised arithmetic",
        "`make_private_pca` about the public centre 0, with `num_components=k`; its `map(2)` is the ε that it"
        " got, and each fit checks this",
        (
            "`PCA(epsilon=1)` spends 2 for one replaced record: its `measurement().map(2)` is 2 (measured)."
            " Who uses this class must give it ε/2",
            f"{_ACCEPTANCE} (the same numbers as those of diffprivlib)",
        ),
        "opendp",
    ),
    Peer(
        "SeparateCov (Dong, Liang, Yi 2022)",
        "one replaced record, n public, rows of norm at most r",
        "ρ-zCDP; noise in floats",
        "lines of our own: leading eigenvectors of R with independent noise on its triangle at ρ/2",
        (
            "The other half of ρ pays for eigenvalues, which components do not need (derived). So it is our"
            " Gaussian at half the ρ, with twice its variance off the diagonal besides",
            "Where δ > 0, the Gaussian in its authors' code uses the classical formula at"
            " ε = ρ + 2√(ρ ln(1/δ)), also above ε = 1, where that formula has no proof (read)",
        ),
    ),
    Peer(
        "AdaptiveCov (Dong, Liang, Yi 2022)",
        "one replaced record, n public, rows of norm at most r",
        "ρ-zCDP; noise in floats",
        "lines of our own: a quarter of ρ finds a clip norm among powers of two, by the sparse vector"
        " technique. The rest is Gaussian noise on R of the clipped rows",
        (
            "The original takes GaussCov or SeparateCov after the search. We always take GaussCov, because"
            " half of SeparateCov's ρ is for eigenvalues (derived)",
            "A study of ours finds its clip norm in a pre-study, which has an ε of its own",
        ),
    ),
    Peer(
        "k-DP-PCA (Düngler, Sanyal 2025)",
        "not verified",
        "(ε, δ) for independent random matrices",
        "not run: only its spiked data. Its curve is in its paper",
        ("Noise follows the spread of the records, not their largest norm (read)",),
    ),
    Peer(
        "scikit-learn, `decomposition.PCA`",
        "none",
        "none",
        "the line `without noise`: the same subspace",
    ),
)
