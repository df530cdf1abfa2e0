"""Incoming requests: bodies of bounded size, JSON parsed into models, and cancellation when the client disconnects."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from reprlib import repr as short_repr
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

from sleuth.http.responses import HttpProblem

Model = TypeVar("Model", bound=BaseModel)

LENIENT_BYTES = 4 * 2**20  # larger bodies are not parsed a second time by the slower standard library
WATCH_DELAY = 0.05  # seconds; most responses are ready by then, and watching a connection costs a task


async def read_body(scope: Scope, receive: Receive, *, max_bytes: int, seconds: float, remedy: str) -> bytes:
    """Read a whole body; raises a 413 problem if the body is too large, or 408 if it arrives too slowly."""

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


def validate_body(body: bytes, model: type[Model]) -> Model:
    """Parse a JSON body; raises pydantic's ValidationError."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        invalid = error.errors(include_url=False, include_context=False)[0]["type"] == "json_invalid"
        if not invalid or rb"\u" not in body or len(body) > LENIENT_BYTES:
            raise
        # Language models write lone surrogates, which strict parsers reject; replace them with "?".
        try:
            repaired = json.dumps(json.loads(body), ensure_ascii=False).encode("utf-8", "replace")
        except (ValueError, RecursionError):
            raise error from None
    return model.model_validate_json(repaired)


def parse_body(body: bytes, model: type[Model], expected: str) -> Model:
    """Parse a JSON body; raise a 422 problem that names the first error and shows an `expected` body."""
    try:
        return validate_body(body, model)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
    field = ".".join(map(str, first["loc"])) or "the body"
    message = first["msg"]
    match first["type"]:
        case "json_invalid":
            problem = f"the body is not valid JSON ({message.removeprefix('Invalid JSON: ')})"
        case "missing":
            problem = f"{field} is missing"
        case _:
            problem = f"{field}: {message[0].lower()}{message[1:]}, got {short_repr(first['input'])}"
    raise HttpProblem(422, f"{problem}; expected {expected}")


@asynccontextmanager
async def cancel_on_disconnect(receive: Receive) -> AsyncIterator[None]:
    """Cancel the block and raise ClientDisconnect if the client disconnects; read the body before entering."""
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("cancel_on_disconnect was entered outside of a task")
    watcher: asyncio.Task[None] | None = None

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            continue
        task.cancel()

    def start_watching() -> None:
        nonlocal watcher
        watcher = asyncio.create_task(watch())

    timer = asyncio.get_running_loop().call_later(WATCH_DELAY, start_watching)
    try:
        yield
    except asyncio.CancelledError:
        # A watcher that finished means the client left; otherwise the server itself is shutting down.
        if watcher is not None and watcher.done() and not watcher.cancelled() and task.uncancel() == 0:
            raise ClientDisconnect from None
        raise
    finally:
        timer.cancel()
        if watcher is not None:
            watcher.cancel()
