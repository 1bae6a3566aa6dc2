"""Rows in, scores out, in bounded memory."""
