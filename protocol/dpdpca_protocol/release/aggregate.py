"""Round 2: for every ciphertext position, the product mod n² over the cohort."""

from collections.abc import Iterable, Sequence

from gmpy2 import mpz

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.paillier.keys import PublicKey


def multiply_shares(shares: Iterable[Sequence[mpz]], public: PublicKey) -> list[mpz]:
    """The products over all owners, position by position.

    Args:
        shares: one sequence for each owner, all of the same length. Each sequence is read once, and only one
            sequence is in memory at a time.

    Raises:
        UsageError: there is no share, or shares have different lengths.
    """
    modulus = public.ciphertext_modulus
    product: list[mpz] | None = None
    for share in shares:
        if product is None:
            product = list(share)
        elif len(share) != len(product):
            raise UsageError(
                "wrong-shape", f"a share has {len(share)} ciphertexts, but another has {len(product)}"
            )
        else:
            product = [a * b % modulus for a, b in zip(product, share, strict=True)]
    if product is None:
        raise UsageError("wrong-shape", "there is no share to multiply")
    return product
