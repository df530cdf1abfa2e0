"""Answers as OpenAI writes them: whole, or in chunks that add up to the same."""

import secrets
import time
from dataclasses import dataclass, field
from typing import Any

from sleuth.records import StopReason
from sleuth.serve.agent.events import End, Event, Step, Thought
from sleuth.serve.agent.problems import Denied

Delta = dict[str, Any]
STATUS = {StopReason.SEARCH_UNAVAILABLE: 503, StopReason.ENGINE_FAILED: 500, StopReason.FUNCTION_FAILED: 500}


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to one request: who gives it, and under which name."""

    model: str
    id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))

    def chunk(self, delta: Delta, finish: str | None = None) -> dict[str, Any]:
        """A part of the answer."""
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return {**self._head("chat.completion.chunk"), "choices": [choice]}

    def counted(self, end: End) -> dict[str, Any]:
        """The last chunk, which holds no part of the answer and what it took."""
        return {**self._head("chat.completion.chunk"), "choices": [], "usage": usage(end)}

    def whole(self, message: Delta, end: End) -> dict[str, Any]:
        """The answer at once."""
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish(end)}
        return {**self._head("chat.completion"), "choices": [choice], "usage": usage(end)}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def delta(event: Event) -> Delta:
    """An event as a part of the message; merged as the official client merges, all of them are the message.

    Entries of `steps` with the same index belong together, as those of tool_calls do.
    """
    match event:
        case Thought(text):
            return {"reasoning_content": text}
        case Step(index, content):
            return {"sleuth": {"steps": [{"index": index, **content}]}}
        case End(trajectory, seconds):
            told = {"stop": event.stop, "searches": trajectory.searches, "seconds": round(seconds, 4)}
            return {"content": trajectory.answer or "", "sleuth": told}


class Message:
    """The message that the events of an episode add up to."""

    def __init__(self) -> None:
        self._thoughts: list[str] = []
        self._steps: list[dict[str, Any]] = []

    def add(self, event: Event) -> None:
        match event:
            case Thought(text):
                self._thoughts.append(text)
            case Step(index, content):
                if index == len(self._steps):
                    self._steps.append({"index": index})
                self._steps[index].update(content)

    def ended(self, end: End) -> Delta:
        """The whole message."""
        last = delta(end)
        return {
            "role": "assistant",
            "content": last["content"],
            "refusal": None,
            "reasoning_content": "".join(self._thoughts),
            "sleuth": {"steps": self._steps, **last["sleuth"]},
        }


def finish(end: End) -> str:
    """Why the answer ends, in OpenAI's words: it was given, or there was no room for one."""
    return "stop" if end.stop == StopReason.ANSWERED else "length"


def usage(end: End) -> dict[str, Any]:
    """Tokens of the whole episode, each once: those the model was given, what was found too, and those it sampled."""
    trajectory = end.trajectory
    sampled = sum(trajectory.sampled)
    return {
        "prompt_tokens": len(trajectory.ids) - sampled,
        "completion_tokens": sampled,
        "total_tokens": len(trajectory.ids),
    }


def failure(end: End) -> Denied | None:
    """The refusal that a failed episode is answered with."""
    if end.failed is None:
        return None
    return Denied(STATUS[end.failed], f"{end.trajectory.failure}", code=end.stop)
