"""One source, the operating system's: after a fork of eight workers nothing that was drawn comes twice (A22),
and no setting puts another one in its place (P36)."""

import json
import pickle
import subprocess
import sys
from collections import Counter

import pytest
from promises import Promise
from pydantic_settings import BaseSettings

from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_proxy.settings import Settings as ProxySettings
from dpdpca_user_service.settings import Settings as UserSettings

WORKERS = 8

FORKS = """
import json, os, sys
from fractions import Fraction
from datetime import UTC, datetime
from gmpy2 import mpz
import httpx
from dpdpca_runtime.http.signature import RequestSigner
from dpdpca_protocol.privacy.gaussian import discrete_gaussian
from dpdpca_protocol.privacy.gaussian_draws import draw_gaussians
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_protocol.paillier.cipher import Encryptor
from dpdpca_protocol.paillier.keys import KeyRules, generate_secret_key
from dpdpca_protocol.paillier.residues import uniform_residue
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.wire.sealing import components_info, seal, seal_at_rest
from dpdpca_protocol.wire.signing import IdentityKey

SECRET = generate_secret_key(512, OS_RANDOMNESS, rules=KeyRules(512))
ENCRYPTOR = Encryptor(SECRET.public, 64)
SIGNER = RequestSigner(IdentityKey.generate())
IDENTITY = IdentityKey.generate()

def nonce():
    request = httpx.Request("GET", "http://127.0.0.1/v1/proxy")
    SIGNER.sign(request, None, datetime.now(UTC))
    return request.headers["signature-input"]

def draws():
    \"\"\"Of every kind of value that the product draws, some.\"\"\"
    found = {
        "bytes": [OS_RANDOMNESS.bytes(16).hex() for _ in range(200)],
        "below": [str(OS_RANDOMNESS.below(2**128)) for _ in range(200)],
        "ciphertexts of 0": [str(ENCRYPTOR.encrypt(0)) for _ in range(50)],
        "residues": [str(uniform_residue(SECRET.public, OS_RANDOMNESS)) for _ in range(50)],
        "identity keys": [IdentityKey.generate().public.ed25519.hex() for _ in range(20)],
        "nonces": [nonce() for _ in range(20)],
        "sealed": [seal(b"x", IDENTITY.public.sealing_key, b"info").hex() for _ in range(20)],
        "sealed at rest": [seal_at_rest(b"x", bytes(32), b"c", OS_RANDOMNESS).hex() for _ in range(20)],
        "noise": [str(discrete_gaussian(Fraction(2**80), 12, 2**45)) for _ in range(5)],
        "noise in arrays": [str(draw_gaussians(2.0**40, 12, 2**45).tolist()) for _ in range(5)],
    }
    return found

rows = [draws()]  # so that whatever keeps a state has one before the fork
for _ in range(WORKERS):
    ours, theirs = os.pipe()
    if os.fork() == 0:
        os.close(ours)
        with os.fdopen(theirs, "w") as pipe:
            json.dump(draws(), pipe)
        os._exit(0)
    os.close(theirs)
    rows.append(ours)
rows = [row if isinstance(row, dict) else json.load(os.fdopen(row)) for row in rows]
for _ in range(WORKERS):
    assert os.wait()[1] == 0
json.dump(rows, sys.stdout)
"""


def test_nothing_repeats_after_a_fork(promise: Promise) -> None:
    script = FORKS.replace("WORKERS", str(WORKERS))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr.decode()
    rows = json.loads(done.stdout)
    assert len(rows) == WORKERS + 1
    kinds = rows[0].keys()
    total = 0
    for kind in kinds:
        counted = Counter(value for row in rows for value in row[kind])
        total += counted.total()
        assert not [value for value, times in counted.items() if times > 1], kind
    assert len(kinds) == 10
    promise(
        "P36",
        counted=f"{total:,} draws of {len(kinds)} kinds in {WORKERS} forks and before",
        result="0 repeat",
    )


def test_the_source_in_another_process_is_that_processs_own() -> None:
    assert pickle.loads(pickle.dumps(OS_RANDOMNESS)) is OS_RANDOMNESS


@pytest.mark.parametrize("settings", [ProxySettings, UserSettings])
def test_no_setting_reaches_the_randomness(settings: type[BaseSettings], promise: Promise) -> None:
    words = ("random", "seed", "noise", "entropy", "sampler", "scripted", "least", "insecure")
    names = settings.model_fields.keys() - {"executor_least_seconds"}  # how much work goes to a cluster
    assert not [name for name in names if any(word in name for word in words)]
    promise(
        "P36", counted=f"{len(names)} settings of {settings.__module__}", result="none reaches randomness"
    )
