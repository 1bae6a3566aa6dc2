"""The client of the data user's service stands on the product's one HTTP client."""

from collections.abc import Callable

import httpx
import pytest

from dpdpca_protocol.errors import DpdpcaError, LimitError, MessageError, UnavailableError
from dpdpca_runtime.http.retry import Patience
from dpdpca_user import service_client
from dpdpca_user.service_client import ServiceClient

FACTS = {"id": "0b" * 16}


class Service:
    """Answers in turn, and notes what was asked."""

    def __init__(self, *answers: httpx.Response | httpx.TransportError) -> None:
        self.answers = list(answers)
        self.asked: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, httpx.TransportError):
            raise answer
        return answer

    def client(self) -> ServiceClient:
        slept: list[float] = []
        patience = Patience(30, sleep=slept.append, clock=lambda: sum(slept))
        return ServiceClient(
            "https://user.example:8450", "open sesame", transport=httpx.MockTransport(self), patience=patience
        )

    def refusal(self, ask: Callable[[ServiceClient], object]) -> DpdpcaError:
        with pytest.raises(DpdpcaError) as refused:
            ask(self.client())
        return refused.value


def problem(status: int, slug: str) -> httpx.Response:
    document = {"type": f"urn:dpdpca:problem:{slug}", "status": status, "detail": "no", "next_step": ""}
    return httpx.Response(status, json=document)


def create(client: ServiceClient) -> object:
    return client.create(b"{}", "application/json")


def test_it_shows_its_token_and_says_what_it_sends() -> None:
    service = Service(httpx.Response(202, json=FACTS))
    service.client().create(b"{}", "application/json", proxy="https://relay.example/?a=b&c")
    (request,) = service.asked
    assert request.headers["authorization"] == "Bearer open sesame"
    assert request.headers["content-type"] == "application/json"
    assert dict(request.url.params) == {
        "publish": "true",
        "in_clear": "false",
        "proxy": "https://relay.example/?a=b&c",
    }


@pytest.mark.parametrize("status", [429, 502, 503, 504, 507])
def test_a_busy_service_is_asked_again(status: int) -> None:
    service = Service(problem(status, "busy"), httpx.Response(200, json={"studies": [FACTS]}))
    assert service.client().studies() == [FACTS]
    assert len(service.asked) == 2


@pytest.mark.parametrize(
    "answer",
    [
        httpx.ReadError("cut"),
        httpx.ReadTimeout("slow"),
        *(httpx.Response(status) for status in (502, 503, 504)),
        problem(503, "busy"),
    ],
    ids=repr,
)
def test_what_may_have_been_done_is_not_done_twice(answer: httpx.Response | httpx.TransportError) -> None:
    service = Service(answer, httpx.Response(202, json=FACTS))
    assert isinstance(service.refusal(create), UnavailableError)
    assert len(service.asked) == 1


def test_a_service_that_is_not_there_is_told_at_once() -> None:
    service = Service(httpx.ConnectError("refused"))
    refused = service.refusal(lambda client: client.studies())
    assert refused.slug == "unreachable"
    assert refused.problem.startswith("the data user's service at https://user.example:8450")


def test_another_site_is_not_taken_for_the_service() -> None:
    page = httpx.Response(200, html="<p>Log in</p>")
    refused = Service(page).refusal(lambda client: client.studies())
    assert refused.problem.startswith("a web page came instead of the data user's service's answer")
    assert "the data user's service needs its own host name" in refused.next_step


def test_a_report_is_a_page() -> None:
    service = Service(httpx.Response(200, html="<p>Report</p>"))
    assert service.client().report("0b" * 16) == b"<p>Report</p>"


@pytest.mark.parametrize("content", [b"[]", b"not JSON", b'{"a": 1, "a": 2}', b"\xff"])
def test_an_answer_that_is_no_object_is_explained(content: bytes) -> None:
    answer = httpx.Response(200, content=content, headers={"content-type": "application/json"})
    refused = Service(answer).refusal(lambda client: client.studies())
    assert isinstance(refused, MessageError)
    assert refused.problem.startswith("the answer of the data user's service cannot be read: ")


def test_an_answer_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_client, "_LIMIT_BYTES", 10)
    refused = Service(httpx.Response(200, content=b"x" * 11)).refusal(
        lambda client: client.model_file("0b" * 16)
    )
    assert isinstance(refused, LimitError)
    assert refused.problem == "the answer of the data user's service is larger than the limit of 10 bytes"
