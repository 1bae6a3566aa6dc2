"""Live news of a study, as server-sent events."""

from collections.abc import AsyncIterator

from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from dpdpca_protocol.wire.http import EVENTS_MEDIA_TYPE
from dpdpca_proxy.routes.callers import ANY_ROLE, StudyPath, signed_request, study_id
from dpdpca_proxy.routes.contract import STUDY
from dpdpca_runtime.asgi.contract import events, operation
from dpdpca_runtime.bodies import StudyProgress, StudySummary

router = APIRouter(prefix="/v1/studies/{study}", tags=["events"])


@router.get(
    "/events",
    summary="Follow state and progress live (text/event-stream)",
    response_class=Response,
    **operation(
        events(state=StudySummary, progress=StudyProgress),
        STUDY,
        described="A stream of events `state` and `progress`, with comment lines between them.",
    ),
)
async def read_events(request: Request, study: StudyPath) -> Response:
    await signed_request(request, ANY_ROLE)
    state = request.app.state
    return await event_stream(state.watch.of_study(study_id(study), state.stopping))


async def event_stream(news: AsyncIterator[bytes]) -> Response:
    """The stream as a response. A refusal is raised before the response begins."""
    first = await anext(news, b"")

    async def body() -> AsyncIterator[bytes]:
        yield first
        async for event in news:
            yield event

    return StreamingResponse(
        body(),
        media_type=EVENTS_MEDIA_TYPE,
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )
