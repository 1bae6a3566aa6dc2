"""No image of a process that holds keys is written to a disk when it dies."""

from dpdpca_runtime.system import optional_module

_resource = optional_module(
    "resource"
)  # Windows writes no images unless its administrator has asked for them


def forbid_core_dumps() -> None:
    """For this process and all that it starts."""
    if _resource is not None:
        _resource.setrlimit(_resource.RLIMIT_CORE, (0, 0))
