"""Mechanisms that need the plaintext matrix. Such mechanisms run locally, for comparison with what a study
can do.

Each result states its guarantee, and what about it is exact, approximate or assumed. Samplers of real numbers
are correct only for ideal arithmetic. Integers are used wherever possible.
"""
