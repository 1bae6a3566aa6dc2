"""Where state lives: option before environment before the configuration folder."""

from pathlib import Path

from dpdpca_runtime.home_folder import home_folder, witness_folder


def test_the_option_wins_then_the_environment_then_the_configuration_folder() -> None:
    environment = {"DPDPCA_OWNER_HOME": "/srv/owner", "DPDPCA_PROXY_HOME": ""}
    assert home_folder("owner", Path("/elsewhere"), environment) == Path("/elsewhere")
    assert home_folder("owner", None, environment) == Path("/srv/owner")
    assert home_folder("proxy", None, environment).parts[-2:] == ("dpdpca", "proxy")
    assert home_folder("user", None, {}).parts[-2:] == ("dpdpca", "user")


def test_the_witness_of_a_ledger_is_not_in_the_owner_s_folder() -> None:
    assert witness_folder({"DPDPCA_OWNER_WITNESS": "/elsewhere"}) == Path("/elsewhere")
    home = home_folder("owner", None, {})
    assert home not in [witness_folder({}), *witness_folder({}).parents]
    assert witness_folder({"DPDPCA_OWNER_WITNESS": ""}) == witness_folder({})
