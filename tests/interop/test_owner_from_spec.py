"""Who follows docs/spec.md can take part: an owner that shares no code with the product, at its proxy."""

import ast
import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import owner_from_spec
import pytest
from federation.bare_user import BareUser
from federation.checks import assert_release
from federation.records import NAMES, add_up, patients, write_csv, write_parquet
from federation.world import Federation
from owner_from_spec import (
    BrokenPromiseError,
    Owner,
    RefusedError,
    Sums,
    block_sums,
    encode,
    joint_sums,
    make_share,
    read_manifest,
)
from phe import EncryptedNumber
from promises import Promise
from proxy_world import TOY_BITS, OpenStudy, ProxyWorld, Values, unlike_before, values_of
from study_parties import MakeManifest, Parties

from dpdpca_interop import to_phe_private
from dpdpca_owner.records.shuffle import Shuffle
from dpdpca_protocol.layout.packing import symmetric_rows
from dpdpca_protocol.messages.rotation import Rotation
from dpdpca_protocol.messages.study_messages import SealedComponents
from dpdpca_protocol.records.block_sums import new_sums
from dpdpca_protocol.records.encoding import ABSENT, RecordEncoder
from dpdpca_protocol.records.pairing import pairing_seed, pairs
from dpdpca_protocol.records.scatter import SecondMoments
from dpdpca_protocol.result.components import EncodedSpace, fit_components
from dpdpca_protocol.result.publication import encode_components
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.signed_manifest import sign_manifest, suite_of
from dpdpca_protocol.wire.kem import PREVIEW_KEM, KemKey
from dpdpca_protocol.wire.salts import unsalted
from dpdpca_protocol.wire.sealing import components_info, seal
from dpdpca_protocol.wire.signing import IdentityKey, sign_statement
from dpdpca_proxy.enrolment import invite

GENERAL = {"cryptography", "httpx", "numpy", "phe"}
NAME = "Hospital D"


def test_the_owner_imports_general_libraries_only() -> None:
    tree = ast.parse(Path(owner_from_spec.__file__).read_text(encoding="utf-8"))
    imported: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add(str(node.module))
        assert not isinstance(node, ast.Name) or node.id not in ("__import__", "exec", "eval")
    roots = {name.partition(".")[0] for name in imported}
    assert "importlib" not in roots
    assert roots - sys.stdlib_module_names == GENERAL


@pytest.fixture
def owner(world: ProxyWorld) -> Owner:
    """Enrolled, and one of those whom studies of `world` name."""
    stranger = Owner(world.url, world.proxy_key, TOY_BITS)
    stranger.enrol("what it calls itself", invite(world.proxy, "owner", NAME).token)
    world.owners.append(
        IdentityKey(stranger.ed25519, KemKey(stranger.ml_kem, stranger.x25519), stranger.blinding)
    )
    return stranger


def features() -> list[dict[str, Any]]:
    first, second, third = (feature["name"] for feature in unlike_before(3))
    return [
        {"name": first, "lower": 0, "upper": 100, "unit": "years"},
        {"name": second, "lower": 60, "upper": 260, "centre": 120},
        {"name": third, "lower": "2.5", "upper": "250.5", "scale": 40},
    ]


def records(manifest_features: Any, count: int = 12) -> dict[str, list[Any]]:
    """Some longer than the clip norm, some out of bounds; one without a value, one with an unusable value."""
    source = random.Random(20261129)
    centres, spreads = (50, 120, 126), (40, 60, 60)
    columns: dict[str, list[Any]] = {
        feature.name: [source.gauss(centre, spread) for _ in range(count)]
        for feature, centre, spread in zip(manifest_features, centres, spreads, strict=True)
    }
    first, second, _ = columns.values()
    first[3], second[5] = None, "unknown"
    return columns


def deliver_others(study: OpenStudy) -> list[Values]:
    shares = [values_of(study.d, seed) for seed in range(3)]
    for key, share in zip(study.world.owners, shares, strict=False):
        study.deliver(key, share)
    return shares


