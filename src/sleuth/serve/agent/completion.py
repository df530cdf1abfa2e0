"""Answers in OpenAI's format: a whole chat completion, or server-sent chunks that add up to it."""

import secrets
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sleuth.errors import UserError
from sleuth.http.requests import cancel_on_disconnect
from sleuth.http.responses import encode_json
from sleuth.records import StopReason
from sleuth.serve.agent.live_episode import End, Event, LiveEpisode, StepFinished, StepStarted, Thought
from sleuth.serve.agent.request import ApiError, error_body

Delta = dict[str, Any]
STATUS = {StopReason.SEARCH_UNAVAILABLE: 503, StopReason.ENGINE_FAILED: 500, StopReason.FUNCTION_FAILED: 500}
KEEPALIVE_SECONDS = 15.0  # proxies close connections that stay silent


@dataclass(frozen=True, slots=True)
class Completion:
    """The envelope of one answer: model, id and time."""

    model: str
    id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))

    def chunk(self, delta: Delta, finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return {**self._head("chat.completion.chunk"), "choices": [choice]}

    def usage_chunk(self, end: End) -> dict[str, Any]:
        return {**self._head("chat.completion.chunk"), "choices": [], "usage": usage(end)}

    def whole(self, message: Delta, end: End) -> dict[str, Any]:
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason(end)}
        return {**self._head("chat.completion"), "choices": [choice], "usage": usage(end)}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def event_delta(event: Event) -> Delta:
    """Convert an event to a message delta; OpenAI's client merges `steps` by index, like tool_calls."""
    match event:
        case Thought(text):
            return {"reasoning_content": text}
        case StepStarted() | StepFinished():
            return {"sleuth": {"steps": [{"index": event.index, **event.content}]}}
        case End(trajectory, seconds):
            summary = {"stop": event.stop, "searches": trajectory.searches, "seconds": round(seconds, 4)}
            return {"content": trajectory.answer or "", "sleuth": summary}


async def whole_answer(episode: LiveEpisode, completion: Completion) -> dict[str, Any]:
    """Wait for the end of an episode and merge its events; raises ApiError if the episode failed."""
    thoughts: list[str] = []
    steps: list[dict[str, Any]] = []
    async for event in episode.events():
        match event:
            case Thought(text):
                thoughts.append(text)
            case StepStarted() | StepFinished():
                if event.index == len(steps):
                    steps.append({"index": event.index})
                steps[event.index].update(event.content)
            case End():
                if failed := failure_error(event):
                    raise failed
                last = event_delta(event)
                message: Delta = {"role": "assistant", "content": last["content"], "refusal": None}
                message["reasoning_content"] = "".join(thoughts)
                message["sleuth"] = {"steps": steps, **last["sleuth"]}
                return completion.whole(message, event)
    raise RuntimeError("the episode has no end event")


def finish_reason(end: End) -> str:
    """Return OpenAI's finish reason: `stop` for an answer, `length` if a limit was reached first."""
    return "stop" if end.stop == StopReason.ANSWERED else "length"


def usage(end: End) -> dict[str, Any]:
    """Return the token counts of the whole episode; observations count as prompt tokens."""
    total, sampled = len(end.trajectory.ids), sum(end.trajectory.sampled)
    return {"prompt_tokens": total - sampled, "completion_tokens": sampled, "total_tokens": total}


def failure_error(end: End) -> ApiError | None:
    """Return the error response for an unusable trajectory."""
    if end.token_limit or end.trajectory.stop.usable:
        return None
    return ApiError(STATUS[end.trajectory.stop], f"{end.trajectory.failure}", code=end.stop)


class StreamingAnswer(Response):
    """Streams the events of an episode as server-sent chunks; the episode is cancelled if the client disconnects."""

    media_type = "text/event-stream"

    def __init__(
        self, episode: LiveEpisode, completion: Completion, *, include_usage: bool, on_disconnect: Callable[[], None]
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._episode, self._completion = episode, completion
        self._include_usage, self._on_disconnect = include_usage, on_disconnect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        async with self._episode:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            try:
                async with cancel_on_disconnect(receive):
                    async for line in self._lines():
                        await send({"type": "http.response.body", "body": line, "more_body": True})
            except ClientDisconnect:
                self._on_disconnect()
            else:
                await send({"type": "http.response.body", "body": b""})

    async def _lines(self) -> AsyncIterator[bytes]:
        yield _line(self._completion.chunk({"role": "assistant", "content": ""}))
        try:
            async for event in self._episode.events(KEEPALIVE_SECONDS):
                if event is None:
                    yield b": still here\n\n"
                elif isinstance(event, End):
                    yield self._last_lines(event)
                else:
                    yield _line(self._completion.chunk(event_delta(event)))
        except UserError as error:
            yield _line(error_body(ApiError(503, str(error))))
        except Exception as error:
            yield _line(error_body(ApiError(500, f"the server failed at this request ({type(error).__name__})")))
            raise

    def _last_lines(self, end: End) -> bytes:
        if failed := failure_error(end):
            return _line(error_body(failed))
        chunks = [self._completion.chunk(event_delta(end)), self._completion.chunk({}, finish_reason(end))]
        if self._include_usage:
            chunks.append(self._completion.usage_chunk(end))
        return b"".join([*map(_line, chunks), b"data: [DONE]\n\n"])


def _line(content: dict[str, Any]) -> bytes:
    return b"data: " + encode_json(content) + b"\n\n"
