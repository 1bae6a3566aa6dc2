"""All identity keys change in the middle of a study, by the commands: it ends with the old keys, the next one
begins with the new, and whoever had pinned a key follows."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from federation.records import draft, patients, write_csv
from federation.world import Federation, Owner, User, federation_in
from promises import Promise

from dpdpca_runtime.files import private_dir, write_private


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Federation]:
    """A federation of its own: its proxy's key will change."""
    with federation_in(tmp_path / "world") as federation:
        yield federation


MASKED = {"release": "masked"}
BLINDED = {"release": "joint", "blinding": "pairwise", "max_colluding": 1, "min_owners": 3}


def study_of(user: User, owners: list[Owner], title: str, terms: dict[str, Any]) -> str:
    names = [owner.name for owner in owners]
    return user.create_study(draft(title=title, participants=names, closing="when-complete", **terms))


@pytest.mark.nightly
@pytest.mark.parametrize("terms", [MASKED, BLINDED], ids=["masked", "blinded"])
def test_a_study_outlives_the_keys_of_all(
    own: Federation, tmp_path: Path, promise: Promise, terms: dict[str, Any]
) -> None:
    user, owners = own.user, own.owners(3)
    data = [write_csv(tmp_path / f"{seed}.csv", patients(60, seed)) for seed in range(3)]
    first = study_of(user, owners, "Before", terms)
    address = f"{own.url}/{first}"
    owners[0].join(address, data[0])
    old = {owner.home: owner.key().public for owner in owners}
    old_user, old_proxy = user.key().public, own.proxy_key

    # Everybody, one after the other, with a share in, none in, and none begun.
    for owner in owners:
        made = owner.ask("owner", "rotate")
        assert made["ed25519"] == owner.key().public.ed25519.hex() != old[owner.home].ed25519.hex()
    made = user.ask("user", "rotate")
    assert made["former_keys"] == 1
    user.service.restart()
    made = own.proxy_machine.ask("proxy", "rotate")
    assert made["ed25519"] != old_proxy.hex()
    own.proxy.restart()

    # The study keeps the keys that it began with, to its end.
    for owner, file in zip(owners[1:], data[1:], strict=True):
        owner.join(address, file)
    user.wait_state(first, "published", seconds=120)
    for owner in owners:
        status = owner.status(address)
        assert status["included"] is True
        assert owner.ask("owner", "components", address)["records"] == 180
    assert user.ask("user", "verify", first)["verified"]
    assert own.proxy_machine.ask("proxy", "audit", first)["holds"] is True

    # The next one has the new keys: owners follow the data user's and the proxy's by the statements.
    second = study_of(user, owners, "After", terms)
    address = f"{own.url}/{second}"
    sheet = owners[0].ask("owner", "review", address)
    assert sheet["user"]["words"] == made_words(user)
    assert "has changed its key since" in sheet["user"]["known_since"]
    said = owners[1].run("owner", "join", address, "--data", data[1], "--yes")
    assert said.status == 0, said.err
    assert "has a new key, announced by a statement signed with the pinned key" in said.err
    owners[0].join(address, data[0])
    owners[2].join(address, data[2])
    user.wait_state(second, "published", seconds=120)
    assert user.ask("user", "verify", second)["verified"]
    assert own.proxy_machine.ask("proxy", "audit", second)["holds"] is True

    # An old proxy key that is shown again is refused: by the proxy's own home, as after a backup put back,
    home = own.proxy_home
    own.proxy.stop()
    old_key = (home / "former-keys" / "1.pem").read_bytes()
    write_private(home / "identity.pem", old_key)
    refused = own.proxy_machine.run("proxy", "serve")
    assert (refused.status, "was replaced by a newer key" in refused.err) == (1, True), refused.err
    # and by whoever has pinned the new one, where somebody serves with the old one from a home of their own.
    home.rename(home.with_name("put-away"))
    home.with_name(f"{home.name}-generation").rename(home.with_name("put-away-generation"))
    private_dir(home)
    write_private(home / "identity.pem", old_key)
    own.proxy.start()
    again = owners[0].run("owner", "enrol", own.url, "--yes")
    assert again.status == 1
    assert "already replaced" in again.err
    assert old_user != user.key().public
    promise(
        "P20",
        counted="3 owners', a user's and a proxy's key in one study",
        result="it ends; the old key refused",
    )


def made_words(user: User) -> str:
    from dpdpca_runtime.words import fingerprint_words

    return fingerprint_words(user.key().public.ed25519)
