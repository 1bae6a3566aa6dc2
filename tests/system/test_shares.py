"""Shares that are taken back and replaced: what counts is the last word of each owner before closing."""

from pathlib import Path

import pytest
from federation.bare_user import BareUser
from federation.checks import assert_release
from federation.records import add_up, patients, write_csv, write_parquet
from federation.world import Federation


@pytest.mark.parametrize("release", ["joint", "masked"])
def test_strong_privacy_brings_the_noise_that_it_promises(
    federation: Federation, tmp_path: Path, release: str
) -> None:
    """At ε = 0.1 the noise buries 40 records; what the proxy draws is neither less nor more than it says."""
    user = BareUser(federation, f"Careful Institute {release}")
    (owner,) = federation.owners(1)
    study = user.open_study([owner], release=release, epsilon="0.1", min_owners=1, closing="when-complete")
    records = patients(40, seed=5)
    owner.join(study.address, write_csv(tmp_path / "few.csv", records))
    study.wait_state("closed", "released")
    assert_release(study.open_release(), add_up(records), study.manifest.figures)


@pytest.mark.nightly
@pytest.mark.parametrize("release", ["masked", "joint"])
def test_release_is_of_the_last_share_of_each_owner_that_is_in(
    federation: Federation, tmp_path: Path, release: str
) -> None:
    user = BareUser(federation, f"Institute {release}")
    owners = federation.owners(4)
    stays, replaces, leaves, returns = owners
    study = user.open_study(owners, release=release, min_owners=3)
    records = [patients(count, seed) for seed, count in enumerate((300, 200, 150, 100))]
    files = [write_csv(tmp_path / f"{index}.csv", part) for index, part in enumerate(records)]
    for owner, file, part in zip(owners, files, records, strict=True):
        joined = owner.join(study.address, file)
        assert (joined["version"], joined["records"], joined["already"]) == (1, len(part), False)

    again = stays.join(study.address, files[0])
    assert (again["version"], again["already"], again["sent_chunks"]) == (1, True, 0)
    corrected = patients(220, seed=17)
    replaced = replaces.join(study.address, write_parquet(tmp_path / "corrected.parquet", corrected))
    assert (replaced["version"], replaced["already"]) == (2, False)
    taken_back = leaves.ask("owner", "withdraw", study.address, "--yes")
    assert (taken_back["version"], taken_back["already"]) == (2, False)
    assert leaves.ask("owner", "withdraw", study.address, "--yes")["already"] is True
    returns.ask("owner", "withdraw", study.address, "--yes")
    assert returns.join(study.address, files[3])["version"] == 3
    assert user.client.study(study.id).owners_complete == 3

    study.close()
    noisy = study.open_release()

    expected = add_up(records[0]) + add_up(corrected) + add_up(records[3])
    assert_release(noisy, expected, study.manifest.figures)
    cohort = {member.owner.hex(): member.version for member in user.client.study(study.id).cohort_members}
    assert cohort == {
        owner.key().public.party_id.hex(): version
        for owner, version in ((stays, 1), (replaces, 2), (returns, 3))
    }
    assert [owner.status(study.address)["included"] for owner in owners] == [True, True, False, True]
    late = stays.run("owner", "withdraw", study.address, "--yes")
    assert late.status == 1
    assert late.err.startswith("dpdpca: the study is ")
