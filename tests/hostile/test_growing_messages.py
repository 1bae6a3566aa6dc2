"""Drafts, signed messages, answers and model files that grow as they are read: refused, or bounded (P37)."""

import io
import json
import os
import zipfile
from collections.abc import Iterator
from itertools import cycle
from typing import Any

import httpx
import numpy as np
import pytest
from model_service import ModelService, growth_of, made_model, problem_of, served_models
from promises import Promise
from proxy_process import started_world
from proxy_world import slug
from quick_folder import quick_folder
from study_parties import Parties

from dpdpca_protocol.errors import DpdpcaError, LimitError, MessageError
from dpdpca_protocol.wire.http import MANIFEST_LIMIT_BYTES, RELEASE_LIMIT_BYTES
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_proxy.routes.shares import SHARE_STATEMENT_LIMIT_BYTES
from dpdpca_runtime.http.client import ProxyClient
from dpdpca_runtime.http.retry import Patience
from dpdpca_user.home import EnrolledProxy, UserHome
from dpdpca_user.results.model import Model
from dpdpca_user_service.routes.requests import DRAFT_LIMIT_BYTES

pytestmark = pytest.mark.system  # messages of many megabytes

MB = 1024 * 1024
MOST_GROWTH = 512 * MB
JSON, TOML = "application/json", "application/toml"
FEW: dict[str, Any] = {
    "title": "t",
    "purpose": "p",
    "features": [{"name": "x", "lower": 0, "upper": 1}],
    "clip_norm": 1,
    "epsilon": 1.0,
    "release": "joint",
    "max_records": 5000,
}
HEAD = b'title="t"\npurpose="p"\nepsilon=1.0\nrelease="joint"\nfeatures=[{name="a",lower=0,upper=1}]\n'


def filled(begin: bytes, unit: bytes, end: bytes, size: int) -> bytes:
    return begin + unit * ((size - len(begin) - len(end)) // len(unit)) + end


def numbered(form: bytes, count: int) -> bytes:
    return b"".join(form % index for index in range(count))[:DRAFT_LIMIT_BYTES]


def draft(**changes: Any) -> bytes:
    return json.dumps(FEW | changes).encode()


ALL = DRAFT_LIMIT_BYTES
SAYS_NOTHING = [
    draft(features=[1]),
    draft(features={"a": 1}),
    draft(features=[{"name": "x"}]),
    draft(features=[{"name": "x", "levels": 1}]),
    draft(title="\ud800"),
    b'{"title": "\\ud800"}',
    b'{"title": "t", "title": "t"}',
    b"\xef\xbb\xbf" + draft(),
    draft().decode().encode("utf-16"),
]


def growing_drafts() -> dict[str, tuple[str, bytes]]:
    """Media types and bodies."""
    return {
        "10,000,000 owners": (JSON, draft(min_owners=10**7)),
        "300,000 participants": (JSON, draft(participants=["o"] * 300_000)),
        "lists": (JSON, filled(b'{"a":[', b"[],", b"0]}", ALL)),
        "objects": (JSON, filled(b'{"a":[', b'{"a":0},', b"0]}", ALL)),
        "members": (JSON, b"{" + b",".join(b'"%x":0' % index for index in range(300_000)) + b"}"),
        "digits in JSON": (JSON, filled(b'{"max_records":', b"9", b"}", ALL)),
        "3,000 digits": (JSON, draft(max_records=10**3000)),
        "tables": (TOML, numbered(b"[a%x]\n", 400_000)),
        "tables in tables": (TOML, numbered(b"[a%x.b]\n", 400_000)),
        "as many tables as may be": (TOML, numbered(b"[a%x]\n", 199_000)),
        "as many members as may be": (JSON, b"{" + b",".join(b'"%x":0' % i for i in range(199_000)) + b"}"),
        "as many objects as may be": (JSON, filled(b'{"a":[', b'{"a":0},', b"0]}", 790_000)),
        "keys of parts": (TOML, numbered(b"a." * 60 + b"%x=0\n", 30_000)),
        "lists in TOML": (TOML, filled(b"a=[", b"[],", b"0]", ALL)),
        "digits in TOML": (TOML, filled(b"a=", b"9", b"", ALL)),
        "decimals": (TOML, filled(b"a=1.", b"9", b"", ALL)),
        "hex digits": (TOML, HEAD + b"clip_norm=1\nmax_records=0x" + b"f" * 5000),
    }


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelService]:
    folder = tmp_path_factory.mktemp("drafts")
    with served_models(folder, [made_model()]) as service:
        proxy = EnrolledProxy("http://127.0.0.1:1", "Relay", "ab" * 32, "cd" * 32)
        UserHome(folder / "user").pin_proxy(proxy)
        yield service