def total(study: OpenStudy, own: Sums, others: list[Values]) -> tuple[int, list[int], list[list[int]]]:
    """N, v and N·R − v vᵀ over everybody."""
    d = study.d
    count = own.count + sum(share.count for share in others)
    v = [own.sum[i] + sum(share.sums[i] for share in others) for i in range(d)]
    rows = [symmetric_rows(d, share.upper) for share in others]
    R = [[own.second_moment[i][j] + sum(each[i][j] for each in rows) for j in range(d)] for i in range(d)]
    return count, v, [[count * R[i][j] - v[i] * v[j] for j in range(d)] for i in range(d)]


@pytest.mark.parametrize("release", ["joint", "masked"])
def test_an_owner_that_follows_the_page_takes_part(
    world: ProxyWorld, owner: Owner, noiseless: None, release: str
) -> None:
    study = world.open_study(features=features(), release=release, clip_norm="1.2", missing="reject")
    assert owner.studies() == [study.study]
    others = deliver_others(study)
    columns = records(study.manifest.features)

    own = owner.join(study.study, columns)

    encoded = RecordEncoder(study.manifest).encode(columns)
    assert (encoded.report.dropped, encoded.report.unusable) == (1, (0, 1, 0))
    assert encoded.report.clipped > 0
    assert own == Sums.of(encoded.z.tolist(), study.d)
    assert owner.is_included(study.study) is None
    assert owner.first_event(study.study)["owners_complete"] == 4
    study.close()
    if release == "masked":
        answer = study.count_answer(study.challenge())
        world.client(world.user).answer_count(study.study, answer)
    study.wait_state("released")
    assert owner.is_included(study.study) is True
    scatter, said = study.open_release()
    count, v, scaled = total(study, own, others)
    assert scatter.count == count
    assert [list(row) for row in scatter.scaled_scatter] == scaled
    assert scatter.sum is None if release == "masked" else list(scatter.sum or ()) == v
    assert owner.receipts[study.study].body["statement"] in {str(each.statement) for each in said.cohort}

    space = EncodedSpace.of(study.manifest)
    components = fit_components(scatter, study.manifest.figures, space, 2)
    plain = encode_components(study.study, components)
    copies = {
        key.public.party_id: seal(plain, key.public.sealing_key, components_info(study.study))
        for key in world.owners
    }
    statement = SealedComponents(study.study, copies).sign(world.user)
    study.state_opened()
    world.client(world.user).publish_components(study.study, statement)
    opened = owner.components(study.study)
    assert opened["vectors"] == components.vectors.ravel().tolist()
    assert opened["count"] == count
    assert owner.is_included(study.study) is True


BLOCKS = {"norms": "0.2", "pair-norms": "0.3", "sum": "0.1", "octaves": "0.3", "far-pairs": "0.1"}
PADDED: dict[str, dict[str, Any]] = {
    "joint": {"release": "joint", "suite": "pads", "clip_norm": "1.2", "missing": "reject"},
    "pairs": {"release": "pairs", "clip_norm": "1.2", "rho_share": "0.9", "pre_studies": ["ab" * 32]},
    "pre-study": {"release": "pre-study", "clip_norm": "1.2", "rho_share": "0.1", "blocks": BLOCKS},
}
TOLD = {"clip_share": "0.005", "clip_cap": "1.4", "clip_norm": "0.8"}
PADDED |= {f"{release}, clipping": PADDED[release] | TOLD for release in ("joint", "pairs")}


