"""Accounting: what studies have cost an owner's records, and what is left of the budget."""
