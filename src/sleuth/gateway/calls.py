"""A call to the policy and its reply, independent of the API through which the call arrived."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A function call of the model; `arguments` is JSON text, as the model wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """A chat message; `tool_calls` belongs to the assistant, `tool_call_id` to the result of a call."""

    role: str  # system, user, assistant or tool
    content: str = ""
    tool_calls: tuple[FunctionCall, ...] = ()
    tool_call_id: str | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One request to the policy; None means the default of the rollout.

    `prompt` holds the messages of a chat, or the text or the token ids of a text completion. `functions` are
    declarations as chat templates expect them: {"type": "function", "function": {...}}. `tool_choice` is auto, none,
    required, or the name of a function. Without `parallel_calls`, the reply has the first function call only. With
    `include_stop`, the reply includes the stop string that ended it.
    """

    prompt: tuple[Message, ...] | str | tuple[int, ...]
    role: str = ""
    functions: tuple[Mapping[str, Any], ...] = ()
    tool_choice: str = "auto"
    parallel_calls: bool = True
    stops: tuple[str, ...] = ()
    include_stop: bool = False
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    n: int = 1


def count_forks(roles: Collection[str]) -> int:
    """Return how many segments, given by their roles, branch off or restart an earlier conversation of their role."""
    return len(roles) - len(set(roles))


class FinishReason(StrEnum):
    """Why a choice ended, in OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"


@dataclass(frozen=True, slots=True)
class Choice:
    """One continuation: its text without function calls, the calls, and the sampled tokens."""

    content: str
    tool_calls: tuple[FunctionCall, ...]
    finish: FinishReason
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply to a call; `prompt_ids` are the tokens that the choices continue."""

    prompt_ids: tuple[int, ...]
    choices: tuple[Choice, ...]


OnContent = Callable[[int, str], None]  # receives the index of a choice and each new piece of its content
