"""Research: mechanisms of the literature that need the plaintext, pipelines, the audit, and small
experiments.

All this code runs locally, for comparison. Nothing here is part of a study. Every result says what is exact,
what is approximate, and what is assumed.

Other packages import nothing from it.
"""
