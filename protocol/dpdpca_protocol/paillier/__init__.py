"""The Paillier cryptosystem on gmpy2, in the mathematical format of `phe`.

The generator is 1 + n, and ciphertexts are mod n². This package depends only on errors, identifiers and
randomness.
"""
