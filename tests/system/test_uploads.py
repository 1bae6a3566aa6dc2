"""What `dpdpca bench scale` measures on a real proxy: its requests and their sizes."""

from dpdpca_lab.scale.uploads import upload
from dpdpca_protocol.messages.share import CHUNK_OVERHEAD_BYTES


def test_a_real_proxy_takes_in_what_is_measured() -> None:
    found = upload(5, 2)
    assert (found.shares, found.chunks) == (2, 1)
    assert found.bytes == 2 * (8 * (1 + 5 + 15) + CHUNK_OVERHEAD_BYTES)
    assert found.cpu_seconds >= 0
    assert found.seconds > 0
