"""A whole chain for many features over HTTP, while every role is killed with -9 between its steps.

Three owners have the genotypes of the same 5,000 sites in a PLINK file, in a sparse matrix and in a Parquet
file. `study run --auto` asks them for norms, a sketch, a lift and scores.
"""

import csv
import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from federation.agent import Agent
from federation.bare_user import BareUser, opened_blocks, stored_secret
from federation.checks import assert_blocks
from federation.processes import wait_for
from federation.relay import Relay, relaying
from federation.world import Federation, Owner, User, federation_in
from genotype_files import Genotypes, write_bed, write_parquet, write_sparse
from numpy.typing import NDArray
from promises import Promise
from scipy.sparse.linalg import svds

from dpdpca_protocol.records.encoding import RecordEncoder
from dpdpca_protocol.records.projection import projection_of
from dpdpca_protocol.reference import owner_sums
from dpdpca_protocol.terms.feature_list import lists_of
from dpdpca_protocol.terms.signed_manifest import SignedManifest, open_manifest
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_protocol.wire.signing import verify_statement
from dpdpca_user.results.model import Model

SITES, COLUMNS, ROWS = 5_000, 3, 256
PEOPLE = (600, 500, 400)
SPREADS = (0.17, 0.15, 0.13)
"""How far people differ along three directions, which then hold some 5, 4 and 3 % of all variance."""
LOST_AT_MOST = 0.15
"""Of a squared cosine. The noise takes 7 % of the third component's, by 2dk/(ρN²s), and the sketch less than
1 %. Both are sums over thousands of entries, so they vary by a few hundredths of themselves."""

ROUNDS = ("pre-study", "sketch", "lift", "scores")
Floats = NDArray[np.float64]
Kills = Mapping[str, tuple[str, ...]]

BY_DAY: Kills = {
    "pre-study": ("client", "service"),
    "sketch": ("proxy",),
    "lift": ("owner", "agent"),
    "scores": ("client",),
}
"""Who is killed after all owners have joined a round; an owner is killed in the middle of its upload."""
BY_NIGHT: Kills = dict.fromkeys(ROUNDS, ("owner", "client", "agent", "proxy", "service"))


@dataclass
class Scene:
    """The parties, what the owners have, and what has happened."""

    federation: Federation
    relay: Relay
    owners: list[Owner]
    data: list[Path]
    agent: Agent
    draft: Path
    client: subprocess.Popen[bytes]
    deaths: Counter[str] = field(default_factory=Counter)

    @property
    def user(self) -> User:
        return self.federation.user

    def url_of(self, owner: Owner) -> str:
        """Where the owner knows the proxy: the first one goes through the relay."""
        return self.federation.relay_url if owner is self.owners[0] else self.federation.url

    def open_round(self, number: int) -> str:
        """The id of the round of this number, once it is open."""

        def look() -> str | None:
            with self.user.client() as client:
                chains = client.chains()
            assert len(chains) <= 1
            rounds = [each for chain in chains for each in chain["rounds"]]
            assert all(chain["state"] == "running" for chain in chains), chains
            if number < len(rounds) and rounds[number]["state"] == "open":
                return str(rounds[number]["study"])
            return None

        return str(wait_for(look, f"round {number} is open", 180, 0.2))

    def kill(self, role: str) -> None:
        """The process of a role ends at once, and starts again."""
        if role == "client":
            _end(self.client)
            self.client = start_client(self.user, self.draft)
        else:
            server = {"proxy": self.federation.proxy, "service": self.user.service, "agent": self.agent}[role]
            server.restart(kill=True)
        self.deaths[role] += 1

    def join(self, study: str, *, with_kill: bool) -> None:
        """All owners join. The agent of the third one does it alone after it was asked once."""
        for place, owner in enumerate(self.owners[:2]):
            address = f"{self.url_of(owner)}/{study}"
            if with_kill and place == 0:
                self._die_in_upload(owner, address, study)
            assert owner.join(address, self.data[place])["records"] == PEOPLE[place]
        third = self.owners[2]
        if not third.ask("owner", "status")["studies"]:
            address = f"{self.url_of(third)}/{study}"
            third.ask("owner", "join", address, "--source", "genotypes", "--follow", "--yes")

    def _die_in_upload(self, owner: Owner, address: str, study: str) -> None:
        """The owner's share has left in part when its command is killed."""
        self.relay.fell_silent.clear()
        self.relay.cut = lambda method, path: method == "PUT" and f"{study}/share/chunks/0" in path
        process = owner.start("owner", "join", address, "--data", self.data[0], "--yes")
        assert self.relay.fell_silent.wait(120), "the first chunk never came"
        self.relay.cut = lambda method, path: False
        _end(process)
        self.deaths["owner"] += 1


