"""A cohort that grows: a study, an extension by newcomers, and one result for both."""

import json
from pathlib import Path

import numpy as np
from federation.processes import wait_for
from federation.records import draft, encode, patients, write_csv
from federation.world import Federation

SIZES = (900, 700, 800, 600, 500, 400)
KNOWN, NEW = slice(0, 3), slice(3, 6)


def test_newcomers_extend_a_study_and_both_make_one_result(federation: Federation, tmp_path: Path) -> None:
    user, owners = federation.user, federation.owners(6)
    records = [patients(size, seed) for seed, size in enumerate(SIZES, start=170)]
    data = [write_csv(tmp_path / f"{index}.csv", part) for index, part in enumerate(records)]
    study = user.create_study(
        draft(participants=[owner.name for owner in owners[KNOWN]], closing="when-complete", clip_norm="2")
    )
    for owner, path in zip(owners[KNOWN], data[KNOWN], strict=True):
        owner.join(f"{federation.url}/{study}", path)
    user.wait_state(study, "published")

    # One hospital takes part again, with other patients.
    newcomers = [owners[0], *owners[NEW]]
    others = write_csv(tmp_path / "others.csv", patients(300, 199))
    named = [word for owner in newcomers for word in ("--participant", owner.name)]
    made = user.ask("user", "study", "extend", study, "--records", "4000", *named)
    extension = str(wait_for(lambda: user.study(made["id"])["study"], "the extension has an id", 60.0, 0.3))
    user.wait_state(extension, "open")
    address = f"{federation.url}/{extension}"
    sheet = owners[0].ask("owner", "review", address, "--data", data[0])
    assert sheet["extends"] == study
    refused = owners[0].run("owner", "join", address, "--data", data[0], "--yes")
    assert (refused.status, "name another data set with --dataset" in refused.err) == (1, True)
    owners[0].join(address, others, "--dataset", "later patients")
    for owner, path in zip(owners[NEW], data[NEW], strict=True):
        owner.join(address, path)
    user.wait_state(extension, "published")

    spent = {each["name"]: each for each in owners[0].ask("owner", "ledger")["data_sets"]}
    assert len(spent) == 2
    assert [each["study"] for each in spent["later patients"]["studies"]] == [extension]

    table, out = tmp_path / "covariance.npz", tmp_path / "both.npz"
    both = user.ask(*("user", "result", study, "--combine", extension, "--covariance", table, "--out", out))
    everybody = [*records, patients(300, 199)]
    rows = np.array([encode(record) for part in everybody for record in part]) / 2**10
    assert both["records"] == len(rows) == sum(SIZES) + 300
    vectors = np.linalg.eigh(np.cov(rows, rowvar=False))[1]
    assert (np.array(both["components"][0]) @ vectors[:, -1]) ** 2 > 0.95
    with np.load(table, allow_pickle=False) as arrays:
        values, deviations = arrays["values"], arrays["deviations"]
    with np.load(out, allow_pickle=False) as arrays:
        scale = arrays["scale"]
        told = json.loads(arrays["metadata"].tobytes())
    assert told["studies"] == [study, extension]
    truth = np.cov(rows, rowvar=False) * np.outer(scale, scale)
    assert (np.abs(values - truth) < 8 * deviations + 0.15 * np.abs(truth).max()).all()
