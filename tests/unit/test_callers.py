"""Every function, class and method of the product is reached from something that the product runs.

What only tests call is a copy of what runs, and the tests cover the copy. The list below names what is called
from outside; each entry has its reason.
"""

from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from callers import Product

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("protocol", "runtime", "services", "clients", "lab")

CALLED_FROM_OUTSIDE = {
    # Python's public interface
    "dpdpca_user:__getattr__": "loads the estimators when they are named",
    "dpdpca_user.local:DPPCA": "estimator",
    "dpdpca_user.local:DPPCA.fit": "estimator",
    "dpdpca_user.estimator:FederatedPCA": "estimator",
    "dpdpca_user.estimator:FederatedPCA.fit": "estimator",
    "dpdpca_user.estimator:FederatedPCA.from_model": "estimator",
    "dpdpca_user.estimator:NoisyPCA.transform": "estimator",
    "dpdpca_user.estimator:FederatedPCA.from_models": "estimator",
    "dpdpca_user.estimator:NoisyPCA.get_covariance": "estimator",
    "dpdpca_user.estimator:NoisyPCA.get_covariance_std": "estimator",
    "dpdpca_user.estimator:NoisyPCA.get_correlation": "estimator",
    "dpdpca_user.estimator:NoisyPCA.get_correlation_std": "estimator",
    "dpdpca_user.estimator:NoisyPCA.score_t2": "estimator",
    "dpdpca_user.estimator:NoisyPCA.score_spe": "estimator",
    "dpdpca_user.estimator:NoisyPCA.outlier_scores_": "estimator",
    "dpdpca_user.estimator:NoisyPCA.inverse_transform": "estimator",
    "dpdpca_user.estimator:NoisyPCA._n_features_out": "scikit-learn asks for it",
    "dpdpca_interop:*": "an owner's own program encrypts with phe",
    "dpdpca_protocol.release.ciphers:Paillier": "the reference under encryption",
    # Research that docs/mechanisms.md describes, for notebooks
    "dpdpca_lab.audit.mechanisms:MechanismRelease": "the audit of a mechanism without a study",
    "dpdpca_lab.central.asymptotic:*": "mechanism of the literature",
    "dpdpca_lab.central.bounds:*": "bounds of the literature",
    "dpdpca_lab.mechanisms.modsulq:modsulq_root": "mechanism of the literature",
    "dpdpca_lab.mechanisms.visibility:*": "thresholds of the literature",
    "dpdpca_lab.papers.tables:from_csv": "the page on the papers is written from the results",
    "dpdpca_lab.scale.model:*": "docs/scale.md is written from the model",
    "dpdpca_lab.scale.walls:*": "docs/scale.md is written from the model",
    "dpdpca_lab.pipelines.*:*": "pipelines of the literature",
    # By name
    "dpdpca_owner.page.studies:StudyCard.*": "the page's templates show it",
    "dpdpca_proxy.page.overview:Study.more_owners": "the page's template shows it",
    "dpdpca_owner.page.changes:Change.is_empty": "the page's templates show it",
    "dpdpca_owner.accounts.ledger:Ledger._add_*": "`Ledger.add` takes the kind that an entry names",
    "dpdpca_runtime.workers:work": "a worker process is started with it",
    "*.migrations.versions.*:upgrade": "Alembic calls it",
}


@pytest.fixture(scope="module")
def product() -> Product:
    return Product(ROOT / folder for folder in FOLDERS)


def named_by(pattern: str, keys: list[str]) -> list[str]:
    return [key for key in keys if fnmatchcase(key, pattern)]


def test_everything_is_reached_from_what_the_product_runs(product: Product) -> None:
    everything = list(product.definitions)
    outside = [key for pattern in CALLED_FROM_OUTSIDE for key in named_by(pattern, everything)]
    assert product.unreached(outside) == []


def test_the_list_names_only_what_nothing_reaches(product: Product) -> None:
    unreached = product.unreached()
    assert not [pattern for pattern in CALLED_FROM_OUTSIDE if not named_by(pattern, unreached)]


PROGRAM = """
from called.used import Kept, kept as renamed
from called import used

def main():
    renamed()
    used.asked()
    Kept().method()

if __name__ == "__main__":
    main()
"""
USED = """
from argparse import Action

def kept():
    return inner()

def inner():
    return 1

def asked():
    def within():
        return 2
    return within()

def copy():
    return copy_of_copy()

def copy_of_copy():
    return copy()

class Kept(Action):
    def __init__(self):
        self.value = 1

    def method(self):
        return self.value

    def format_usage(self):
        return "argparse calls this"

    def only_tested(self):
        return 2

class Copy:
    def method(self):
        return 3
"""


def test_what_only_itself_calls_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "called").mkdir()
    (tmp_path / "called" / "__init__.py").touch()
    (tmp_path / "called" / "program.py").write_text(PROGRAM)
    (tmp_path / "called" / "used.py").write_text(USED)
    monkeypatch.syspath_prepend(tmp_path)  # what a class overrides is asked of the class itself
    product = Product([tmp_path])
    names = ("Copy", "Copy.method", "Kept.only_tested", "copy", "copy_of_copy")
    assert product.unreached() == [f"called.used:{name}" for name in names]
    assert product.unreached(["called.used:copy"]) == [f"called.used:{name}" for name in names[:3]]


def test_what_a_framework_calls_is_no_copy(tmp_path: Path) -> None:
    (tmp_path / "commands.py").write_text(
        "app = App()\n\n@app.command()\ndef join():\n    return helper()\n\n"
        "def helper():\n    return 1\n\n@cached\ndef forgotten():\n    return 2\n\n"
        "class Settings(Base):\n    @field_validator('url')\n    def check(self):\n        return 3\n\n"
        "Settings()\n"
    )
    assert Product([tmp_path]).unreached() == ["commands:forgotten"]
