"""Turns records into the exact integer sums of a share."""
