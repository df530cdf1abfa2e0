"""Answers as chat completions: whole, or server-sent chunks that add up to the same message."""

from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sleuth.agent.episode import Agent
from sleuth.errors import UserError
from sleuth.gateway.api import KEEP_ALIVE, ApiError, error_body, event, stop_strings
from sleuth.gateway.chat_completions import (
    DONE,
    ChatCompletion,
    ChatRequest,
    chat_logprobs,
    delta_choice,
    message_choice,
)
from sleuth.http.requests import cancel_on_disconnect
from sleuth.records import StopReason, Trajectory
from sleuth.serve.agent.live_episode import End, Event, LiveEpisodes, StepFinished, StepStarted, Thought

Delta = dict[str, Any]
STATUS = {StopReason.SEARCH_UNAVAILABLE: 503, StopReason.ENGINE_FAILED: 500, StopReason.FUNCTION_FAILED: 500}
KEEPALIVE_SECONDS = 15.0  # proxies close connections that stay silent


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """The form of the answers that a request asks for."""

    agent: Agent
    request: ChatRequest

    def text(self, end: End) -> str:
        """Return the answer up to the first stop string, or an empty string if there is none."""
        answer = end.trajectory.answer or ""
        places = [answer.index(stop) for stop in stop_strings(self.request.stop) if stop in answer]
        return answer[: min(places, default=len(answer))]

    def delta(self, event: Event) -> Delta:
        """Convert an event to a message delta; OpenAI's client merges `steps` by index, like tool_calls."""
        match event:
            case Thought(text):
                return {"reasoning_content": text}
            case StepStarted() | StepFinished():
                return {"sleuth": {"steps": [{"index": event.index, **event.content}]}}
            case End(trajectory, seconds):
                summary = {"stop": event.stop, "searches": trajectory.searches, "seconds": round(seconds, 4)}
                return {"content": self.text(event), "sleuth": summary}

    def logprobs(self, end: End) -> dict[str, Any] | None:
        """Return the logprobs of the tokens of the answer; None if the last turn does not contain its text."""
        if not self.request.logprobs:
            return None
        tokens, answer, trajectory = self.agent.tokens, self.text(end), end.trajectory
        ids, logprobs = _last_turn(trajectory)
        text = tokens.decode(ids)
        for stop in self.agent.protocol.stops:
            text = text.removesuffix(stop)
        start = text.rfind(answer)
        if start < 0:
            return None
        positions = range(len(ids) + 1)

        def length(count: int) -> int:
            return len(tokens.decode(ids[:count]))

        first = bisect_right(positions, start, key=length) - 1 if answer else 0
        last = bisect_left(positions, start + len(answer), key=length) if answer else 0
        return chat_logprobs(ids[first:last], logprobs[first:last], tokens.decode)


def _last_turn(trajectory: Trajectory) -> tuple[list[int], tuple[float, ...]]:
    """Return the sampled tokens of the last turn, with their logprobs."""
    count = trajectory.turns[-1].tokens if trajectory.turns else 0
    sampled = [token for token, is_sampled in zip(trajectory.ids, trajectory.sampled, strict=True) if is_sampled]
    start = len(sampled) - count
    return sampled[start:], trajectory.logprobs[start:]


@dataclass(slots=True)
class WholeMessage:
    """The message of one choice, merged from its events."""

    thoughts: list[str] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    end: End | None = None

    def add(self, event: Event) -> None:
        """Add an event; raises ApiError if the episode failed."""
        match event:
            case Thought(text):
                self.thoughts.append(text)
            case StepStarted() | StepFinished():
                if event.index == len(self.steps):
                    self.steps.append({"index": event.index})
                self.steps[event.index].update(event.content)
            case End():
                if failed := failure_error(event):
                    raise failed
                self.end = event


async def whole_answer(episodes: LiveEpisodes, model: str, form: AnswerFormat) -> dict[str, Any]:
    """Wait for the end of the episodes and merge their events; raises ApiError if one failed."""
    messages = [WholeMessage() for _ in range(episodes.count)]
    async for item in episodes.events():
        if item is not None:
            index, happened = item
            messages[index].add(happened)
    choices, ends = [], []
    for index, merged in enumerate(messages):
        if merged.end is None:
            raise RuntimeError("the episode has no end event")
        last = form.delta(merged.end)
        message: Delta = {"role": "assistant", "content": last["content"], "refusal": None}
        message["reasoning_content"] = "".join(merged.thoughts)
        message["sleuth"] = {"steps": merged.steps, **last["sleuth"]}
        choices.append(message_choice(message, finish_reason(merged.end), index, form.logprobs(merged.end)))
        ends.append(merged.end)
    return ChatCompletion(model).whole(choices, usage(ends))


def finish_reason(end: End) -> str:
    """Return OpenAI's finish reason: `stop` for an answer, `length` if a limit was reached first."""
    return "stop" if end.stop == StopReason.ANSWERED else "length"


def usage(ends: list[End]) -> dict[str, int]:
    """Return the token counts of whole episodes; observations count as prompt tokens."""
    total = sum(len(end.trajectory.ids) for end in ends)
    sampled = sum(sum(end.trajectory.sampled) for end in ends)
    return {"prompt_tokens": total - sampled, "completion_tokens": sampled, "total_tokens": total}


def failure_error(end: End) -> ApiError | None:
    """Return the error response for an unusable trajectory."""
    if end.token_limit or end.trajectory.stop.usable:
        return None
    return ApiError(STATUS[end.trajectory.stop], f"{end.trajectory.failure}", code=end.stop)


class StreamingAnswer(Response):
    """Streams the events of episodes as server-sent chunks; the episodes are cancelled if the client disconnects."""

    media_type = "text/event-stream"

    def __init__(
        self, episodes: LiveEpisodes, model: str, form: AnswerFormat, *, on_disconnect: Callable[[], None]
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._episodes, self._completion, self._form = episodes, ChatCompletion(model), form
        self._on_disconnect = on_disconnect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        async with self._episodes:
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
        for index in range(self._episodes.count):
            yield self._completion.chunk(delta_choice({"role": "assistant", "content": ""}, index=index))
        try:
            async for line in self._answers():
                yield line
        except ApiError as error:
            yield event(error_body(error))
        except UserError as error:
            yield event(error_body(ApiError(503, str(error))))
        except Exception as error:
            yield event(error_body(ApiError(500, f"the server failed at this request ({type(error).__name__})")))
            raise

    async def _answers(self) -> AsyncIterator[bytes]:
        """Yield the chunks of the answers; raises ApiError if an episode failed."""
        chunk, form, ends = self._completion.chunk, self._form, list[End]()
        async for item in self._episodes.events(KEEPALIVE_SECONDS):
            if item is None:
                yield KEEP_ALIVE
                continue
            index, happened = item
            if not isinstance(happened, End):
                yield chunk(delta_choice(form.delta(happened), index=index))
                continue
            if failed := failure_error(happened):
                raise failed
            ends.append(happened)
            yield chunk(delta_choice(form.delta(happened), index=index, logprobs=form.logprobs(happened)))
            yield chunk(delta_choice({}, finish_reason(happened), index))
        if form.request.include_usage:
            yield chunk(usage=usage(ends))
        yield DONE
