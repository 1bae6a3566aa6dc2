"""A program that is missing skips a test, except where everything was installed."""

import pytest
from installed import MUST_RUN, program


def test_a_missing_program_skips_or_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MUST_RUN, raising=False)
    with pytest.raises(pytest.skip.Exception, match="is not installed"):
        program("no-such-program", "nowhere")
    monkeypatch.setenv(MUST_RUN, "1")
    with pytest.raises(pytest.fail.Exception, match="is not installed"):
        program("no-such-program", "nowhere")
    assert program("env", "coreutils").endswith("/env")
