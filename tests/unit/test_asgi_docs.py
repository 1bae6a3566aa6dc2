"""The OpenAPI document is made when somebody asks for it, and then once."""

import asyncio
import time
from typing import Any

import httpx
from fastapi import FastAPI

from dpdpca_runtime.asgi.pages import install_docs


class Counting(FastAPI):
    made = 0

    def openapi(self) -> dict[str, Any]:
        self.made += 1
        time.sleep(0.05)  # as long as the other requests need to arrive
        return super().openapi()


def test_many_who_ask_at_the_same_time_get_one_document() -> None:
    app = Counting(title="Counting", openapi_url=None, docs_url=None, redoc_url=None)
    install_docs(app)
    assert app.made == 0

    async def ask() -> list[httpx.Response]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return await asyncio.gather(*(client.get("/openapi.json") for _ in range(20)))

    answers = asyncio.run(ask())
    assert app.made == 1
    assert {answer.content for answer in answers} == {answers[0].content}
    assert answers[0].json()["info"]["title"] == "Counting"
