"""Prompts of outside agents as token ids, and function calls in the texts that continue them.

Only the chat template's own text may contain special tokens. Contents are encoded apart from it, so that a document in
a tool result can neither end a turn nor call a function.
"""

import json
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from sleuth.agent.chat_template import GAP, is_json_string, placeholder, render, render_cached
from sleuth.agent.function_calls import CallFormat, detect_format, read_call
from sleuth.agent.observation import sanitizer
from sleuth.agent.tools import SEARCH
from sleuth.errors import ConfigError
from sleuth.gateway.api import ApiError
from sleuth.gateway.calls import FunctionCall, Message
from sleuth.model.tokens import Tokens
from sleuth.records import ToolCall

Functions = Sequence[Mapping[str, Any]]
NO_TEMPLATE = "the model has no chat template; send the prompt as text to /v1/completions"


class ChatPrompts:
    """Encodes conversations with the chat template of a model, and parses its function calls."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._sanitize = sanitizer(("tool_call", "tool_response", "tools"), tokens)

    @cached_property
    def call_format(self) -> CallFormat:
        """How the model writes function calls; raises ApiError if its chat template does not support them."""
        try:
            return detect_format(self._tokens, (SEARCH.function,))
        except ConfigError as error:
            raise ApiError(400, f"the model cannot call functions: {error}", param="tools") from error

    def encode(self, messages: Sequence[Message], functions: Functions) -> list[int]:
        """Encode a whole conversation, up to the start of the model's turn."""
        hollow = [self._hollow(place, message) for place, message in enumerate(messages)]
        return self._encode(self._render(hollow, functions), messages, _filled(messages))

    def encode_after(
        self, messages: Sequence[Message], functions: Functions, known: int, *, turn_ended: bool
    ) -> list[int]:
        """Encode what follows the first `known` messages, the last of which the model itself wrote.

        With `turn_ended`, the end-of-turn token is left out, because the model has sampled it.
        """
        hollow = [self._hollow(place, message) for place, message in enumerate(messages)]
        hollow[known - 1] = {"role": "assistant", "content": placeholder(known - 1)}
        _, found, text = self._render(hollow, functions).partition(placeholder(known - 1))
        if not found:
            raise _disordered()
        ids = self._encode(text, messages, (place for place in _filled(messages) if place >= known))
        if turn_ended:
            ends = (place for place, token in enumerate(ids, 1) if token in self._tokens.special_ids)
            ids = ids[next(ends, 0) :]
        return ids

    def opening(self, tool_choice: str) -> str:
        """Return the text with which a reply must begin to call a function; empty if the model is free to choose."""
        if tool_choice in ("auto", "none"):
            return ""
        start, _, _ = self.call_format.template.partition("{}")
        if tool_choice == "required":
            return f'{start}{{"name": "'
        return f'{start}{{"name": {json.dumps(tool_choice)}, "{self.call_format.arguments_key}": '

    def parse(self, text: str) -> tuple[str, tuple[FunctionCall, ...]]:
        """Split a reply into its content and its function calls; a call that is no valid JSON stays in the content."""
        content, written = self.call_format.split_calls(text)
        calls = tuple(
            FunctionCall(f"call_{secrets.token_hex(8)}", _encodable(read.name), _encodable(_dump(read.arguments)))
            for read in map(read_call, written)
            if isinstance(read, ToolCall)
        )
        return (content, calls) if calls else (text, ())

    def _hollow(self, place: int, message: Message) -> dict[str, Any]:
        """Return a message as the template expects it, with a placeholder for its content."""
        role = "system" if message.role == "developer" else message.role
        hollow: dict[str, Any] = {"role": role, "content": placeholder(place) if message.content else ""}
        if message.tool_calls:
            hollow["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": self._clean(call.name), "arguments": self._arguments(call)},
                }
                for call in message.tool_calls
            ]
        if message.tool_call_id is not None:
            hollow["tool_call_id"] = message.tool_call_id
        return hollow

    def _arguments(self, call: FunctionCall) -> Any:
        try:
            return self._clean(json.loads(call.arguments))
        except (ValueError, RecursionError):
            return self._clean(call.arguments)

    def _clean(self, value: Any) -> Any:
        """Sanitise every string of a JSON value, after its escapes are read: the template writes it unescaped."""
        match value:
            case str():
                return self._sanitize(value).replace(GAP, "")
            case dict():
                return {self._clean(key): self._clean(each) for key, each in value.items()}
            case list():
                return [self._clean(each) for each in value]
        return value

    def _render(self, messages: Sequence[Mapping[str, Any]], functions: Functions) -> str:
        if self._tokens.tokenizer.chat_template is None:
            raise ApiError(400, NO_TEMPLATE, code="no_chat_template")
        if functions:
            _ = self.call_format
            functions = self._clean(list(functions))
        # Only the start of a conversation is the same in many attempts.
        renderer = render if any("tool_calls" in message for message in messages) else render_cached
        try:
            return renderer(messages, self._tokens, functions, generation_prompt=True)
        except Exception as error:  # templates are third-party programs
            message = f"the model's chat template rejects these messages ({error})"
            raise ApiError(400, message, param="messages") from error

    def _encode(self, text: str, messages: Sequence[Message], expected: Iterable[int]) -> list[int]:
        pieces = text.split(GAP)
        if sorted(map(int, pieces[1::2])) != sorted(expected):
            raise _disordered()
        ids: list[int] = []
        for place, piece in enumerate(pieces):
            if place % 2 == 0:
                ids += self._tokens.encode_trusted(piece)
                continue
            message = messages[int(piece)]
            content = self._sanitize(message.content) if message.role == "tool" else message.content
            if is_json_string(pieces[place - 1], pieces[place + 1]):
                content = _dump(content)[1:-1]
            ids += self._tokens.encode(content)
        return ids