def test_drafts_that_grow_are_refused_in_bounded_memory(service: ModelService, promise: Promise) -> None:
    growths = {}
    paths = cycle(("/v1/studies", "/v1/chains"))  # both read a body in the same way
    for name, (media_type, body) in growing_drafts().items():
        assert len(body) <= DRAFT_LIMIT_BYTES
        with service.memory as growth:
            answer = service.client.post(next(paths), content=body, headers={"content-type": media_type})
        assert answer.status_code in (400, 403, 413), (name, answer.text[:300])
        problem_of(answer)
        growths[name] = growth.most
    assert max(growths.values()) < MOST_GROWTH / 2, growths
    promise(
        "P37",
        counted=f"{len(growths)} drafts in JSON and TOML that grow",
        result=f"all refused; {max(growths.values()) // MB} MiB at the most",
    )


def test_drafts_that_say_nothing_are_no_errors_of_the_service(service: ModelService) -> None:
    for path in ("/v1/studies", "/v1/chains"):
        for body in SAYS_NOTHING:
            answer = service.client.post(path, content=body, headers={"content-type": JSON})
            assert answer.status_code in (400, 403), (path, body[:80], answer.text[:300])
        for value in (b"2030-01-01", b"10:00:00", b"2030-01-01T00:00:00"):
            body = HEAD + b"clip_norm=1\nmax_records=5000\ncloses_at=" + value
            answer = service.client.post(path, content=body, headers={"content-type": TOML})
            assert answer.status_code == 400, (path, value, answer.text[:300])
    for records in (10**20, 10**4000):
        answer = service.client.post(
            f"/v1/chains?records={records}", content=draft(), headers={"content-type": JSON}
        )
        assert answer.status_code == 400


def signed(body: bytes) -> bytes:
    """In the form of a statement, signed by nobody."""
    kind, signature, signer = b"manifest", b"0" * 128, b"0" * 64
    return b'{"body":%s,"kind":"%s","signature":"%s","signer":"%s"}' % (body, kind, signature, signer)


def test_signed_messages_that_grow_are_refused_in_bounded_memory(parties: Parties, promise: Promise) -> None:
    def bodies(size: int) -> dict[str, bytes]:
        room = size - 300
        return {
            "lists": signed(filled(b'{"a":[', b"[],", b"0]}", room)),
            "objects": signed(filled(b'{"a":[', b'{"a":0},', b"0]}", room)),
            "members": signed(
                b"{" + b",".join(sorted(b'"%x":0' % index for index in range(room // 11))) + b"}"
            ),
            "numbers": signed(filled(b'{"a":[', b"999,", b"0]}", room)),
            "wide letters": signed(filled(b'{"a":"\xf0\x9f\x98\x80', b"a", b'"}', room)),
        }

    with quick_folder() as folder, started_world(folder, parties) as world:
        study = world.open_study(3)
        paths = {
            (world.user, "POST", "/v1/studies"): MANIFEST_LIMIT_BYTES,
            (world.owners[0], "POST", f"{study.path}/share/complete"): SHARE_STATEMENT_LIMIT_BYTES,
        }
        growths = {}
        for (key, method, path), size in paths.items():
            for name, body in bodies(size).items():
                with growth_of(world.first.pid) as growth:
                    answer = world.request(key, method, path, body)
                assert answer.status_code in (400, 401, 413), (name, answer.text[:300])
                slug(answer)
                growths[name] = growth.most
    assert max(growths.values()) < MOST_GROWTH / 2, growths
    promise(
        "P37",
        counted=f"{2 * len(growths)} signed messages that grow, at the proxy",
        result=f"all refused; {max(growths.values()) // MB} MiB at the most",
    )


def answering(body: bytes) -> ProxyClient:
    """A client of a proxy that answers everything with `body`."""
    transport = httpx.MockTransport(lambda request: httpx.Response(200, content=body))
    key = IdentityKey.generate()
    return ProxyClient("http://127.0.0.1:1", key, key.public.ed25519, transport, patience=Patience(seconds=0))


def test_answers_that_grow_are_refused_in_bounded_memory(promise: Promise) -> None:
    """A proxy's answers are read in the process that holds the secret keys."""
    size, study = 16 * MB, StudyId(bytes(32))
    bombs = {
        "lists": filled(b'{"parties":[', b"[],", b"0]}", size),
        "objects": filled(b'{"studies":[', b'{"a":0},', b"{}]}", size),
        "members": b'{"events":[],' + b",".join(b'"%x":0' % index for index in range(1_000_000)) + b"}",
        "wide letters": filled(b'{"title":"\xf0\x9f\x98\x80', b"a", b'"}', size),
        "deep": b'{"a":' + b"[" * 900 + b"]" * 900 + b"}",
        "twice": b'{"parties":[],"parties":[]}',
        "UTF-16": '{"parties":[]}'.encode("utf-16"),
        "a release of lists": filled(b'{"shares":[', b"[],", b"0]}", RELEASE_LIMIT_BYTES),
        "a release of objects": filled(b'{"shares":[', b'{"a":0},', b"{}]}", RELEASE_LIMIT_BYTES),
        "a longer release": filled(b'{"release":"', b"a", b'"}', RELEASE_LIMIT_BYTES + 1024),
    }
    growths = {}
    for name, body in bombs.items():
        with answering(body) as client, growth_of(os.getpid()) as growth:
            asked = (
                [client.release] if "release" in name else [client.study, client.transcript, client.release]
            )
            for ask in asked:
                with pytest.raises((LimitError, MessageError)):
                    ask(study)
        growths[name] = growth.most
    assert max(growths.values()) < MOST_GROWTH, growths
    promise(
        "P37",
        counted=f"{len(bombs)} answers of a proxy that grow",
        result=f"all refused; {max(growths.values()) // MB} MiB at the most",
    )


def npz(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return file.getvalue()


def text_array(content: bytes, shape: tuple[int, ...] | None = None) -> bytes:
    file = io.BytesIO()
    header = {"descr": "|u1", "fortran_order": False, "shape": shape or (len(content),)}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + content


def test_model_files_that_grow_are_refused_in_bounded_memory(promise: Promise) -> None:
    good = made_model()
    with zipfile.ZipFile(io.BytesIO(good.to_bytes())) as archive:
        parts = {name.removesuffix(".npy"): archive.read(name) for name in archive.namelist()}
    assert Model.from_bytes(npz(parts)).study == good.study
    metadata = filled(b'{"format":1,"manifest":[', b"[],", b"0]}", 60 * MB)
    bombs = {
        "zeros": npz(parts | {"metadata": text_array(bytes(300 * MB))}),
        "as many zeros as may be": npz(parts | {"metadata": text_array(bytes(63 * MB))}),
        "zeros for components": npz(parts | {"components": text_array(bytes(127 * MB))}),
        "lists for components": npz(
            parts | {"components": text_array(filled(b"[", b"[],", b"0]", 127 * MB))}
        ),
        "zeros for features, too": npz(
            parts | {"feature_list": text_array(bytes(63 * MB)), "components": text_array(bytes(127 * MB))}
        ),
        "a shape of 10¹²": npz(parts | {"metadata": text_array(b"{}", (10**12,))}),
        "lists": npz(parts | {"metadata": text_array(metadata)}),
        "objects of Python": npz(parts | {"metadata": b"\x93NUMPY\x01\0\x02\0{}"}),
        "other arrays": npz(parts | {"metadata": text_array(b"{}"), "vectors": text_array(bytes(300 * MB))}),
    }
    growths = {}
    for name, body in bombs.items():
        assert len(body) < MB
        with growth_of(os.getpid()) as growth, pytest.raises(DpdpcaError):
            Model.from_bytes(body)
        growths[name] = growth.most
    assert max(growths.values()) < MOST_GROWTH, growths
    promise(
        "P37",
        counted=f"{len(bombs)} model files (.npz) that grow",
        result=f"all refused; {max(growths.values()) // MB} MiB at the most",
    )


def test_an_honest_wide_model_is_read() -> None:
    """The limits leave room for what studies make."""
    features = [{"name": f"mesure n° {index}", "lower": -1, "upper": 1} for index in range(2000)]
    model = made_model(features, clip_norm=2, fraction_bits=10)
    assert Model.from_bytes(model.to_bytes()).components.vectors.shape == (256, 2000)
