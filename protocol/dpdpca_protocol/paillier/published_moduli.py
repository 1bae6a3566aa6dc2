"""Moduli whose factors anyone can look up; tests/vectors/generate.py writes this file."""

PUBLISHED_MODULI: frozenset[str] = frozenset()
"""SHA-256 of n big-endian, in hex."""