def merge_assistant(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Merge consecutive assistant messages, into which some clients split a text and its function calls."""
    merged: list[Message] = []
    for message in messages:
        if merged and message.role == merged[-1].role == "assistant":
            last = merged[-1]
            merged[-1] = replace(
                last, content=last.content + message.content, tool_calls=last.tool_calls + message.tool_calls
            )
        else:
            merged.append(message)
    return tuple(merged)


@dataclass(slots=True)
class ContentStream:
    """Streams the content of a reply, holding back text that may turn out to begin a function call or a stop string."""

    markers: Sequence[str]
    on_content: Callable[[str], None]
    _text: str = ""
    _sent: int = field(default=0)

    def add(self, text: str) -> None:
        self._text += text
        found = [place for marker in self.markers if (place := self._text.find(marker)) >= 0]
        self._send(min(found, default=len(self._text) - self._uncertain()))

    def finish(self, content: str) -> None:
        """Send the rest of the content."""
        self._text = content
        self._send(len(content))

    def _send(self, end: int) -> None:
        if end > self._sent:
            self.on_content(self._text[self._sent : end])
            self._sent = end

    def _uncertain(self) -> int:
        """Return the length of the longest end of the text with which a marker begins."""
        longest = min(max(map(len, self.markers), default=1) - 1, len(self._text))
        lengths = range(longest, 0, -1)
        return next((size for size in lengths if any(each.startswith(self._text[-size:]) for each in self.markers)), 0)


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _encodable(text: str) -> str:
    """Replace lone surrogates, which JSON allows and UTF-8 does not, with question marks."""
    return text.encode(errors="replace").decode()


def _filled(messages: Sequence[Message]) -> list[int]:
    return [place for place, message in enumerate(messages) if message.content]


def _disordered() -> ApiError:
    message = "the model's chat template does not render each of these messages once; send them in another order"
    return ApiError(400, message, param="messages")
