"""Incoming requests: bodies of bounded size, JSON parsed into models, and cancellation when the client disconnects."""

import asyncio
import json
from reprlib import repr as short_repr
from types import TracebackType
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

from sleuth.http.responses import HttpProblem

Model = TypeVar("Model", bound=BaseModel)

LENIENT_BYTES = 4 * 2**20  # larger bodies are not parsed a second time by the slower standard library
WATCH_DELAY = 0.05  # seconds; most responses are ready by then, and watching a connection costs a task


async def read_body(scope: Scope, receive: Receive, *, max_bytes: int, seconds: float, remedy: str) -> bytes:
    """Read a whole body; raise a 413 problem for one that is too large, 408 for one that is too slow."""

    def too_large() -> HttpProblem:
        return HttpProblem(413, f"the body is larger than the limit of {max_bytes:,} bytes; {remedy}")

    declared = dict(scope["headers"]).get(b"content-length", b"")
    if declared.isdigit() and int(declared[:20]) > max_bytes:
        raise too_large()
    body, more = bytearray(), True
    try:
        async with asyncio.timeout(seconds):
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                body += message.get("body", b"")
                if len(body) > max_bytes:
                    raise too_large()
                more = message.get("more_body", False)
    except TimeoutError:
        raise HttpProblem(408, f"the body did not arrive within {seconds:g} s") from None
    return bytes(body)


def parse_body(body: bytes, model: type[Model], expected: str) -> Model:
    """Parse a JSON body; raise a 422 problem that names the first error and shows an `expected` body."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
    if first["type"] == "json_invalid" and rb"\u" in body and len(body) <= LENIENT_BYTES:
        # Language models write lone surrogates, which strict parsers reject; replace them with "?".
        try:
            repaired = json.dumps(json.loads(body), ensure_ascii=False).encode("utf-8", "replace")
            return model.model_validate_json(repaired)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
        except (ValueError, RecursionError) as error:
            raise HttpProblem(422, f"the body is not valid JSON ({error}); expected {expected}") from None
    raise HttpProblem(422, f"{_describe(first)}; expected {expected}")


def _describe(error: Any) -> str:
    if error["type"] == "json_invalid":
        return f"the body is not valid JSON ({error['msg'].removeprefix('Invalid JSON: ')})"
    field = ".".join(map(str, error["loc"])) or "the body"
    if error["type"] == "missing":
        return f"{field} is missing"
    return f"{field}: {error['msg'][0].lower()}{error['msg'][1:]}, got {short_repr(error['input'])}"


class CancelOnDisconnect:
    """Cancel the block and raise ClientDisconnect if the client disconnects; read the body before entering."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._watcher: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("CancelOnDisconnect was entered outside of a task")
        self._task = task
        self._timer = asyncio.get_running_loop().call_later(WATCH_DELAY, self._start_watching)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        watcher = self._watcher
        if watcher is None:
            return
        # A watcher that finished first means the client left; otherwise the server itself is shutting down.
        disconnected = watcher.done() and not watcher.cancelled()
        watcher.cancel()
        if disconnected and isinstance(error, asyncio.CancelledError) and self._task.uncancel() == 0:
            raise ClientDisconnect from None

    def _start_watching(self) -> None:
        self._watcher = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            continue
        self._task.cancel()
