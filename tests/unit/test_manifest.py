"""Manifests: what passes survives its bytes, and everything else is refused with its reason."""

import copy
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from study_parties import MakeManifest, Parties

from dpdpca_protocol.errors import (
    AuthenticationError,
    CryptographicError,
    MessageError,
    PolicyError,
    UsageError,
)
from dpdpca_protocol.paillier.keys import KeyRules, generate_secret_key
from dpdpca_protocol.paillier.proof import prove_key
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.parties import KeyTerms, Participant
from dpdpca_protocol.terms.signed_manifest import open_manifest, parse_manifest, sign_manifest
from dpdpca_protocol.wire.canonical import canonical_json
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_protocol.wire.signing import IdentityKey, sign_statement

LEAST = 512


@pytest.fixture(scope="module", params=["joint", "masked"])
def manifest(request: pytest.FixtureRequest, make_manifest: MakeManifest) -> Manifest:
    return make_manifest(release=request.param)


@pytest.fixture
def body(manifest: Manifest) -> dict[str, Any]:
    return copy.deepcopy(manifest.to_body())


def parse(body: dict[str, Any]) -> Manifest:
    return parse_manifest(body)


def test_a_manifest_survives_its_body(manifest: Manifest, body: dict[str, Any]) -> None:
    parsed = parse(body)
    assert parsed == manifest
    assert canonical_json(parsed.to_body()) == canonical_json(body)
    assert parsed.study_id == manifest.study_id


@pytest.mark.parametrize(
    ("release", "mechanism"), [("joint", "laplace"), ("masked", "laplace"), ("joint", "gaussian")]
)
def test_a_mechanism_survives_its_body(make_manifest: MakeManifest, release: str, mechanism: str) -> None:
    made = make_manifest(release=release, mechanism=mechanism)
    body = made.to_body()
    assert "calibration" not in body
    assert parse(body) == made
    assert not made.figures.guarantee.is_pure
    body["noise_scale"] = str(int(made.noise_scale / 2))
    with pytest.raises(PolicyError, match="noise_scale is"):
        parse(body)


def test_owners_may_draw_the_noise_of_a_joint_study(make_manifest: MakeManifest) -> None:
    made = make_manifest(noise_by="owners", min_owners=3, max_owners=9, participants=[])
    body = made.to_body()
    assert (body["noise_by"], body["max_colluding"]) == ("owners", 1)
    assert parse(body) == made
    assert made.figures.noise_by == "owners"
    assert made.figures.mechanism.setting.shares == 2
    # More owners may bring more noise, and a slot must hold it.
    with pytest.raises(PolicyError, match="slot_bits is"):
        parse(body | {"max_owners": 90_000})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"release": "masked"}, "N·S modulo N without noise"),
        ({"mechanism": "laplace"}, "only for the gaussian mechanism"),
        ({"max_colluding": 3}, "between 1 and min_owners"),
        ({"max_colluding": 0}, "between 1 and min_owners"),
        ({"min_owners": 1, "participants": []}, "between 1 and min_owners"),
    ],
)
def test_noise_in_shares_that_would_not_hold_is_refused(
    make_manifest: MakeManifest, change: dict[str, Any], reason: str
) -> None:
    with pytest.raises(PolicyError, match=reason):
        make_manifest(**({"noise_by": "owners"} | change))


def test_only_the_members_of_the_protocol_are_there(body: dict[str, Any]) -> None:
    listed = (
        "format title purpose user proxy participants features missing scaling clip_norm fraction_bits"
        " mechanism release relation epsilon delta noise_by max_colluding sum_weight noise_scale min_owners"
        " min_records max_records max_owners closing closes_at suite key slot_bits"
    )
    assert set(body) == set(listed.split())


def test_a_signed_manifest_opens(manifest: Manifest, parties: Parties) -> None:
    statement = sign_manifest(manifest, parties.user)
    signed = open_manifest(statement.encoded, key_rules=KeyRules(LEAST))
    assert signed.manifest == manifest
    assert signed.study_id == manifest.study_id == Digest.of(statement.body_bytes)
    assert signed.public_key.modulus == parties.secret.public.modulus


def test_another_partys_signature_is_refused(manifest: Manifest, body: dict[str, Any]) -> None:
    stranger = IdentityKey.generate()
    with pytest.raises(AuthenticationError):
        open_manifest(sign_statement("manifest", body, stranger).encoded, key_rules=KeyRules(LEAST))
    with pytest.raises(UsageError):
        sign_manifest(manifest, stranger)


