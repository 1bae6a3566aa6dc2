"""Draws that repeat: a seeded source behind the same door as the operating system's."""

import random

import pytest

from dpdpca_lab.central.entropy import RealDraws


class SeededRandomness:
    def __init__(self, seed: int) -> None:
        self._source = random.Random(seed)

    def bytes(self, count: int) -> bytes:
        return self._source.randbytes(count)

    def below(self, bound: int) -> int:
        return self._source.randrange(bound)


@pytest.fixture
def draws() -> RealDraws:
    return RealDraws(SeededRandomness(20181210))
