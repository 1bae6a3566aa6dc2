"""The tables of `dpdpca user result`: covariances, correlations and means as files."""

from collections.abc import Callable, Mapping
from pathlib import Path

from dpdpca_user.results.moment_files import save_moments
from dpdpca_user.results.moments import MeanTable, Moments, MomentTable


def write_tables(
    moments: Moments, wanted: Mapping[str, Path], *, remove_noise: bool, positive: bool
) -> list[str]:
    """Write tables of a result, and say what is where.

    Args:
        moments: of the result.
        wanted: files by the name of their table: covariance, correlation or mean.
        remove_noise, positive: as for `Moments.covariance`.

    Raises:
        ConflictError: the release has no means, or too few components are known. Nothing is written then.
    """
    make: dict[str, Callable[[], MomentTable | MeanTable]] = {
        "covariance": lambda: moments.covariance(remove_noise, positive),
        "correlation": lambda: moments.correlation(remove_noise, positive),
        "mean": moments.means,
    }
    tables = {name: make[name]() for name in wanted}
    said = []
    for name, path in wanted.items():
        table = tables[name]
        save_moments(path, table)
        said.append(f"the {name}s are in {path}{_about(table) if isinstance(table, MomentTable) else ''}")
    return said


def _about(table: MomentTable) -> str:
    hidden, all_ = table.hidden_count, len(table.names) * (len(table.names) + 1) // 2
    corrected = "" if table.factor == 1 else f"; multiplied by {table.factor:.3g}, to allow for clipping"
    if table.present < 1:
        corrected += f"; corrected for missing values ({table.present:.0%} of the coordinates have one)"
    return f"; {hidden} of {all_} figures cannot be told from noise{corrected}"
