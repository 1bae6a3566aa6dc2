"""The data user's side: estimators for Python, the model file, the report, and the commands.

`FederatedPCA` and `DPPCA` are loaded on first use, so that the commands start without loading scikit-learn.

Other packages import only `commands`, `estimator`, `evidence`, `home`, `offline`, `planning`, `results`
and `service_client`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpdpca_user.estimator import FederatedPCA
    from dpdpca_user.local import DPPCA

__all__ = ["DPPCA", "FederatedPCA"]


def __getattr__(name: str) -> Any:
    if name == "FederatedPCA":
        from dpdpca_user.estimator import FederatedPCA

        return FederatedPCA
    if name == "DPPCA":
        from dpdpca_user.local import DPPCA

        return DPPCA
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
