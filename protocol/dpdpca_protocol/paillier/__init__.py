"""Paillier on gmpy2 in the mathematical format of `phe`: generator 1 + n, ciphertexts mod n².

Stands on errors, identifiers and randomness alone.
"""
