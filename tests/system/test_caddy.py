"""`deploy/Caddyfile.example` in a real Caddy: a study through it, and large bodies."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from federation.behind import run_whole_study
from federation.caddy import Caddy
from federation.world import Federation, federation_in
from installed import program

from dpdpca_protocol.errors import DpdpcaError
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_protocol.wire.sealing import seal

CHUNK_BYTES = 1024 * 2048
"""Of a whole chunk under a key of 8,192 bits, the largest that a study may have."""


@pytest.fixture(scope="module")
def caddy(tmp_path_factory: pytest.TempPathFactory) -> Caddy:
    path = "/usr/bin:/usr/local/bin"
    return Caddy.make(tmp_path_factory.mktemp("caddy"), program("caddy", "Debian: caddy", path))


@pytest.fixture(scope="module")
def federation(caddy: Caddy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Parties that know the proxy by Caddy's address alone."""
    folder = tmp_path_factory.mktemp("behind-caddy")
    with federation_in(folder, public_url=caddy.url, ca_file=caddy.ca_file) as behind:
        yield behind


def test_the_example_loads_as_it_is_shipped(caddy: Caddy) -> None:
    assert "Valid configuration" in caddy.check(caddy.example)


def test_a_whole_study_goes_through_it_with_live_events(
    caddy: Caddy, federation: Federation, tmp_path: Path
) -> None:
    with caddy.serving(federation.port):
        run_whole_study(federation, tmp_path)


def test_the_largest_chunk_reaches_the_proxy(caddy: Caddy, federation: Federation) -> None:
    with caddy.serving(federation.port):
        assert _put_large_chunk(federation).slug == "not-found"


def _put_large_chunk(federation: Federation) -> DpdpcaError:
    """What a chunk meets in a study that does not exist."""
    with federation.client(federation.owners(1)[0].key()) as client:
        sealed = seal(bytes(32 + CHUNK_BYTES), client.card()[0].identity.sealing_key, b"")
        with pytest.raises(DpdpcaError) as refused:
            client.put_chunk(StudyId.of(b"none"), 1, 0, sealed)
    return refused.value
