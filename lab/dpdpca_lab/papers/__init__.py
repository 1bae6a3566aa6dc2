"""Experiments of the papers: each is one declarative file, and one runner runs them all."""
