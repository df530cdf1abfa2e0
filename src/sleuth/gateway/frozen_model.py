"""A frozen model on another server: the gateway forwards requests for it, and its tokens are not trained."""

import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import httpx
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from sleuth.config.gateway import HelperConfig
from sleuth.credentials import authorization_header, redact, token_from_env
from sleuth.gateway.api import ApiError
from sleuth.http.requests import cancel_on_disconnect
from sleuth.http.responses import JSON

OnReply = Callable[[str], None]
CONNECT_SECONDS = 10.0


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

    async def forward(self, path: str, body: bytes, request: Request, on_reply: OnReply) -> Response:
        """Send a request to the helper and return its response; `on_reply` receives the text of a successful one."""
        if self._client is None:  # created in the loop that uses it
            self._client = httpx.AsyncClient(timeout=self._timeout, limits=httpx.Limits(max_connections=None))
        url = f"{self._url}{path}"
        sent = self._client.build_request("POST", url, content=body, headers=self._headers)
        try:
            async with cancel_on_disconnect(request.receive):
                received = await self._client.send(sent, stream=True)
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            message = f"the helper model at {redact(self._url)} does not answer ({reason}); check gateway.helper.url"
            raise ApiError(502, message, code="helper_unavailable") from error
        kind = received.headers.get("content-type", JSON)
        return StreamingResponse(_copy(received, kind, on_reply), received.status_code, media_type=kind)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()


async def _copy(received: httpx.Response, kind: str, on_reply: OnReply) -> AsyncIterator[bytes]:
    pieces: list[bytes] = []
    try:
        async for piece in received.aiter_bytes():
            pieces.append(piece)
            yield piece
    finally:
        await received.aclose()
    if received.is_success:
        on_reply(reply_text(b"".join(pieces), kind))


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
