"""Measures every phase of a study, and compares it with its bare multiplications and with other libraries.

Every figure is a ratio within one run: the things to compare are measured in turn, and medians are used.
"""
