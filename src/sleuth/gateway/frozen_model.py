"""A frozen model on another server: the gateway forwards requests for it, and its tokens are not trained."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

import httpx
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from sleuth.config.gateway import HelperConfig
from sleuth.credentials import authorization_header, redact, token_from_env
from sleuth.gateway.api import ApiError
from sleuth.gateway.rollout import CLOSED
from sleuth.http.requests import cancel_on_disconnect
from sleuth.http.responses import JSON

OnReply = Callable[[str], None]
CONNECT_SECONDS = 10.0
Result = TypeVar("Result")


class FrozenModel:
    """The frozen model `model` of an OpenAI-compatible server."""

    def __init__(self, url: str, model: str, key: str | None, seconds: float) -> None:
        self.model, self._url = model, url.rstrip("/")
        self._headers = {"content-type": JSON, **authorization_header(key, "the key of the helper model")}
        self._timeout = httpx.Timeout(seconds, connect=CONNECT_SECONDS)
        self._client: httpx.AsyncClient | None = None

    @classmethod
    def of(cls, config: HelperConfig, seconds: float) -> "FrozenModel | None":
        """Build the configured helper, if any; raises ConfigError if its key is not in the environment."""
        if config.url is None or config.model is None:
            return None
        return cls(config.url, config.model, token_from_env(config.key_env), seconds)

    async def forward(
        self, path: str, body: bytes, request: Request, held: Future[None], on_reply: OnReply
    ) -> Response:
        """Send a request to the helper and return its response; `on_reply` receives the text of a successful one.

        `held` is cancelled when the attempt ends, which ends the request, and by the response when it was sent.
        """
        if self._client is None:  # created in the loop that uses it
            self._client = httpx.AsyncClient(timeout=self._timeout, limits=httpx.Limits(max_connections=None))
        url = f"{self._url}{path}"
        sent = self._client.build_request("POST", url, content=body, headers=self._headers)
        ended = asyncio.wrap_future(held)
        try:
            async with cancel_on_disconnect(request.receive):
                received = await _unless_ended(self._client.send(sent, stream=True), ended)
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            message = f"the helper model at {redact(self._url)} does not answer ({reason}); check gateway.helper.url"
            raise ApiError(502, message, code="helper_unavailable") from error
        return _ForwardedResponse(received, ended, on_reply)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()


class _ForwardedResponse(StreamingResponse):
    """The response of the helper; it is cut off when the attempt ends."""

    def __init__(self, received: httpx.Response, ended: "asyncio.Future[None]", on_reply: OnReply) -> None:
        self._received, self._ended, self._on_reply = received, ended, on_reply
        kind = received.headers.get("content-type", JSON)
        super().__init__(self._copy(kind), received.status_code, media_type=kind)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended.cancel()
            await self._received.aclose()

    async def _copy(self, kind: str) -> AsyncIterator[bytes]:
        pieces, arriving = list[bytes](), self._received.aiter_bytes()

        async def read() -> bytes | None:
            return await anext(arriving, None)

        with suppress(ApiError):  # the attempt has ended
            while (piece := await _unless_ended(read(), self._ended)) is not None:
                pieces.append(piece)
                yield piece
            if self._received.is_success:
                self._on_reply(reply_text(b"".join(pieces), kind))


async def _unless_ended(work: Coroutine[Any, Any, Result], ended: "asyncio.Future[None]") -> Result:
    """Return the result of the work; raises ApiError if the attempt ends first."""
    task = asyncio.create_task(work)
    awaited: set[asyncio.Future[Any]] = {task, ended}
    try:
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ApiError(410, CLOSED, code="rollout_closed")
        return task.result()
    finally:
        task.cancel()


def reply_text(body: bytes, kind: str) -> str:
    """Return the text of a response, whole or streamed, of any of the four APIs; empty if it has none."""
    if "event-stream" not in kind:
        return "".join(_texts(_parse(body)))
    lines = (line.removeprefix(b"data:") for line in body.splitlines() if line.startswith(b"data:"))
    return "".join(text for line in lines for text in _deltas(_parse(line)))


def _parse(body: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _texts(response: Mapping[str, Any]) -> Iterator[str]:
    match response:
        case {"choices": [{"message": {"content": str(text)}}, *_]} | {"choices": [{"text": str(text)}, *_]}:
            yield text
        case {"content": [*parts]}:
            yield from (part["text"] for part in parts if isinstance(part.get("text"), str))
        case {"output": [*items]}:
            for item in items:
                yield from _texts(item)


def _deltas(event: Mapping[str, Any]) -> Iterator[str]:
    match event:
        case {"choices": [{"delta": {"content": str(text)}}, *_]} | {"choices": [{"text": str(text)}, *_]}:
            yield text
        case {"type": "content_block_delta", "delta": {"text": str(text)}}:
            yield text
        case {"type": "response.output_text.delta", "delta": str(text)}:
            yield text