def test_a_tampered_manifest_is_refused(manifest: Manifest, parties: Parties) -> None:
    encoded = sign_manifest(manifest, parties.user).encoded
    changed = encoded.replace(b'"epsilon":"1"', b'"epsilon":"2"')
    assert changed != encoded
    with pytest.raises(AuthenticationError):
        open_manifest(changed, key_rules=KeyRules(LEAST))


def test_a_modulus_seen_before_is_refused(manifest: Manifest, parties: Parties) -> None:
    encoded = sign_manifest(manifest, parties.user).encoded
    seen = {Digest.of(parties.secret.public.encode())}
    with pytest.raises(CryptographicError, match="each study needs its own key"):
        open_manifest(encoded, seen, key_rules=KeyRules(LEAST))


def test_a_proof_for_another_user_is_refused(body: dict[str, Any], parties: Parties) -> None:
    other = IdentityKey.generate()
    body["user"].update(ed25519=other.public.ed25519.hex())
    with pytest.raises(CryptographicError, match="is invalid for this modulus"):
        open_manifest(sign_statement("manifest", body, other).encoded, key_rules=KeyRules(LEAST))


def test_the_product_refuses_a_small_modulus(manifest: Manifest, parties: Parties) -> None:
    with pytest.raises(PolicyError, match="has 512 bits, fewer than the minimum of 2048"):
        open_manifest(sign_manifest(manifest, parties.user).encoded)


def test_figures_are_recomputed_and_both_values_named(body: dict[str, Any]) -> None:
    width = body["slot_bits"]
    body["slot_bits"] += 1
    with pytest.raises(PolicyError, match=f"slot_bits is {width + 1}, but the terms give {width}"):
        parse(body)
    body["slot_bits"] -= 2
    with pytest.raises(PolicyError, match=f"slot_bits is {width - 1}, but the terms give {width}"):
        parse(body)


def test_half_the_noise_is_refused(body: dict[str, Any]) -> None:
    scale = body["noise_scale"]
    body["noise_scale"] = str(int(float(scale) / 2))
    with pytest.raises(PolicyError, match=f"noise_scale is [0-9]+, but the terms give {scale}"):
        parse(body)


def test_a_figure_that_depends_on_changed_terms_is_refused(body: dict[str, Any]) -> None:
    body["epsilon"] = "2"
    with pytest.raises(PolicyError, match="noise_scale"):
        parse(body)


@pytest.mark.parametrize("member", ["format", "title", "key", "closes_at", "sum_weight", "participants"])
def test_a_missing_member_is_refused(body: dict[str, Any], member: str) -> None:
    del body[member]
    with pytest.raises(MessageError, match=f"lacks {member}"):
        parse(body)


@pytest.mark.parametrize("member", ["note", "Title", "", "epsilon "])
def test_an_unknown_member_is_refused(body: dict[str, Any], member: str) -> None:
    body[member] = "1"
    with pytest.raises(MessageError, match="unknown"):
        parse(body)


def test_a_larger_cohort_distance_is_said_and_the_least_goes_without_saying(body: dict[str, Any]) -> None:
    assert "cohort_distance" not in body
    assert parse(body).cohort_distance == 2
    body["cohort_distance"] = 3
    assert parse(body).cohort_distance == 3
    assert parse(body).to_body() == body


@pytest.mark.parametrize("distance", [2, 1, 0, -3, 100_001, "3", True, None])
def test_a_cohort_distance_below_or_as_the_least_is_refused(
    body: dict[str, Any], distance: int | str | bool | None
) -> None:
    body["cohort_distance"] = distance
    with pytest.raises((MessageError, PolicyError)):
        parse(body)


