"""One-time pads for sums: every value is hidden by a pad that is added to it modulo 2⁶⁴.

The data user has the pads of all owners as short keys, and the proxy has the padded values. Each alone learns
nothing about a share. This package depends only on errors, randomness, identifiers and sealing.
"""
