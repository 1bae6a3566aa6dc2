"""Other Paillier libraries with the same key length, one operation at a time.

These libraries are imported by name on demand: they belong to the environment of the benchmark and not to the
product (phe is GPLv3). phe encrypts one value in each ciphertext, as its users do. pypaillier and HEU get our
packed plaintexts, so that they show only the difference in arithmetic.
"""

import importlib
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dpdpca_protocol.errors import UsageError

PEERS = ("none", "phe", "pypaillier", "heu")


@dataclass(frozen=True, slots=True)
class Peer:
    """Operations of a library. Each call does one operation; None if the library does not offer it.

    Attributes:
        packs: whether one operation is for a packed plaintext and not for a single value.
        threads: whether the library itself uses all cores that it may use.
    """

    name: str
    packs: bool
    threads: bool
    encrypt: Callable[[int], Any]
    add: Callable[[Any, Any], Any]
    decrypt: Callable[[Any], Any]
    release: Callable[[int, int, int, int], Any] | None = None


def load_peer(name: str, bits: int, workers: int) -> Peer | None:
    """The library called `name`, with its own key.

    Args:
        name: one of `PEERS`.
        bits: length of the modulus.
        workers: cores that it may use.

    Raises:
        UsageError: the library is not installed.
    """
    if name == "none":
        return None
    os.environ["RAYON_NUM_THREADS"] = str(workers)
    try:
        return {"phe": _phe, "pypaillier": _pypaillier, "heu": _heu}[name](bits)
    except ImportError as error:
        raise UsageError(
            "no-such-peer",
            f"{name} is not installed here",
            "in the source folder of dpdpca, run: pip install '.[bench]'",
        ) from error


def _phe(bits: int) -> Peer:
    phe = importlib.import_module("phe")
    public, secret = phe.generate_paillier_keypair(n_length=bits)
    two = public.encrypt(2), public.encrypt(-3)

    def release(count: int, mask_i: int, mask_j: int, noise: int) -> Any:
        made = two[0] * count + two[0] * mask_j + two[1] * mask_i + (mask_i * mask_j + noise)
        made.obfuscate()
        return made

    return Peer("phe", False, False, public.encrypt, lambda x, y: x + y, secret.decrypt, release)


def _pypaillier(bits: int) -> Peer:
    library = importlib.import_module("paillier")
    public, secret = library.generate_keypair(bits)
    return Peer(
        "pypaillier",
        True,
        True,
        lambda value: library.encrypt_integers(public, [value >> 32])[0],
        lambda x, y: library.add_many(public, [bytes(x), bytes(y)]),
        lambda x: library.decrypt_exact_many(secret, [bytes(x)]),
    )


def _heu(bits: int) -> Peer:
    library = importlib.import_module("heu.phe")
    kit = library.setup(library.SchemaType.ZPaillier, bits)
    encryptor, evaluator, decryptor = kit.encryptor(), kit.evaluator(), kit.decryptor()
    schema = library.SchemaType.ZPaillier
    return Peer(
        "heu",
        True,
        False,
        lambda value: encryptor.encrypt(library.Plaintext(schema, value >> 32)),
        evaluator.add,
        decryptor.decrypt,
    )


def random_plain(bits: int) -> int:
    """A random integer about as long as the longest packed plaintext."""
    return secrets.randbits(bits - 3)