@pytest.mark.parametrize(
    ("member", "value", "reason"),
    [
        ("relation", "add-or-remove", "number of records is exact"),
        ("relation", "other", "relation must be one of"),
        ("noise_by", "owners", "max_colluding is not between 1 and min_owners"),
        ("noise_by", "nobody", "must be one of proxy, owners"),
        ("mechanism", "as-published", "must be one of gaussian, laplace"),
        ("mechanism", "wishart", "wishart has no proof of privacy here; it exists only in the lab"),
        ("mechanism", "mod-sulq", "mod-sulq has no proof of privacy here; it exists only in the lab"),
        ("calibration", "as-published", "as-published has no proof of privacy here; it exists only in"),
        ("calibration", "other", "calibration must be one of proved"),
        ("calibration", "proved", "which is the default"),
        ("release", "triples", "must be one of masked, joint, pairs, pre-study"),
        ("missing", "mean", "must be one of"),
        ("scaling", "standard", "must be one of"),
        ("closing", "never", "must be one of"),
        ("title", "a\u202eb", "control, formatting"),
        ("purpose", "x" * 4001, "longer than 4000"),
        ("clip_norm", "0", "clip_norm must be above 0"),
        ("clip_norm", "-1", "clip_norm must be above 0"),
        ("clip_norm", "2", "above 1.98997, the norm of the longest record"),
        ("epsilon", "0", "epsilon must be above 0"),
        ("epsilon", "40", "epsilon must be above 0 and, with this delta, below 37.7: .* half of δ"),
        ("epsilon", "9" * 30, "less than half of δ"),
        ("epsilon", "0." + "0" * 39 + "1", "noise_scale"),
        ("clip_norm", "9" * 30, "above 1.98997"),
        ("delta", "0", "delta must be above 0 and below 1/max_records = 0.0002"),
        ("delta", "-1", "delta must be above 0 and below 1/max_records"),
        ("delta", "0.0002", "below 1/max_records"),
        ("delta", "0.5", "below 1/max_records"),
        ("max_colluding", 1, "max_colluding has no meaning"),
        ("min_owners", 4, "min_owners is above max_owners"),
        ("min_owners", 0, "min_owners is not between"),
        ("max_owners", 2, "above max_owners"),
        ("min_records", 5001, "min_records is above max_records"),
        ("min_records", 0, "not between"),
        ("fraction_bits", 41, "not between"),
        ("features", [], "features is empty"),
    ],
)
def test_a_rule_broken_is_refused(
    body: dict[str, Any], member: str, value: str | int | list[Any], reason: str
) -> None:
    body[member] = value
    with pytest.raises(PolicyError, match=reason) as caught:
        parse(body)
    assert caught.value.slug == "manifest-refused"


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("format", True),
        ("format", 1),
        ("format", 2),
        ("format", 4),
        ("format", "2"),
        ("epsilon", 1),
        ("epsilon", "1.0"),
        ("epsilon", "1e0"),
        ("delta", "0.0000000400"),
        ("max_records", "5000"),
        ("max_records", True),
        ("closes_at", "2030-01-02"),
        ("features", {}),
        ("participants", None),
        ("user", []),
        ("title", 1),
    ],
)
def test_a_wrong_shape_is_refused(body: dict[str, Any], member: str, value: object) -> None:
    body[member] = value
    with pytest.raises(MessageError):
        parse(body)


def test_sum_weight_follows_the_release(make_manifest: MakeManifest) -> None:
    joint, masked = make_manifest(release="joint").to_body(), make_manifest(release="masked").to_body()
    assert (joint["sum_weight"], masked["sum_weight"]) == ("0.43", "0")
    for body, weights in ((joint, ("0", "-1", "2.01")), (masked, ("0.43",))):
        for weight in weights:
            with pytest.raises(PolicyError, match="sum_weight"):
                parse({**body, "sum_weight": weight})


def test_a_masked_study_names_its_owners(make_manifest: MakeManifest) -> None:
    masked = make_manifest(release="masked").to_body()
    with pytest.raises(PolicyError, match="named participants"):
        parse({**masked, "participants": []})
    joint = {**make_manifest(release="joint").to_body(), "participants": []}
    assert parse(joint).participants == ()
    with pytest.raises(PolicyError, match="when-complete needs named participants"):
        parse({**joint, "closing": "when-complete"})


def test_one_key_has_one_role_and_one_name(body: dict[str, Any]) -> None:
    twice = copy.deepcopy(body)
    twice["participants"][1]["ed25519"] = twice["participants"][0]["ed25519"]
    namesakes = copy.deepcopy(body)
    namesakes["participants"][1]["name"] = namesakes["participants"][0]["name"]
    user_is_owner = copy.deepcopy(body)
    user_is_owner["participants"][1]["ed25519"] = body["user"]["ed25519"]
    user_is_proxy = copy.deepcopy(body)
    user_is_proxy["proxy"]["ed25519"] = body["user"]["ed25519"]
    for changed in (twice, namesakes, user_is_owner, user_is_proxy):
        with pytest.raises(PolicyError, match="contains an entry twice"):
            parse(changed)


