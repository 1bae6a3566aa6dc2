"""Draws that repeat: a seeded source behind the same door as the operating system's."""

import random

import pytest

from dpdpca_lab.central.entropy import RealDraws


class SeededRandomness:
    def __init__(self, seed):
        self._source = random.Random(seed)

    def bytes(self, count):
        return self._source.randbytes(count)

    def below(self, bound):
        return self._source.randrange(bound)


@pytest.fixture
def draws():
    return RealDraws(SeededRandomness(20181210))
