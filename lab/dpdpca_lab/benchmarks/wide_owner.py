"""One owner's round for many features, in a process of its own: from the file to the sealed chunks.

python -m dpdpca_lab.benchmarks.wide_owner FOLDER DATA

FOLDER has `manifest.json`, and `features.json` or `components.npy` where the round needs them. The chunks and
the sealed key of the pads are written there. Prints one line of JSON.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np

from dpdpca_lab.benchmarks.measure import cpu_seconds
from dpdpca_owner.records.contribution import read_contribution
from dpdpca_owner.records.source import DataLocation
from dpdpca_owner.share_chunks import repeatable_chunks, share_values
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.records.projection import projection_of
from dpdpca_protocol.terms.feature_list import lists_of
from dpdpca_protocol.terms.signed_manifest import open_manifest
from dpdpca_protocol.wire.identifiers import PartyId
from dpdpca_protocol.wire.sealing import chunk_info, seal

VERSION = 1
_KERNEL_VALUES, _KERNEL_ROUNDS = 1 << 17, 100


def main(folder: Path, data: str) -> None:
    kernel = kernel_nanoseconds()
    began, cpu = time.perf_counter(), cpu_seconds()
    lists = [path.read_bytes() for path in (folder / "features.json",) if path.exists()]
    signed = open_manifest((folder / "manifest.json").read_bytes(), feature_lists=lists_of(*lists))
    opened = time.perf_counter()
    at_components = folder / "components.npy"
    components = np.load(at_components) if at_components.exists() else None
    made = read_contribution(
        DataLocation(data),
        signed.manifest,
        OS_RANDOMNESS.bytes(32),
        spool=folder,
        projection=projection_of(signed.manifest, components),
    )
    summed = time.perf_counter()
    owner = PartyId.of(data.encode())
    begun = signed.suite.begin(owner, VERSION, OS_RANDOMNESS)
    values, sent = share_values(signed, made.sums, made.own_noise()), 0
    for index, chunk in enumerate(repeatable_chunks(signed.suite, begun, values, OS_RANDOMNESS)):
        sealed = seal(chunk, signed.manifest.proxy.kem, chunk_info(signed.study_id, owner, VERSION, index))
        (folder / f"chunk-{index}.bin").write_bytes(sealed)
        sent += len(sealed)
    (folder / "pad.bin").write_bytes(begun.pad or b"")
    ended = time.perf_counter()
    facts = {
        "seconds": ended - began,
        "open_seconds": opened - began,
        "sum_seconds": summed - opened,
        "share_seconds": ended - summed,
        "cpu_seconds": cpu_seconds() - cpu,
        "bytes": sent,
        "peak_memory_bytes": peak_memory(),
        "records": made.report.records,
        "clipped": made.report.clipped,
        "kernel_nanoseconds": kernel,
    }
    print(json.dumps(facts))


def peak_memory() -> int:
    """The largest resident memory of this process so far, in bytes; 0 if the system has no /proc."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def kernel_nanoseconds() -> float:
    """CPU time to make a double of a byte, to scale it and to round it, for one value in the caches.

    It is the unit by which a machine and its load are told from a change of the code.
    """
    content = np.arange(_KERNEL_VALUES, dtype=np.uint8)
    values = np.empty(_KERNEL_VALUES)
    began = time.process_time()
    for _ in range(_KERNEL_ROUNDS):
        np.multiply(content, 1.1, out=values)
        np.rint(values, out=values)
    return 1e9 * (time.process_time() - began) / (_KERNEL_VALUES * _KERNEL_ROUNDS)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
