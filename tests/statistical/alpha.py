"""How often the statistical tests may cry wolf: below 10⁻⁶ a run, fixed here once.

Every comparison takes its level from `level()`, which also counts them: a run that makes more comparisons
than were planned for fails, so that the sum over all of them stays below 10⁻⁶ whatever is added.
"""

RUN_ALPHA = 1e-6
COMPARISONS = 400

_used = 0


def level() -> float:
    """The false-alarm rate of one comparison, both sides together."""
    global _used
    _used += 1
    assert _used <= COMPARISONS, "more comparisons than planned for: raise COMPARISONS"
    return RUN_ALPHA / COMPARISONS
