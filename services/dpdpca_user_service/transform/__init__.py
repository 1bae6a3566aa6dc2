"""Computes scores of rows in bounded memory."""
