"""Measurements of every phase of a study beside the floor of its multiplications and beside other libraries.

Every figure is a ratio within one run: what is compared is measured in turns, and medians are taken.
"""