def _end(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL, "it had ended before"


def start_client(user: User, draft: Path) -> subprocess.Popen[bytes]:
    """`study run --auto`, which the owners' answers bring to its end."""
    return user.start("user", "study", "run", draft, "--auto", "--records", str(sum(PEOPLE)), "--json")


def genotypes() -> tuple[Floats, Genotypes]:
    """(sites,) frequencies of a public panel, and (people, sites) dosages of people who differ from it."""
    rng = np.random.default_rng(5)  # noqa: TID251  # data, not noise
    panel = rng.uniform(0.1, 0.5, SITES).round(4)
    ways = rng.normal(size=(COLUMNS, SITES)) * np.sqrt(panel * (1 - panel))
    where = rng.choice([-1, 1], size=(sum(PEOPLE), COLUMNS)) * SPREADS
    return panel, rng.binomial(2, np.clip(panel + where @ ways, 0, 1)).astype(np.float64)


def names_of_sites() -> list[str]:
    return [f"{1 + i // 250}:{1000 + i}:A:G" for i in range(SITES)]


def write_files(folder: Path, table: Genotypes) -> list[Path]:
    """The table's parts, as three owners keep them. Some calls of the first and the last one are missing."""
    first, second, third = np.split(table, np.cumsum(PEOPLE)[:-1])
    for part, step in ((first, 997), (third, 1009)):
        part.reshape(-1)[::step] = np.nan
    sites = names_of_sites()
    places = (
        write_bed(folder / "a", first, sites),
        write_sparse(folder / "b.npz", second, sites, "csc"),
        write_parquet(folder / "c.parquet", third, sites),
    )
    return [Path(place.data) for place in places]


def write_draft(user: User, folder: Path, panel: Floats, owners: list[Owner]) -> Path:
    """A draft that names a list of features."""
    with (folder / "sites.csv").open("w", newline="") as file:
        rows = [[name, 0, 2, f"{2 * p:.4f}"] for name, p in zip(names_of_sites(), panel, strict=True)]
        csv.writer(file).writerows([["name", "lower", "upper", "centre"], *rows])
    user.ask("user", "study", "features", folder / "sites.csv", "--out", folder / "sites.json")
    draft = {
        "title": "Populations",
        "purpose": "To see which directions of descent there are.",
        "participants": [owner.name for owner in owners],
        "min_owners": 3,
        "closing": "when-complete",
        "feature_list": "sites.json",
        "epsilon": 30,
        "delta": "0.00001",
        "max_records": 2_000,
        "sketch": {"rows": ROWS},
        "lift": {"columns": COLUMNS},
    }
    (folder / "draft.json").write_text(json.dumps(draft))
    return folder / "draft.json"


@dataclass
class Rounds:
    """What each round has released, against the plain sums over the pooled table."""

    scene: Scene
    table: Genotypes
    lifted: Floats | None = None

    def signed(self, study: str) -> SignedManifest:
        bare = self._bare()
        lists = lists_of((self.scene.draft.parent / "sites.json").read_bytes())
        return open_manifest(bare.client.manifest(StudyId.parse(study)), feature_lists=lists)

    def wait_until_closed(self, study: str) -> None:
        """All owners are in, by the proxy's word."""
        client, at = self._bare().client, StudyId.parse(study)
        wait_for(lambda: client.study(at).state != "open", "all owners are in", 180, 0.2)

    def check(self, study: str, secret: bytes) -> None:
        """One release, of all records, each once, and exact up to the promised noise."""
        bare, signed = self._bare(), self.signed(study)
        events = bare.client.transcript(signed.study_id)
        happened = Counter(verify_statement("event", event).body["kind"] for event in events)
        assert [happened[kind] for kind in ("closed", "release")] == [1, 1]
        manifest = signed.manifest
        columns = {name: self.table[:, i] for i, name in enumerate(manifest.encoded_names)}
        encoded, projection = RecordEncoder(manifest).encode(columns), None
        if manifest.rules.is_wide:
            projection = projection_of(manifest, self.lifted)
        exact = owner_sums(manifest.figures, encoded.z, encoded.long, projection)
        assert exact[0] == sum(PEOPLE)
        assert_blocks(opened_blocks(bare, signed, secret), exact, manifest.figures)
        if manifest.lift is not None:
            self.lifted = self.model(study).components.vectors

    def model(self, study: str) -> Model:
        with self.scene.user.client() as client:
            return Model.from_bytes(client.model_file(study))

    def _bare(self) -> BareUser:
        return BareUser(self.scene.federation, self.scene.user.name, self.scene.user.key())


def run(scene: Scene, table: Genotypes, kills: Kills) -> None:
    rounds, studies = Rounds(scene, table), []
    for number, release in enumerate(ROUNDS):
        study = scene.open_round(number)
        studies.append(study)
        assert rounds.signed(study).manifest.release == release
        secret = stored_secret(scene.user, StudyId.parse(study))
        scene.join(study, with_kill="owner" in kills[release])
        rounds.wait_until_closed(study)
        for role in kills[release]:
            if role != "owner":
                scene.kill(role)
        end = "fitted" if release in ("pre-study", "sketch") else "published"
        scene.user.wait_state(study, end, seconds=180)
        rounds.check(study, secret)
    out, err = scene.client.communicate(timeout=180)
    assert scene.client.returncode == 0, err.decode()
    chain = json.loads(out)
    assert (chain["state"], chain["spent_share"]) == ("done", 1)
    assert [each["study"] for each in chain["rounds"]] == studies
    assert {each["study"] for each in scene.user.ask("user", "study", "list")["studies"]} == set(studies)
    _check_owners(scene, studies)
    _check_span(rounds.model(studies[-1]), table)


def _check_owners(scene: Scene, studies: list[str]) -> None:
    """Each has paid once for each round, and has the components of the last one."""
    for owner in scene.owners:
        (data_set,) = owner.ask("owner", "ledger")["data_sets"]
        booked = [(entry["study"], entry["state"]) for entry in data_set["studies"]]
        assert booked == [(study, "committed") for study in studies]
        address = f"{scene.url_of(owner)}/{studies[-1]}"
        assert owner.ask("owner", "components", address)["records"] == sum(PEOPLE)
    assert scene.federation.proxy_machine.ask("proxy", "audit", studies[-1])["holds"] is True


def _check_span(model: Model, table: Genotypes) -> None:
    """The components are those of the pooled table, but for what noise and sketch may take. The variances are
    those of records cut to the clip norm, within seven standard deviations."""
    manifest = model.manifest
    records = np.where(np.isnan(table), 0, table - [float(each.centre or 0) for each in manifest.features])
    lengths = np.linalg.norm(records, axis=1, keepdims=True)
    records *= np.minimum(1, float(manifest.clip_norm) / lengths)
    best = svds(records - records.mean(axis=0), k=COLUMNS)[2]
    found = np.asarray(model.components.vectors)
    assert found.shape == (COLUMNS, SITES)
    cosines = np.linalg.svd(found @ best.T, compute_uv=False)
    assert cosines.min() ** 2 > 1 - LOST_AT_MOST
    lifted = model.components.lifted
    assert lifted is not None
    assert lifted.deviations is not None
    wrong = np.abs(model.components.captured - np.var(records @ found.T, axis=0))
    assert np.all(wrong < 7 * lifted.deviations)


@pytest.mark.parametrize(
    "kills",
    [pytest.param(BY_DAY, id="day"), pytest.param(BY_NIGHT, id="night", marks=pytest.mark.nightly)],
)
def test_a_chain_for_many_features_over_kills_between_its_steps(
    tmp_path: Path, kills: Kills, promise: Promise
) -> None:
    """Every role dies. Each round is asked for, paid and released once, and the result is right."""
    panel, table = genotypes()
    with (
        federation_in(tmp_path / "federation") as federation,
        relaying(federation.relay_port, federation.port) as relay,
    ):
        data = write_files(tmp_path, table)
        owners = [federation.new_owner("Biobank A", federation.relay_url)]
        owners += [federation.new_owner(f"Biobank {letter}") for letter in "BC"]
        owners[2].ask("owner", "data", "add", "genotypes", "--data", data[2])
        draft = write_draft(federation.user, tmp_path, panel, owners)
        client = start_client(federation.user, draft)
        agent = Agent.of(federation, owners[2], "agent")
        scene = Scene(federation, relay, owners, data, agent, draft, client)
        run(scene, table, kills)
        assert set(scene.deaths) == {"proxy", "service", "client", "agent", "owner"}
    died = ", ".join(f"{count} of {role}" for role, count in sorted(scene.deaths.items()))
    promise("P7", counted=f"a chain for 5,000 features, kill -9: {died}", result="4 rounds, each once")
