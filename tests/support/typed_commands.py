"""`dpdpca user …` as people type it, in this process."""

from collections.abc import Callable

import pytest

from dpdpca_cli.main import main

Run = Callable[..., tuple[int, str, str]]
"""Runs a command: its exit status, and what it printed and said."""


def typed_by_user(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["user", *words])
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run
