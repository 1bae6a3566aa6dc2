"""Mechanisms that need the plaintext matrix: local, for comparison with what a study can run.

Each result carries its guarantee and says what about it is exact, approximate or assumed. Samplers of real
numbers are correct for ideal arithmetic only; where integers would do, integers are used.
"""
