"""What `dpdpca bench scale` measures on a real proxy: its requests, their sizes, and its answers."""

from dpdpca_lab.scale.uploads import ask, upload
from dpdpca_protocol.messages.share import CHUNK_OVERHEAD_BYTES


def test_a_real_proxy_takes_in_what_is_measured() -> None:
    found = upload(5, 2)
    assert (found.shares, found.chunks) == (2, 1)
    assert found.bytes == 2 * (8 * (1 + 5 + 15) + CHUNK_OVERHEAD_BYTES)
    assert found.cpu_seconds >= 0
    assert found.seconds > 0


def test_a_real_proxy_answers_what_is_measured() -> None:
    found = ask(parties=300, features=20_000, times=20)
    assert found.short > 0
    assert found.list_byte > 0
    assert found.file_byte >= 0
