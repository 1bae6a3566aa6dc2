"""Mechanisms of the literature that need the plaintext, whole pipelines, the audit, and small experiments.

Local and for comparison: nothing here is part of a study, and every result says what is exact, what is
approximate and what is assumed.
"""
