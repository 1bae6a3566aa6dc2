"""A finished study of four columns, as `plain_study` makes it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from plain_study import made_people, plain_model

from dpdpca_protocol.paillier.keys import SecretKey, generate_secret_key
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_user.results.model import Model


@pytest.fixture(scope="session")
def real_key() -> SecretKey:
    return generate_secret_key(2048, OS_RANDOMNESS)


@pytest.fixture(scope="session")
def people() -> dict[str, list[Any]]:
    return made_people()


@pytest.fixture(scope="session")
def make_model(real_key: SecretKey, people: dict[str, list[Any]]) -> Callable[..., Model]:
    """make_model(**changes of the draft): the model of a study on `people`."""
    return partial(plain_model, real_key, people)


@pytest.fixture(scope="session")
def joint_model(make_model: Callable[..., Model]) -> Model:
    return make_model()


@pytest.fixture(scope="session")
def masked_model(make_model: Callable[..., Model]) -> Model:
    return make_model(release="masked")


@pytest.fixture
def encoded_people(people: dict[str, list[Any]]) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """The first rows as the d encoded columns, in the manifest's order."""
    sex = people["<b>sex</b>"][:50]
    return np.column_stack(
        [
            people["height"][:50],
            people["weight"][:50],
            [float(value == "f") for value in sex],
            [float(value == "m") for value in sex],
            people["age"][:50],
        ]
    )