@pytest.mark.parametrize("release", PADDED)
def test_an_owner_that_follows_the_page_takes_part_under_pads(
    world: ProxyWorld,
    owner: Owner,
    noiseless: None,
    release: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    for place in ("dpdpca_protocol.pads.chunks.CHUNK_VALUES", "owner_from_spec.PADDED_CHUNK"):
        monkeypatch.setattr(place, 7)  # several chunks
    study = world.open_study(features=features(), **PADDED[release])
    others = deliver_padded(study, 3)
    columns = records(study.manifest.features)

    own = join_flat(owner, study, release, columns)

    assert own == sums_by_the_product(study.manifest, columns, owner.secret, tmp_path)
    study.close()
    study.wait_state("released")
    assert owner.is_included(study.study) is True
    assert study.open_values() == [sum(column) for column in zip(own, *others, strict=True)]
    study.state_opened()
    assert owner.is_spent(study.study)


@pytest.mark.parametrize("release", PADDED)
def test_an_owner_that_follows_the_page_draws_its_own_noise(
    world: ProxyWorld, owner: Owner, release: str
) -> None:
    study = world.open_study(features=features(), **PADDED[release], noise_by="owners", max_colluding=1)
    others = deliver_padded(study, 2)
    columns = records(study.manifest.features)
    own = join_flat(owner, study, release, columns)
    study.close()
    study.wait_state("released")
    check_noise(study, [own, *others])


def deliver_padded(study: OpenStudy, owners: int) -> list[list[int]]:
    """The values that the first owners of the product have delivered under pads."""
    count = study.manifest.figures.value_count
    shares = [[seed * 5 + index % 7 for index in range(count)] for seed in range(owners)]
    for key, values in zip(study.world.owners[:owners], shares, strict=True):
        chunks, pad = study.padded_chunks(key, values)
        study.upload(key, chunks)
        study.complete(key, chunks, pad=pad)
    return shares


def join_flat(owner: Owner, study: OpenStudy, release: str, columns: dict[str, list[Any]]) -> list[int]:
    """The values of the share that the owner by the page has sent."""
    if release.startswith("joint"):
        return list(owner.join(study.study, columns).flat())
    return list(owner.join_blocks(study.study, columns))


def check_noise(study: OpenStudy, shares: list[list[int]]) -> None:
    """The release is the sum of the shares, with an exact count and bounded noise on everything else."""
    exact = [sum(column) for column in zip(*shares, strict=True)]
    bounds = [block.tail for block in study.manifest.figures.blocks for _ in range(block.length)]
    noise = [x - y for x, y in zip(study.open_values(), exact, strict=True)]
    assert noise[0] == 0
    assert any(noise)
    assert all(abs(each) <= most for each, most in zip(noise[1:], bounds[1:], strict=True))


@pytest.mark.parametrize("release", PADDED)
def test_an_owner_that_follows_the_page_takes_part_in_a_blinded_study(
    world: ProxyWorld, owner: Owner, release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("dpdpca_protocol.pads.chunks.CHUNK_VALUES", "owner_from_spec.PADDED_CHUNK"):
        monkeypatch.setattr(place, 7)  # several chunks
    study = world.open_study(features=features(), **PADDED[release], blinding="pairwise", min_owners=None)
    others = deliver_padded(study, 3)
    columns = records(study.manifest.features)

    own = join_flat(owner, study, release, columns)

    study.wait_state("released")
    assert owner.is_included(study.study) is True
    check_noise(study, [own, *others])
    study.state_opened()
    assert owner.is_spent(study.study)
    terms = owner.read(study.study)
    with pytest.raises(BrokenPromiseError, match="one list of values"):
        owner.deliver(terms, [value + 1 for value in own])


def test_it_withdraws_from_a_blinded_study_and_has_spent_it(world: ProxyWorld, owner: Owner) -> None:
    study = world.open_study(features=features(), **PADDED["joint"], blinding="pairwise", min_owners=None)
    owner.join(study.study, records(study.manifest.features))
    owner.withdraw(study.study)
    assert owner.is_included(study.study) is None
    events = [event.body["kind"] for event in owner.transcript(owner.read(study.study))]
    assert events == ["manifest", "receipt", "withdrawal", "failed"]
    assert owner.is_spent(study.study)


def test_it_refuses_a_blinding_key_that_its_owner_did_not_sign(world: ProxyWorld, owner: Owner) -> None:
    study = world.open_study(features=features(), **PADDED["joint"], blinding="pairwise", min_owners=None)
    parties = owner.ask("/v1/parties?statements=true")["parties"]
    body = owner.read(study.study).body
    began = "2026-01-01T00:00:00Z"
    owner_from_spec.check_blinding_keys(body, parties, [], began)
    first, second, *_ = (each for each in parties if each["role"] == "owner")
    forged = [*parties, {**first, "statement": second["statement"]}]
    with pytest.raises(BrokenPromiseError, match="another key has signed"):
        owner_from_spec.check_blinding_keys(body, forged, [], began)
    with pytest.raises(BrokenPromiseError, match="shows no statement"):
        owner_from_spec.check_blinding_keys(body, [*parties, {**first, "statement": None}], [], began)
    other = json.loads(json.dumps(body))
    named = next(each for each in other["participants"] if each["ed25519"] == first["ed25519"])
    named["x25519"] = IdentityKey.generate().public.blinding_key.hex()
    with pytest.raises(BrokenPromiseError, match="not signed this blinding key"):
        owner_from_spec.check_blinding_keys(other, parties, [], began)
    old = next(each for each in world.owners if each.public.ed25519.hex() == first["ed25519"])
    new = IdentityKey.generate()
    rotation = Rotation("owner", 1, old.public.ed25519, new.public, "2025-12-31T00:00:00Z").sign(old, new)
    with pytest.raises(BrokenPromiseError, match="given up"):
        owner_from_spec.check_blinding_keys(body, parties, [json.loads(rotation.encoded)], began)
    moved = {**first, "ed25519": new.public.ed25519.hex(), "statement": json.loads(rotation.encoded)}
    named |= {"ed25519": moved["ed25519"], "x25519": new.public.blinding_key.hex()}
    owner_from_spec.check_blinding_keys(other, [*parties, moved], [json.loads(rotation.encoded)], began)


def sums_by_the_product(
    manifest: Manifest, columns: dict[str, list[Any]], secret: bytes, folder: Path
) -> list[int]:
    """The values of a share, if the owner's order comes from this secret."""
    encoded = RecordEncoder(manifest).encode(columns)
    z = encoded.z
    sums = new_sums(manifest.figures)
    sums.add(z)
    if isinstance(sums, SecondMoments):
        sums.add_clipped(encoded.long)
        sums.add_gaps(encoded.gaps)
    elif sums.has_pairs:
        shuffle = Shuffle(z.shape[1], pairing_seed(secret, manifest.study_id), folder)
        shuffle.add(z)
        for pair in pairs(shuffle.batches()):
            sums.add_pairs(*pair)
    return list(sums.stream())


def test_it_replaces_withdraws_and_returns(world: ProxyWorld, owner: Owner, noiseless: None) -> None:
    study = world.open_study(features=features(), clip_norm="1.2")
    others = deliver_others(study)
    terms = owner.read(study.study)
    owner.join(study.study, records(study.manifest.features, 7))
    owner.join(study.study, records(study.manifest.features, 8))
    withdrawn = owner.withdraw(study.study)
    assert (withdrawn.body["subject"], withdrawn.body["version"]) == ("withdrawal", 3)
    assert owner.is_included(study.study) is None
    own = owner.join(study.study, records(study.manifest.features, 9))
    study.close()
    study.wait_state("released")
    assert owner.is_included(study.study) is True
    scatter, _ = study.open_release()
    assert [list(row) for row in scatter.scaled_scatter] == total(study, own, others)[2]
    kinds = [event.body["kind"] for event in owner.transcript(terms)]
    assert kinds == ["manifest", *["receipt"] * 5, "withdrawal", "receipt", "closed", "release"]
    study.state_opened()
    assert owner.is_spent(study.study)


@pytest.mark.parametrize("end", ["cancelled", "opened without it", "opened with it"])
def test_only_the_data_users_signature_takes_a_study_off_its_books(
    world: ProxyWorld, owner: Owner, end: str
) -> None:
    study = world.open_study(features=features())
    deliver_others(study)
    owner.join(study.study, records(study.manifest.features))
    if end != "opened with it":
        owner.withdraw(study.study)
    assert owner.is_spent(study.study)
    if end == "cancelled":
        study.cancel()
    else:
        study.close()
        study.wait_state("released")
        assert owner.is_spent(study.study)
        study.state_opened()
    assert owner.is_spent(study.study) == (end == "opened with it")


def test_repeated_requests_and_refusals_are_as_the_page_says(world: ProxyWorld, owner: Owner) -> None:
    study = world.open_study(features=features())
    terms = owner.read(study.study)
    sums = Sums(1, [0] * terms.d, [[0] * terms.d for _ in range(terms.d)])
    (chunk,), (other,) = (owner_from_spec.make_chunks(terms, sums) for _ in range(2))
    digest = owner_from_spec.sha256(chunk)
    with pytest.raises(RefusedError) as incomplete:
        owner.complete(terms, 1, [digest])
    owner.put(terms, 1, 0, chunk)
    owner.put(terms, 1, 0, chunk)
    with pytest.raises(RefusedError) as differs:
        owner.put(terms, 1, 0, other)
    receipt = owner.complete(terms, 1, [digest])
    assert owner.complete(terms, 1, [digest]).content == receipt.content
    with pytest.raises(RefusedError) as another:
        owner.complete(terms, 1, [owner_from_spec.sha256(other)])
    with pytest.raises(RefusedError) as stranger:
        Owner(world.url, world.proxy_key, TOY_BITS).studies()
    found = [each.value for each in (incomplete, differs, another, stranger)]
    assert [(each.name, each.status) for each in found] == [
        ("share-incomplete", 409),
        ("chunk-differs", 409),
        ("statement-differs", 409),
        ("unknown-key", 401),
    ]


def test_each_version_under_pads_has_its_own_keys_and_salts(
    parties: Parties, make_manifest: MakeManifest
) -> None:
    manifest = make_manifest(suite="pads")
    statement = sign_manifest(manifest, parties.user)
    terms = read_manifest(statement.encoded, statement.digest, TOY_BITS)
    sums = Sums.of([[1, 2, 3]], terms.d)
    first, second = (make_share(terms, sums, bytes(32), version) for version in (1, 2))
    suite = suite_of(manifest)
    for share in (first, second):
        suite.check_member(share.pad)
        suite.check_chunk(share.chunks[0], 0, 32)
    assert first.chunks[0][:32] != second.chunks[0][:32]
    hidden = [np.frombuffer(unsalted(each.chunks[0]), dtype="<u8") for each in (first, second)]
    assert (hidden[0] != hidden[1]).all()


CHANGES: dict[str, Any] = {
    "noise_scale is": lambda body: body.update(noise_scale=str(float(body["noise_scale"]) * 1.001)),
    "slot_bits is": lambda body: body.update(slot_bits=body["slot_bits"] + 1),
    "other members": lambda body: body.pop("purpose"),
    "the proof of the key": lambda body: body["key"]["proof"].reverse(),
    "n is even": lambda body: body["key"].update(modulus=body["key"]["modulus"][:-1] + "4"),
    "two parties have one key": lambda body: body["participants"].append(body["participants"][0]),
    "min_owners is above": lambda body: body.update(min_owners=body["max_owners"] + 1),
    "is no decimal": lambda body: body.update(epsilon="1.0"),
    "does not have this suite": lambda body: body.update(suite="pads", release="masked"),
    "this is no key of pads": lambda body: body.update(suite="pads"),
}
OF_CLIPPING: dict[str, Any] = {
    "clip_share is out of range": lambda body: body.update(clip_share="0.2"),
    "clip_cap is out of range": lambda body: body.update(clip_cap="0.7"),
    "clip_cap belongs": lambda body: body.pop("clip_share"),
    "noise_scale is": lambda body: body.update(clip_share="0.004"),
}
OF_BLINDING: dict[str, Any] = {
    "does not go with these terms": lambda body: body.update(closing="at-time"),
    "the cohort must be all": lambda body: body.update(max_owners=4),
    "this blinding is not known": lambda body: body.update(blinding="threshold"),
    "max_colluding is wrong": lambda body: body.update(max_colluding=3),
    "other members": lambda body: body["participants"][0].pop("x25519"),
    "two owners have one blinding key": lambda body: body["participants"][0].update(
        x25519=body["participants"][1]["x25519"]
    ),
    "has low order": lambda body: body["participants"][0].update(x25519="00" * 32),
    "not below the prime": lambda body: body["participants"][0].update(x25519="f6" + "ff" * 30 + "7f"),
    "noise_scale is": lambda body: body.update(noise_scale=str(float(body["noise_scale"]) * 0.999)),
}
OF_PADS: dict[str, Any] = {
    "slot_bits belongs to paillier": lambda body: body.update(slot_bits=50),
    "nothing can be sealed": lambda body: body["key"].update(kem="ff" * 1216),
    "this is no key of pads": lambda body: body["key"].update(modulus="ab"),
    "does not have this suite": lambda body: body.update(suite="paillier"),
    "pairs must not depend": lambda body: body.update(missing="reject"),
    "rho_share is not": lambda body: body.update(rho_share="1"),
    "pre_studies is wrong": lambda body: body.update(pre_studies=["ab" * 32] * 2),
    "pre_studies belongs": lambda body: body.pop("rho_share"),
    "blocks belongs": lambda body: body.update(blocks={"norms": "1"}),
    "noise_scale is": lambda body: body.update(rho_share="0.8"),
}


@pytest.mark.parametrize("problem", CHANGES)
def test_it_refuses_a_manifest_that_breaks_the_rules(
    parties: Parties, make_manifest: MakeManifest, problem: str
) -> None:
    body = json.loads(json.dumps(make_manifest().to_body()))
    good = sign_statement("manifest", body, parties.user)
    assert read_manifest(good.encoded, good.digest, TOY_BITS).body == body
    with pytest.raises(BrokenPromiseError, match="another study"):
        read_manifest(good.encoded, bytes(32), TOY_BITS)
    CHANGES[problem](body)
    bad = sign_statement("manifest", body, parties.user)
    with pytest.raises(BrokenPromiseError, match=problem):
        read_manifest(bad.encoded, bad.digest, TOY_BITS)


@pytest.mark.parametrize("problem", OF_PADS)
def test_it_refuses_a_manifest_that_breaks_the_rules_of_pads(
    parties: Parties, make_manifest: MakeManifest, problem: str
) -> None:
    body = json.loads(json.dumps(make_manifest(**PADDED["pairs"]).to_body()))
    good = sign_statement("manifest", body, parties.user)
    assert read_manifest(good.encoded, good.digest, TOY_BITS).body == body
    with pytest.raises(BrokenPromiseError, match="used in another study"):
        read_manifest(good.encoded, good.digest, TOY_BITS, [body["key"]["kem"], PREVIEW_KEM.hex()])
    OF_PADS[problem](body)
    bad = sign_statement("manifest", body, parties.user)
    with pytest.raises(BrokenPromiseError, match=problem):
        read_manifest(bad.encoded, bad.digest, TOY_BITS)


@pytest.mark.parametrize("problem", OF_CLIPPING)
def test_it_refuses_a_manifest_that_breaks_the_rules_of_clipping(
    parties: Parties, make_manifest: MakeManifest, problem: str
) -> None:
    body = json.loads(json.dumps(make_manifest(**PADDED["pairs, clipping"]).to_body()))
    good = sign_statement("manifest", body, parties.user)
    assert read_manifest(good.encoded, good.digest, TOY_BITS).body == body
    OF_CLIPPING[problem](body)
    bad = sign_statement("manifest", body, parties.user)
    with pytest.raises(BrokenPromiseError, match=problem):
        read_manifest(bad.encoded, bad.digest, TOY_BITS)


@pytest.mark.parametrize("problem", OF_BLINDING)
def test_it_refuses_a_manifest_that_breaks_the_rules_of_blinding(
    parties: Parties, make_manifest: MakeManifest, problem: str
) -> None:
    body = json.loads(json.dumps(make_manifest(blinding="pairwise").to_body()))
    good = sign_statement("manifest", body, parties.user)
    assert read_manifest(good.encoded, good.digest, TOY_BITS).body == body
    OF_BLINDING[problem](body)
    bad = sign_statement("manifest", body, parties.user)
    with pytest.raises(BrokenPromiseError, match=problem):
        read_manifest(bad.encoded, bad.digest, TOY_BITS)


NUMBERS = [{"name": "age", "lower": 0, "upper": 100}, {"name": "weight", "lower": "2.5", "upper": 250.5}]
STUDIES: dict[str, dict[str, Any]] = {
    "levels": {"features": [*NUMBERS, {"name": "ward", "levels": ["A", "B", "3", "true"]}]},
    "levels as other programs spell them": {
        "features": [*NUMBERS, {"name": "ward", "levels": ["3.00", "FALSE", "TRUE"]}]
    },
    "levels 1 and 0 for truth values": {"features": [*NUMBERS, {"name": "ward", "levels": ["0", "1"]}]},
    "levels with centres": {
        "features": [
            *NUMBERS,
            {"name": "ward", "levels": ["A", "B", "3", "true"], "centre": ["0.5", "0.2", "0", "0.1"]},
        ],
        "missing": "midpoint",
    },
    "one feature": {"features": NUMBERS[:1], "clip_norm": "0.7", "epsilon": "0.01"},
    "a common scaling": {"features": NUMBERS, "scaling": "common", "missing": "midpoint"},
    "scales": {"features": [{**NUMBERS[0], "scale": "0.1"}, NUMBERS[1]], "clip_norm": 4},
    "a coarse grid": {"features": NUMBERS, "fraction_bits": 1, "release": "masked"},
    "a fine grid": {"features": NUMBERS, "fraction_bits": 20, "sum_weight": "0.02", "epsilon": 12},
    "no negative values": {
        "features": [{**each, "centre": each["lower"]} for each in NUMBERS],
        "clip_norm": 2,
        "nonnegative": True,
        "release": "masked",
    },
    "a masked study of many records": {"features": NUMBERS, "max_records": 10**8, "release": "masked"},
    "pads": {"features": NUMBERS, "suite": "pads", "max_records": 10**8},
    "pairs": {"features": NUMBERS, **PADDED["pairs"]},
    "pairs of levels": {
        "features": [NUMBERS[0], {"name": "ward", "levels": ["A", "B", "3"], "centre": ["0.5", "0", "0.1"]}],
        "release": "pairs",
        "clip_norm": "0.5",
    },
    "a pre-study": {"features": NUMBERS, **PADDED["pre-study"]},
    "noise by the owners": {"features": NUMBERS, "noise_by": "owners", "max_colluding": 1},
    "noise by many owners": {
        "features": NUMBERS,
        "noise_by": "owners",
        "min_owners": 5,
        "max_owners": 40,
        "max_colluding": 1,
        "participants": [],
        "closing": "at-time",
    },
    "pairs with noise by the owners": {"features": NUMBERS, **PADDED["pairs"], "noise_by": "owners"},
    "a pre-study with noise by the owners": {
        "features": NUMBERS,
        **PADDED["pre-study"],
        "noise_by": "owners",
    },
    "blinded": {"features": NUMBERS, "blinding": "pairwise"},
    "what clipping did": {"features": NUMBERS, "clip_share": "0.1", "clip_norm": "0.5"},
    "what clipping did, by pads and owners": {
        "features": NUMBERS,
        **PADDED["joint, clipping"],
        "noise_by": "owners",
        "missing": "midpoint",
    },
    "what clipping did to pairs of one length": {
        "features": NUMBERS,
        "release": "pairs",
        "clip_norm": "0.001",
        "clip_share": "0.02",
    },
    "what clipping did to pairs": {"features": NUMBERS, **PADDED["pairs, clipping"], "noise_by": "owners"},
    "what clipping did to pairs of levels": {
        "features": [NUMBERS[0], {"name": "ward", "levels": ["A", "B", "3", "true"]}],
        "release": "pairs",
        "clip_norm": "0.5",
        "clip_share": "0.02",
    },
    "a pre-study of one block": {
        "features": [{**NUMBERS[0], "scale": "0.1"}, NUMBERS[1]],
        "release": "pre-study",
        "clip_norm": "0.3",
        "blocks": {"octaves": "1"},
    },
}
COLUMNS: dict[str, list[Any]] = {
    "ward": ["A", " B ", "C", 3, 3.0, True, None, "", "A", "3.0"],
    "weight": [1, 2.5, 70, 99.9, 250.5, 1e300, float("nan"), "heavy", True, 126.5],
    "\ufeffage ": [-1, 0, 17, 50, 99.99, 100, 101, None, float("inf"), " "],
}


@pytest.mark.parametrize("study", STUDIES)
def test_its_figures_and_records_are_those_of_the_product(
    parties: Parties, make_manifest: MakeManifest, study: str, tmp_path: Path
) -> None:
    manifest = make_manifest(**STUDIES[study])
    statement = sign_manifest(manifest, parties.user)
    terms = read_manifest(statement.encoded, statement.digest, TOY_BITS)
    figures = manifest.figures
    assert (terms.d, terms.q, terms.K) == (figures.encoded_features, figures.grid, figures.record_bound)
    assert (terms.w, terms.slots) == (figures.slot_bits, figures.slots)
    rows = encode(terms, COLUMNS)
    z = RecordEncoder(manifest).encode(COLUMNS).z.tolist()
    assert [[ABSENT if value is None else value for value in row] for row in rows] == z
    if manifest.release in ("pairs", "pre-study"):
        secret = b"a secret of the owner"
        assert block_sums(terms, rows, secret) == sums_by_the_product(manifest, COLUMNS, secret, tmp_path)
    elif manifest.clip_share:
        told = joint_sums(terms, COLUMNS).told
        assert told == sums_by_the_product(manifest, COLUMNS, b"", tmp_path)[-len(told) :]
        assert len(told) == (3 if manifest.missing == "midpoint" else 2)
        assert min(told) > 0


class NamedOwner:
    """The owner from the page, as `BareUser` names owners."""

    def __init__(self, owner: Owner, name: str) -> None:
        self.owner, self.name = owner, name

    def key(self) -> IdentityKey:
        return IdentityKey(
            self.owner.ed25519, KemKey(self.owner.ml_kem, self.owner.x25519), self.owner.blinding
        )


@pytest.mark.nightly
@pytest.mark.parametrize("release", ["masked", "joint"])
def test_it_takes_part_beside_the_product_with_keys_of_full_length(
    federation: Federation, tmp_path: Path, release: str, promise: Promise
) -> None:
    user = BareUser(federation, f"Institute beside the page ({release})")
    owners = federation.owners(2)
    name = f"Hospital from the page ({release})"
    owner = Owner(federation.url, federation.proxy_key)
    owner.enrol(name, federation.invitation("owner", name))
    named = NamedOwner(owner, name)
    study = user.open_study([*owners, named], release=release, closing="when-complete")
    batches = [patients(count, seed) for seed, count in ((71, 400), (72, 300), (73, 500))]
    owners[0].join(study.address, write_csv(tmp_path / "a.csv", batches[0]))
    owners[1].join(study.address, write_parquet(tmp_path / "b.parquet", batches[1]))

    own = owner.join(study.id, {name: [record[name] for record in batches[2]] for name in NAMES})

    exact = add_up(batches[2])
    assert (own.count, own.sum, own.second_moment) == (exact.count, exact.sum, exact.second_moment)
    study.wait_state("closed", "released")
    assert owner.is_included(study.id) is True
    expected = add_up(batches[0]) + add_up(batches[1]) + exact
    assert_release(study.open_release(), expected, study.manifest.figures)
    assert user.client.study(study.id).owners_complete == 3

    # phe reads what the proxy released, too.
    private = to_phe_private(study.secret)
    ciphertext = study.released_ciphertexts()[0]
    mine = int(study.secret.decrypt(ciphertext))
    assert private.decrypt(EncryptedNumber(private.public_key, int(ciphertext))) == mine
    promise(
        "P35",
        counted=f"{release} study of 1,200 records, one owner by the specification, without our code",
        result="N exact, entries within the stated noise",
    )
