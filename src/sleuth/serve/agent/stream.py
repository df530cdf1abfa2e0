"""An answer as it comes: server-sent events, as OpenAI streams them."""

from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sleuth.errors import UserError
from sleuth.http.requests import CancelOnDisconnect
from sleuth.http.responses import encode_json
from sleuth.serve.agent.completion import Reply, delta, failure, finish
from sleuth.serve.agent.events import End
from sleuth.serve.agent.problems import Denied, told
from sleuth.serve.agent.show import Show

SILENCE = 15.0  # seconds after which a sign of life is sent: what stands between cuts off connections that are still
ALIVE = b": still here\n\n"
DONE = b"data: [DONE]\n\n"


class Stream(Response):
    """The events of an episode as chunks; a client that leaves ends it."""

    media_type = "text/event-stream"

    def __init__(self, show: Show, reply: Reply, *, counted: bool, left: Callable[[], None]) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._show, self._reply, self._counted, self._left = show, reply, counted, left

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        async with self._show:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            try:
                async with CancelOnDisconnect(receive):
                    async for line in self._lines():
                        await send({"type": "http.response.body", "body": line, "more_body": True})
            except ClientDisconnect:
                self._left()
            else:
                await send({"type": "http.response.body", "body": b""})

    async def _lines(self) -> AsyncIterator[bytes]:
        try:
            async for line in self._told():
                yield line
        except UserError as error:
            yield _line(told(Denied(503, str(error))))
        except Exception as error:
            yield _line(told(Denied(500, f"the server failed at this request ({type(error).__name__})")))
            raise

    async def _told(self) -> AsyncIterator[bytes]:
        yield _line(self._reply.chunk({"role": "assistant", "content": ""}))
        async for event in self._show.events(SILENCE):
            if event is None:
                yield ALIVE
            elif isinstance(event, End):
                for line in self._closing(event):
                    yield line
            else:
                yield _line(self._reply.chunk(delta(event)))

    def _closing(self, end: End) -> list[bytes]:
        if failed := failure(end):
            return [_line(told(failed))]
        said = [self._reply.chunk(delta(end)), self._reply.chunk({}, finish(end))]
        counted = [self._reply.counted(end)] if self._counted else []
        return [*map(_line, [*said, *counted]), DONE]


def _line(content: dict[str, Any]) -> bytes:
    return b"data: " + encode_json(content) + b"\n\n"
