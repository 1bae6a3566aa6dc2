"""Variables DPDPCA_…: one list, which knows all that are used, and a word for each that nothing reads."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dpdpca_cli import main as cli
from dpdpca_cli.variables import check_variables, known_variables, unknown_variables
from dpdpca_protocol.errors import UsageError
from dpdpca_proxy.settings import Settings as ProxySettings
from dpdpca_user_service.settings import Settings as UserSettings

ROOT = Path(__file__).resolve().parents[2]
NAMED = re.compile(r"DPDPCA_[A-Z]+_[A-Z_]*[A-Z]")
MADE_UP = {"DPDPCA_PROXY_SOMETHING", "DPDPCA_TEST_FILE"}


def test_every_variable_of_code_deployment_tests_and_texts_is_known() -> None:
    folders = ("protocol", "services", "clients", "deploy", "docs", "tests", "lab", ".ci")
    files = [
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    ]
    files += [ROOT / "docker-compose.yml", ROOT / "README.md", ROOT / "Makefile", ROOT / "CHANGELOG.md"]
    text = {
        path: path.read_text(encoding="utf-8", errors="ignore")
        for path in files
        if path.name != Path(__file__).name
    }
    used = {name: path for path, content in text.items() for name in NAMED.findall(content)}
    assert len(used) > 25
    assert {name: path for name, path in used.items() if name not in known_variables() | MADE_UP} == {}


def test_the_list_holds_each_setting_of_the_services_and_nothing_is_known_in_vain() -> None:
    for prefix, fields in (
        ("DPDPCA_PROXY_", ProxySettings.model_fields),
        ("DPDPCA_USER_", UserSettings.model_fields),
    ):
        assert {prefix + name.upper() for name in fields} <= known_variables()
    settings = {name for name in known_variables() if name.startswith(("DPDPCA_PROXY_", "DPDPCA_USER_"))}
    assert len(settings) == len(ProxySettings.model_fields) + len(UserSettings.model_fields) + 2
    code = "".join(
        path.read_text() for top in ("protocol", "clients", "tests") for path in (ROOT / top).rglob("*.py")
    )
    for name in known_variables() - settings:
        assert name in code or re.sub("_(OWNER)_", "_{role.upper()}_", name) in code, name


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("DPDPCA_PROXY_GENERATON_FILE", "DPDPCA_PROXY_GENERATION_FILE"),
        ("DPDPCA_PROXY_GENERATIONFILE", "DPDPCA_PROXY_GENERATION_FILE"),
        ("dpdpca_proxy_generation_file", "DPDPCA_PROXY_GENERATION_FILE"),
        ("DPDPCA_PROXI_URL", "DPDPCA_PROXY_URL"),
        ("DPDPCA_PROXY_CA_FILE", "DPDPCA_CA_FILE"),
        ("DPDPCA_OWNER_WITNES", "DPDPCA_OWNER_WITNESS"),
        ("DPDPCA_WITNESS", "DPDPCA_OWNER_WITNESS"),
        ("DPDPCA_CAFILE", "DPDPCA_CA_FILE"),
        ("DPDPCA_USER_PASSPHRASE", "DPDPCA_USER_PASSPHRASE_FILE"),
        ("DPDPCA_USER_TOKENFILE", "DPDPCA_USER_TOKEN_FILE"),
        ("DPDPCA_USER_KEYBITS", "DPDPCA_USER_KEY_BITS"),
    ],
)
def test_a_misspelt_variable_is_refused_by_services_and_told_to_people(wrong: str, right: str) -> None:
    environment = {wrong: "secret value", "DPDPCA_CA_FILE": "ca.pem", "HOME": "/root"}
    for words in (["proxy", "serve"], ["proxy", "invite"], ["user", "serve", "--port", "1"]):
        with pytest.raises(UsageError, match=f"unknown environment variable {wrong}") as refusal:
            check_variables(words, environment)
        assert f"did you mean {right}?" in refusal.value.next_step
    for words in (["owner", "join"], ["user", "study", "list"]):
        warning = check_variables(words, environment)
        assert warning is not None
        assert wrong in warning
        assert right in warning
        assert "secret" not in warning
    for words in (["proxy", "serve", "--help"], ["version"], ["demo"], [], ["owner", "--help"]):
        assert check_variables(words, environment) is None


def test_all_that_is_known_passes() -> None:
    environment = dict.fromkeys(known_variables(), "x") | {"PATH": "/bin", "DPDPCA": "x"}
    assert unknown_variables(environment) == []
    assert check_variables(["proxy", "serve"], environment) is None


def test_settings_of_a_role_that_is_not_installed_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dpdpca_proxy.settings", None)
    assert unknown_variables({"DPDPCA_PROXY_ANYTHING": "x", "DPDPCA_OWNER_ANYTHING": "x"}) == [
        "DPDPCA_OWNER_ANYTHING"
    ]


def test_the_command_line_says_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DPDPCA_PROXY_PROT", "8440")

    def run(*words: str) -> tuple[int | str | None, str]:
        with pytest.raises(SystemExit) as left:
            cli.main(words)
        return left.value.code, capsys.readouterr().err

    status, said = run("owner", "init", "--name", "A", "--home", str(tmp_path / "owner"))
    assert (status, said.count("DPDPCA_PROXY_PROT")) == (0, 1)
    status, said = run("proxy", "init", "--home", str(tmp_path / "proxy"))
    assert (status, said.count("\n")) == (2, 1)
    assert "did you mean DPDPCA_PROXY_PORT?" in said
    assert not (tmp_path / "proxy").exists()


def test_a_client_of_one_role_waits_for_no_other_s_settings(tmp_path: Path) -> None:
    """What every command needs must stay quick: the settings of services load more."""
    program = (
        "import sys; from dpdpca_cli.main import main\n"
        "try: main(['owner', 'status'])\n"
        "except SystemExit: print('dpdpca_proxy.settings' in sys.modules)"
    )
    environment = {"DPDPCA_OWNER_HOME": str(tmp_path), "DPDPCA_CA_FILE": "x", "PATH": os.environ["PATH"]}
    outcome = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert outcome.stdout == "False\n", outcome.stderr
