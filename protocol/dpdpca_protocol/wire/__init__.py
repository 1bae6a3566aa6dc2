"""Secure messages: the canonical encoding, identifiers, signatures, sealed boxes and signed HTTP requests."""
