"""Components of a lift or of scores as bytes.

They may be 2·10⁷ numbers, so they are no JSON: integers and doubles at fixed places, then the vectors as
float32. The length depends only on d, on k and on the kind of release: the proxy sees the size of what is
sealed. The axes do not travel, because the manifest has them.
"""

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdpca_protocol.errors import MessageError
from dpdpca_protocol.result.components import Components, EncodedSpace, Floats, Lifted
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_protocol.wire.signing import FORMAT

_HEAD = struct.Struct(">I32sIIBBIIQ")
"""Format, study, d, k, whether deviations and a mean follow, k̂, how many are above the edge, and N."""
_NUMBERS = ("noise_edge", "noise_scale", "total_variance")
_PER_COMPONENT = ("eigenvalues", "noise_edges", "captured", "signals", "overlaps")
_LENGTH_TOLERANCE = 2.0**-16
"""How far the length of a vector of float32 may be from 1."""


def most_bytes(d: int, k: int) -> int:
    """The length of k components of d features, with a mean and deviations."""
    return _HEAD.size + 8 * (len(_NUMBERS) + 1 + k * (len(_PER_COMPONENT) + 3) + d) + 4 * k * d


def encode_wide_components(study: StudyId, components: Components, lifted: Lifted) -> bytes:
    """The only encoding of the components of a lift or of scores of `study`."""
    k, d = components.vectors.shape
    deviations, mean = lifted.deviations, components.mean
    head = _HEAD.pack(
        FORMAT,
        study,
        d,
        k,
        deviations is not None,
        mean is not None,
        lifted.trusted_count,
        lifted.above_count,
        components.count,
    )
    doubles = [
        [getattr(components, name) for name in _NUMBERS],
        [lifted.unseen_variance],
        *(getattr(components, name) for name in _PER_COMPONENT),
        lifted.singular_values,
        lifted.of_span,
        *(values for values in (deviations, mean) if values is not None),
    ]
    reals = np.concatenate([np.asarray(values, dtype="<f8") for values in doubles])
    return b"".join((head, reals.tobytes(), components.vectors.astype("<f4").tobytes()))


def parse_wide_components(untrusted: bytes, study: StudyId, space: EncodedSpace) -> Components:
    """The components in `untrusted`, if they belong to `study`, whose manifest gives the axes `space`.

    Raises:
        MessageError: the components are malformed, belong to another study, or contain a number that is not
            finite or a vector that is not of length 1.
    """
    if len(untrusted) < _HEAD.size:
        raise MessageError("malformed", "the components are cut off")
    stated, named, d, k, with_deviations, with_mean, trusted, above, count = _HEAD.unpack_from(untrusted)
    if stated != FORMAT or named != study:
        raise MessageError(
            "malformed", f"these components belong to another study or are not of format {FORMAT}"
        )
    if d != len(space.names) or not 1 <= k <= d or with_deviations > 1 or with_mean > 1:
        raise MessageError("malformed", f"{len(space.names)} features must have 1 to as many components")
    reals = len(_NUMBERS) + 1 + k * (len(_PER_COMPONENT) + 2 + with_deviations) + d * with_mean
    if len(untrusted) != _HEAD.size + 8 * reals + 4 * k * d:
        raise MessageError(
            "malformed", f"the components do not have the length of {k} components of {d} features"
        )
    if not trusted <= above <= k or not 1 <= count < 2**53:
        raise MessageError("malformed", "the counts of the components are out of range")
    rest = _finite(np.frombuffer(untrusted, "<f8", reals, _HEAD.size).astype(np.float64))
    vectors = _unit_vectors(np.frombuffer(untrusted, "<f4", k * d, _HEAD.size + 8 * reals).reshape(k, d))
    numbers, rest = rest[: len(_NUMBERS) + 1].tolist(), rest[len(_NUMBERS) + 1 :]
    rows, mean = rest[: len(rest) - d * with_mean].reshape(-1, k), rest[len(rest) - d * with_mean :]
    figures: dict[str, Any] = dict(zip(_PER_COMPONENT, rows, strict=False))
    singular_values, of_span = rows[len(_PER_COMPONENT)], rows[len(_PER_COMPONENT) + 1]
    if not np.isin(of_span, (0.0, 1.0)).all():
        raise MessageError("malformed", "a mark of the components is neither 0 nor 1")
    return Components(
        space=space,
        count=count,
        vectors=vectors,
        mean=mean if with_mean else None,
        lifted=Lifted(
            trusted_count=trusted,
            above_count=above,
            singular_values=singular_values,
            deviations=rows[-1] if with_deviations else None,
            of_span=of_span > 0,
            unseen_variance=numbers[-1],
        ),
        **figures,
        **dict(zip(_NUMBERS, numbers, strict=False)),
    )


def _finite(values: Floats) -> Floats:
    if not np.isfinite(values).all():
        raise MessageError("malformed", "the components contain a number that is not finite")
    return values


def _unit_vectors(stored: NDArray[np.float32]) -> Floats:
    """(k, d) float64, row by row, so that no more than one row is copied for the check."""
    vectors = np.empty(stored.shape)
    for row, of_stored in zip(vectors, stored, strict=True):
        row[:] = of_stored
        if not abs(float(_finite(row) @ row) - 1) <= 2 * _LENGTH_TOLERANCE:
            raise MessageError("malformed", "the components contain a vector whose length is not 1")
    return vectors
