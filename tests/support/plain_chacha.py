"""ChaCha20 (RFC 8439) with Python's integers, written from the RFC alone."""

import struct

_MASK = 0xFFFFFFFF
_ROUNDS = (
    (0, 4, 8, 12),
    (1, 5, 9, 13),
    (2, 6, 10, 14),
    (3, 7, 11, 15),
    (0, 5, 10, 15),
    (1, 6, 11, 12),
    (2, 7, 8, 13),
    (3, 4, 9, 14),
)


def chacha20_stream(key: bytes, nonce: bytes, counter: int, count: int) -> bytes:
    """`count` bytes of the stream, from block `counter` on.

    Args:
        key: 32 bytes.
        nonce: 12 bytes.
    """
    blocks = range(counter, counter + -(-count // 64))
    return b"".join(_block(key, nonce, block) for block in blocks)[:count]


def _block(key: bytes, nonce: bytes, counter: int) -> bytes:
    start = [*struct.unpack("<4I", b"expand 32-byte k"), *struct.unpack("<8I", key), counter]
    start += struct.unpack("<3I", nonce)
    state = list(start)
    for _ in range(10):
        for a, b, c, d in _ROUNDS:
            for x, y, z, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                state[x] = (state[x] + state[y]) & _MASK
                turned = state[z] ^ state[x]
                state[z] = (turned << bits | turned >> 32 - bits) & _MASK
    return struct.pack("<16I", *((a + b) & _MASK for a, b in zip(state, start, strict=True)))
