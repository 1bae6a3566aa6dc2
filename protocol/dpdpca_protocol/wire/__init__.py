"""Bytes that can be trusted: one encoding, identifiers, signatures, sealed boxes, what HTTP messages sign."""
