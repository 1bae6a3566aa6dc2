"""Seconds and bytes over the number of owners: our protocol, and PrivateLocalPCA.

Owners of our protocol work at the same time, so one owner's seconds count. Owners of PrivateLocalPCA wait for
each other, so the seconds of all count.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from dpdpca_lab.benchmarks import padded, phases
from dpdpca_lab.benchmarks.local_pca import pass_on
from dpdpca_lab.benchmarks.measure import Measured as Phase
from dpdpca_lab.benchmarks.measure import seconds_of
from dpdpca_lab.benchmarks.phases import Size
from dpdpca_lab.central.entropy import Floats
from dpdpca_lab.mechanisms.noise import UNIT
from dpdpca_lab.papers.methods import Family, Point, fitted
from dpdpca_lab.tables import encode_table
from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.privacy.mechanisms import Gaussian, Quantity
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.terms import SuiteName

LINES = {
    "masked": ("masked, Paillier", Family.OURS),
    "joint": ("joint, Paillier", Family.OURS),
    "joint-pads": ("joint, pads", Family.OURS),
    "local-chain": ("PrivateLocalPCA, no encryption", Family.OURS),
}
_KEY_BITS, _QUICK_KEY_BITS = 3072, 1024
_BYTES_PER_SECOND = 10e6
_NUMBER_BYTES = 8


@dataclass(frozen=True, slots=True)
class Spent:
    """What one run takes.

    Attributes:
        owners: seconds of one owner, or of all of them if they wait for each other.
        proxy, user: seconds.
        sent: bytes of all messages.
    """

    owners: float
    proxy: float
    user: float
    sent: int

    @property
    def seconds(self) -> float:
        return self.owners + self.proxy + self.user

    @property
    def transmission(self) -> float:
        """Seconds at 10 MB/s, one message after the other."""
        return self.sent / _BYTES_PER_SECOND


def spent_by(line: str, rows: Floats, owners: int, point: Point, quick: bool) -> Spent:
    """Run one line's steps on one core.

    Args:
        line: one of `LINES`.
        rows: (n, d) no longer than 1, split evenly over the owners.
        owners: their number.
        point: ε and δ of PrivateLocalPCA, whose time depends on them a little. Ours has fixed terms.
        quick: with a short key.

    Raises:
        UsageError: there is no such line, or there are fewer rows than owners.
    """
    if line not in LINES:
        raise UsageError("unknown-method", f"there is no line {line!r}; the lines are {', '.join(LINES)}")
    if len(rows) < owners:
        raise UsageError("bad-argument", f"there are {len(rows)} rows for {owners} owners")
    parts = [rows[start::owners] for start in range(owners)]
    sums = seconds_of(lambda: encode_table(parts[0], (-1.0, 1.0), clip_norm=1.0), time.process_time)
    if line == "local-chain":
        return _in_turn(parts, point, sums)
    release = ReleaseKind.MASKED if line == "masked" else ReleaseKind.JOINT
    suite = SuiteName.PADS if line == "joint-pads" else SuiteName.PAILLIER
    bits = _QUICK_KEY_BITS if quick else _KEY_BITS
    return _at_once(Size(rows.shape[1], owners, bits, release, 1, rounds=1, suite=suite), sums)


def _in_turn(parts: list[Floats], point: Point, sums: float) -> Spent:
    d = parts[0].shape[1]
    rank = min(len(parts[0]), d)
    mechanism = fitted(Gaussian, Quantity.SECOND_MOMENT, d, point.epsilon, point.delta)
    assert isinstance(mechanism, Gaussian)
    moments = [part.T @ part * UNIT for part in parts]
    turns = seconds_of(lambda: pass_on(moments, mechanism, rank), time.process_time)
    return Spent(sums + turns, 0.0, 0.0, len(parts) * rank * d * _NUMBER_BYTES)


def _at_once(size: Size, sums: float) -> Spent:
    run = _padded if size.suite is SuiteName.PADS else _encrypted
    encrypt, aggregate, release, decrypt = (
        run(phase, size) for phase in ("encrypt", "aggregate", "release", "decrypt")
    )
    return Spent(
        sums + encrypt.cpu_seconds,
        aggregate.cpu_seconds + release.cpu_seconds,
        decrypt.cpu_seconds,
        aggregate.bytes + release.bytes,
    )


def _padded(phase: str, size: Size) -> Phase:
    return padded.PHASES[phase](size)


def _encrypted(phase: str, size: Size) -> Phase:
    return _ENCRYPTED[phase](size, None)


_ENCRYPTED: dict[str, Callable[[Size, None], Phase]] = {
    "encrypt": phases.bench_encrypt,
    "aggregate": phases.bench_aggregate,
    "release": phases.bench_release,
    "decrypt": phases.bench_decrypt,
}
