"""Components as bytes.

The data user seals the components to each owner and keeps a copy. The format is canonical JSON. Arrays are
the hex of little-endian float64, so that every party has the same numbers. The components of a lift or of
scores have another form, see `wide_publication`.
"""

from typing import Any

import numpy as np

from dpdpca_protocol.errors import MessageError
from dpdpca_protocol.result.components import Components, EncodedSpace, Floats
from dpdpca_protocol.result.wide_publication import encode_wide_components, parse_wide_components
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.wire.canonical import canonical_json, parse_canonical
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_protocol.wire.signing import FORMAT, check_members, hex_bytes

_PER_COMPONENT = ("captured", "eigenvalues", "noise_edges", "overlaps", "signals")
_NUMBERS = ("noise_edge", "noise_scale", "total_variance")
_MAX_FEATURES = 1 << 20


def encode_components(study: StudyId, components: Components) -> bytes:
    """The only encoding of the `components` of `study`."""
    if components.lifted is not None:
        return encode_wide_components(study, components, components.lifted)
    space = components.space
    body: dict[str, Any] = {
        "centre": _hex(space.centre),
        "common": space.common,
        "count": components.count,
        "format": FORMAT,
        "half_range": _hex(space.half_range),
        "names": list(space.names),
        "study": study.hex(),
        "vectors": _hex(components.vectors),
    }
    body |= {name: _hex(getattr(components, name)) for name in _PER_COMPONENT}
    body |= {name: _hex(np.array([getattr(components, name)])) for name in _NUMBERS}
    if components.mean is not None:
        body["mean"] = _hex(components.mean)
    return canonical_json(body)


def read_components(untrusted: bytes, manifest: Manifest) -> Components:
    """The components in `untrusted`, in the form that the manifest's release has.

    Raises:
        MessageError: the components are malformed, belong to another study, or contain a number that is not
            finite.
    """
    if manifest.rules.is_wide:
        return parse_wide_components(untrusted, manifest.study_id, EncodedSpace.of(manifest))
    return parse_components(untrusted, manifest.study_id)


def parse_components(untrusted: bytes, study: StudyId) -> Components:
    """Like `read_components`, for those of a full matrix."""
    body = parse_canonical(untrusted)
    check_members(
        body,
        *("centre", "common", "count", "half_range", "names", "study", "vectors"),
        *_PER_COMPONENT,
        *_NUMBERS,
        *(("mean",) if "mean" in body else ()),
    )
    if StudyId.parse(body["study"]) != study:
        raise MessageError("malformed", "these components belong to another study")
    names = body["names"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise MessageError("malformed", "names must be a list of strings")
    if not 1 <= len(names) <= _MAX_FEATURES or type(body["common"]) is not bool:
        raise MessageError(
            "malformed", "components must have 1 to 2²⁰ names, and common must be true or false"
        )
    d = len(names)
    k = len(body["eigenvalues"]) // 16 if isinstance(body["eigenvalues"], str) else 0
    if not 1 <= k <= d:
        raise MessageError("malformed", f"{d} features must have 1 to {d} components")
    half_range = _floats(body, "half_range", d)
    if not (half_range > 0).all():
        raise MessageError("malformed", "all half-ranges must be positive")
    arrays: dict[str, Any] = {name: _floats(body, name, k) for name in _PER_COMPONENT}
    numbers: dict[str, Any] = {name: float(_floats(body, name, 1)[0]) for name in _NUMBERS}
    return Components(
        space=EncodedSpace(
            names=tuple(names),
            centre=_floats(body, "centre", d),
            half_range=half_range,
            common=body["common"],
        ),
        count=_positive(body, "count"),
        vectors=_floats(body, "vectors", k * d).reshape(k, d),
        mean=_floats(body, "mean", d) if "mean" in body else None,
        **arrays,
        **numbers,
    )


def _hex(values: Floats) -> str:
    return np.ascontiguousarray(values, dtype="<f8").tobytes().hex()


def _floats(body: dict[str, Any], name: str, count: int) -> Floats:
    values = np.frombuffer(hex_bytes(body[name], 8 * count, name), dtype="<f8").astype(np.float64)
    if not np.isfinite(values).all():
        raise MessageError("malformed", f"{name} contains a number that is not finite")
    return values


def _positive(body: dict[str, Any], name: str) -> int:
    value = body[name]
    if type(value) is not int or value < 1:
        raise MessageError("malformed", f"{name} must be a whole number of 1 or more")
    return value