def test_more_participants_than_places_are_refused(manifest: Manifest) -> None:
    body = replace(manifest, min_owners=1, max_owners=2).to_body()
    with pytest.raises(PolicyError, match="3 participants are named, but the study is for 1 to 2 owners"):
        parse(body)
    body = replace(manifest, min_owners=4, max_owners=9).to_body()
    with pytest.raises(PolicyError, match="for 4 to 9 owners"):
        parse(body)


def test_feature_names_are_unique(body: dict[str, Any]) -> None:
    body["features"][1]["name"] = "age"
    with pytest.raises(PolicyError, match="features contains an entry twice"):
        parse(body)


def test_common_scaling_refuses_categories(make_manifest: MakeManifest, draft: dict[str, Any]) -> None:
    features = [*draft["features"], {"name": "blood", "levels": ["A", "B"]}]
    assert make_manifest(features=features).figures.encoded_features == 5
    with pytest.raises(PolicyError, match="scaling common"):
        make_manifest(features=features, scaling="common")


def test_too_many_levels_are_refused(make_manifest: MakeManifest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpdpca_protocol.terms.rules.MAX_ENCODED_FEATURES", 4)
    with pytest.raises(PolicyError, match="more than 4 encoded features"):
        make_manifest(features=[{"name": "blood", "levels": list("ABCDE")}])


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"modulus": "00" * 64}, PolicyError),
        ({"modulus": "7f" + "ff" * 63}, PolicyError),
        ({"modulus": "FF" * 64}, MessageError),
        ({"modulus": "ff" * 1025}, MessageError),
        ({"modulus": 12345}, MessageError),
        ({"proof": []}, CryptographicError),
        ({"proof": ["00" * 63]}, MessageError),
        ({"proof": ["00" * 64] * 65}, PolicyError),
        ({"proof": "00"}, MessageError),
        ({"generator": "02"}, MessageError),
    ],
)
def test_a_key_of_another_form_is_refused(
    body: dict[str, Any],
    parties: Parties,
    change: dict[str, Any],
    error: type[PolicyError] | type[MessageError] | type[CryptographicError],
) -> None:
    body["key"].update(change)
    with pytest.raises(error):
        open_manifest(sign_statement("manifest", body, parties.user).encoded, key_rules=KeyRules(LEAST))


def test_units_of_the_encoded_columns(make_manifest: MakeManifest, draft: dict[str, Any]) -> None:
    ranged = make_manifest()
    assert ranged.encoded_names == ("age", "systolic", "weight")
    assert ranged.feature_units == tuple(
        (Fraction(origin), Fraction(unit)) for origin, unit in ((50, 50), (120, 100), ("126.5", 124))
    )
    assert [unit for _, unit in make_manifest(scaling="common").feature_units] == [124] * 3
    mixed = make_manifest(features=[draft["features"][0], {"name": "blood", "levels": ["A", "B"]}])
    assert mixed.feature_units == tuple(
        (Fraction(origin), Fraction(unit)) for origin, unit in ((50, 50), (0, 1), (0, 1))
    )
    assert mixed.encoded_names == ("age", "blood = A", "blood = B")


def test_a_full_size_key_needs_no_test_switch(make_manifest: MakeManifest, parties: Parties) -> None:
    """The one slow test here: 2,048 bits, through the path that the product takes."""
    secret = generate_secret_key(2048, OS_RANDOMNESS)
    proof = prove_key(secret, parties.user.public.ed25519)
    manifest = make_manifest()
    keyed = replace(
        manifest,
        key=KeyTerms.of(secret.public, proof),
    )
    signed = open_manifest(sign_manifest(keyed, parties.user).encoded)
    assert signed.public_key.bits == 2048


def test_a_participant_survives_its_body() -> None:
    participant = Participant("A", bytes(32))
    assert Participant.parse(participant.to_body(), "p") == participant


@pytest.mark.parametrize("second", ["hospital a", "Hospital A\u00a0", "Ｈospital A"])
def test_names_that_a_reader_would_take_for_one_are_refused(
    make_manifest: MakeManifest, parties: Parties, second: str
) -> None:
    body = make_manifest().to_body()
    body["participants"][1]["name"] = second
    with pytest.raises((MessageError, PolicyError)):
        parse(body)
