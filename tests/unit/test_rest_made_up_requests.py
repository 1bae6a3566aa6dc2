"""Schemathesis makes up requests from both OpenAPI documents; no answer to them breaks the documents.

What a study forbids is in no schema, so a request that fits the schema may be refused.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from made_up_requests import SignedBy, about_known
from played_study import Played, play
from proxy_world import unlike_before
from schemathesis.core.failures import FailureGroup
from schemathesis.core.result import Ok
from schemathesis.pytest.lazy import get_all_tests  # its own fixture needs an older pytest
from schemathesis.schemas import BaseSchema
from study_parties import Parties
from user_world import TOKEN

from dpdpca_protocol.terms.parties import KeyTerms
from dpdpca_user.planning.lint import TOML_MEDIA_TYPE
from dpdpca_user_service.stages import Stage
from dpdpca_user_service.work import MadeKey

pytestmark = pytest.mark.system  # hundreds of requests for each service

QUICK = settings(
    max_examples=3,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
LONG = settings(QUICK, max_examples=400)
LARGE_BODIES = [("POST", "/v1/drafts/plan"), ("POST", "/v1/studies"), ("POST", "/v1/chains")]
"""A draft or manifest can be wrong in hundreds of places: only the nightly run tries them all on these."""


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory, parties: Parties) -> Iterator[Played]:
    yield from play(tmp_path_factory.mktemp("made-up"), parties, "joint")


@pytest.fixture(scope="module")
def open_studies(played: Played) -> list[str]:
    return [_open_study(played) for _ in range(2)]


def config(how: settings, **more: Any) -> schemathesis.Config:
    cut = {"phases": {"coverage": {"enabled": False}}}
    large = [{"include-method": method, "include-path": path} | cut for method, path in LARGE_BODIES]
    return schemathesis.Config.from_dict(
        {
            "checks": {"positive_data_acceptance": {"enabled": False}},
            "max-stream-events": 1,
            "operations": large if how is QUICK else [],
            **more,
        }
    )


def _open_study(played: Played) -> str:
    played.world.with_new_key()
    key = KeyTerms.of(played.world.secret.public, played.world.proof)
    played.home.workers.keys.append(MadeKey(played.world.secret.to_bytes(), key))
    row = played.home.create(features=unlike_before(3))
    return played.home.advance_to(row, Stage.OPEN).known_study.hex()


def keep_to_documents(
    schema: BaseSchema, ask: Callable[[schemathesis.Case[Any]], None], how: settings
) -> None:
    """Asks every operation with made-up requests.

    Raises:
        BaseExceptionGroup: of the operations whose answers break the document.
    """
    broken: list[BaseException] = []
    for result in get_all_tests(schema=schema, test_func=ask, settings=how, given_kwargs={}):
        assert isinstance(result, Ok)
        operation, test = result.ok()
        try:
            test()
        except (Exception, FailureGroup) as error:
            error.add_note(operation.label)
            broken.append(error)
    if broken:
        raise BaseExceptionGroup("answers that break the document", broken)


@schemathesis.serializer(TOML_MEDIA_TYPE)
def send_toml(_context: object, made_up: object) -> bytes:
    return str(made_up).encode()


def ask_user(played: Played, open_studies: list[str], how: settings) -> None:
    by_token = config(how, auth={"openapi": {"token": {"bearer": TOKEN}}})
    schema = schemathesis.openapi.from_asgi("/openapi.json", played.user_app, config=by_token)
    about_known(schema, study=[played.study, *open_studies])

    def ask(case: schemathesis.Case[Any]) -> None:
        case.call_and_validate()

    keep_to_documents(schema, ask, how)
    assert played.user.faults == []


def ask_proxy(played: Played, open_studies: list[str], how: settings) -> None:
    schema = schemathesis.openapi.from_url(f"{played.world.url}/openapi.json", config=config(how))
    about_known(schema, study=[played.study, *open_studies])
    by_parties = SignedBy([played.world.user, played.world.owners[0]])

    def ask(case: schemathesis.Case[Any]) -> None:
        case.call_and_validate(auth=by_parties)

    keep_to_documents(schema, ask, how)
    assert played.proxy.faults == []


def test_the_user_s_service_answers_as_it_says(played: Played, open_studies: list[str]) -> None:
    ask_user(played, open_studies, QUICK)


def test_the_proxy_answers_as_it_says(played: Played, open_studies: list[str]) -> None:
    ask_proxy(played, open_studies, QUICK)


@pytest.mark.nightly
def test_the_user_s_service_answers_as_it_says_at_length(played: Played, open_studies: list[str]) -> None:
    ask_user(played, open_studies, LONG)


@pytest.mark.nightly
def test_the_proxy_answers_as_it_says_at_length(played: Played, open_studies: list[str]) -> None:
    ask_proxy(played, open_studies, LONG)
