"""Rules for the policy of an owner, as a person writes them."""


def rule_for(user: str, **changes: object) -> str:
    """A rule for one data user.

    Args:
        user: the line that names it, such as `words = "…"`.
        changes: TOML values in the place of the usual ones; None leaves a member out.
    """
    facts: dict[str, object] = {
        "name": "'weekly'",
        "source": "'patients'",
        "max_epsilon": 4,
        "max_delta": "1e-4",
        "month_epsilon": 4,
        "month_delta": "1e-4",
    }
    lines = [f"{name} = {value}" for name, value in (facts | changes).items() if value is not None]
    return "\n".join(["[[rule]]", *lines, "[[rule.user]]", "name = 'Institute'", user, ""])


def key_line(key: bytes) -> str:
    """Names a data user by its raw Ed25519 key."""
    return f"ed25519 = '{key.hex()}'"
