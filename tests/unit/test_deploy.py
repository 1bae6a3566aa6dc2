"""The files in deploy/ against the program that they run."""

import re
from pathlib import Path

from dpdpca_proxy.settings import Settings

DEPLOY = Path(__file__).parents[2] / "deploy"


def test_the_unit_forbids_no_call_that_the_proxy_makes() -> None:
    """The worker process lowers its priority (setpriority) and the server raises its file limit."""
    unit = (DEPLOY / "dpdpca-proxy.service").read_text()
    forbidden = set(" ".join(re.findall(r"^SystemCallFilter=~(.*)$", unit, re.MULTILINE)).split())
    assert forbidden
    assert not forbidden & {"@resources", "@process", "setpriority", "setrlimit", "prlimit64"}


def test_the_reverse_proxy_speaks_to_where_the_proxy_listens(tmp_path: Path) -> None:
    targets = re.findall(r"proxy_pass http://(\S+);", (DEPLOY / "nginx.example.conf").read_text())
    settings = Settings(home=tmp_path)
    assert set(targets) == {f"{settings.host}:{settings.port}"}
