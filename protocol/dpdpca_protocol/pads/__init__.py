"""Sums of hidden values: each value has a pad added to it, modulo 2⁶⁴.

A short key gives all pads of one owner. Whoever has only such keys, or only the padded values, learns nothing
about the values. This package depends only on errors, randomness, identifiers and sealing.
"""
