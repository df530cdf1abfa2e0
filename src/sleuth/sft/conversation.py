"""Tokenization of conversations into pieces, each with the source of its tokens.

Assistant text is encoded verbatim after the opening that the chat template gives its turn, where sampled tokens
would be in an episode. Templates that rewrite earlier turns are rejected.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from sleuth.agent import prompts
from sleuth.agent.chat_template import GAP, is_json_string, placeholder, render_frame
from sleuth.agent.observation import Observation
from sleuth.agent.protocol import Protocol
from sleuth.errors import InputError
from sleuth.model.tokens import Tokens
from sleuth.records import ToolCall

ROLES = ("system", "user", "assistant", "tool")
EXPECTED = '{"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}'
Message = dict[str, str]


class Source(StrEnum):
    """Where the tokens of a piece come from."""

    PROMPT = "prompt"  # messages to the model, and text of the chat template
    ASSISTANT = "assistant"
    OBSERVATION = "observation"  # results of search or another tool


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens from one source; `truncated` is true if an observation exceeded its limit."""

    ids: list[int]
    source: Source
    truncated: bool = False


def validate_messages(row: Mapping[str, object]) -> list[Message]:
    """Validate the messages of a row; raises ValueError for the first problem."""
    messages = row["messages"]
    if not isinstance(messages, list) or not messages:
        raise ValueError(f"messages is {str(messages)[:60]!r}; expected a non-empty list")
    found = [_validate_message(each, number) for number, each in enumerate(messages, 1)]
    if not any(each["role"] == "assistant" for each in found):
        raise ValueError("no message has the role assistant, so there is nothing to learn")
    if found[0]["role"] == "assistant":
        raise ValueError("the first message has the role assistant; put a prompt before it")
    return found


def _validate_message(message: object, number: int) -> Message:
    if not isinstance(message, dict):
        raise ValueError(f"message {number} is {str(message)[:60]!r}; expected an object with role and content")
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        raise ValueError(f"message {number} has the role {role!r}; expected one of {', '.join(ROLES)}")
    unknown = [key for key, value in message.items() if key not in ("role", "content") and value is not None]
    if unknown:
        raise ValueError(f"message {number} has the unsupported key {unknown[0]!r}; write it into content instead")
    if not isinstance(content, str) or (role == "assistant" and not content.strip()):
        raise ValueError(f"message {number} has the content {content!r}; expected text")
    return {"role": role, "content": content}


# Text of the chat template around an assistant message: the number of the message, the text before it (alternating
# with the numbers of other messages), and the text after it.
_Turn = tuple[int, tuple[str, ...], str]


@dataclass(frozen=True, slots=True)
class ConversationEncoder:
    """Encodes messages with one tokenizer; the protocol's marks delimit observations in assistant text."""

    tokens: Tokens
    protocol: Protocol
    observation_tokens: int
    _turns: dict[tuple[str, ...], Sequence[_Turn]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def encode(self, messages: Sequence[Message]) -> Iterator[Piece]:
        """Yield the pieces up to the last assistant message; raises ValueError if the messages cannot be rendered."""
        indices = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
        if self.tokens.tokenizer.chat_template is None:
            yield from self._encode_plain(messages, indices)
            return
        roles = tuple(message["role"] for message in messages)
        if roles not in self._turns:  # rendered without contents, so the turns depend only on the roles
            self._turns[roles] = tuple(self._template_turns([{"role": role, "content": ""} for role in roles], indices))
        for index, before, closing in self._turns[roles]:
            yield from self._encode_template(before, messages, is_first=index == indices[0])
            yield from self._encode_assistant(messages[index]["content"])
            # The end of a turn belongs to the assistant up to its first special token, the rest to the template.
            ids = self.tokens.encode_trusted(closing)
            end = next((place + 1 for place, token in enumerate(ids) if token in self.tokens.special_ids), len(ids))
            yield from _pieces((ids[:end], Source.ASSISTANT), (ids[end:], Source.PROMPT))

    def _template_turns(self, messages: Sequence[Message], indices: Sequence[int]) -> Iterator[_Turn]:
        written = ""
        for index in indices:
            opened = self._render(messages[:index], opening=True)
            before, content, closing = self._render(messages[: index + 1], opening=False).partition(placeholder(index))
            if not content or not before.startswith(opened) or not opened.startswith(written):
                raise InputError(
                    f"the chat template renders earlier turns differently once message {index + 1} is added; use a "
                    "template that keeps earlier text, or write one assistant turn per row"
                )
            yield index, tuple(opened[len(written) :].split(GAP)), closing
            written = opened + content + closing

    def _encode_plain(self, messages: Sequence[Message], indices: Sequence[int]) -> Iterator[Piece]:
        """Encode one assistant turn as the agent does for a model without a chat template."""
        (index, *others) = indices
        if others or any(message["role"] == "tool" for message in messages):
            raise InputError(
                "the tokenizer has no chat template, which conversations with several turns need; use a model with "
                "one, or traces with one assistant turn each"
            )
        yield Piece(prompts.encode(messages[:index], self.tokens), Source.PROMPT)
        yield from self._encode_assistant(messages[index]["content"])
        if self.tokens.eos_id is not None:
            yield Piece([self.tokens.eos_id], Source.ASSISTANT)

    def _render(self, messages: Sequence[Message], *, opening: bool) -> str:
        """Render the chat template with a numbered gap for each message."""
        try:
            frame = render_frame(messages, self.tokens, self.protocol.functions, generation_prompt=opening)
        except Exception as error:  # a template is third-party code and may raise any exception
            raise ValueError(f"the chat template rejects the messages ({error})") from error
        if [int(number) for number in frame.split(GAP)[1::2]] != list(range(len(messages))):
            roles = ", ".join(message["role"] for message in messages)
            raise ValueError(f"the chat template does not render each of the messages {roles} once and in order")
        return frame

    def _encode_template(self, parts: Sequence[str], messages: Sequence[Message], *, is_first: bool) -> Iterator[Piece]:
        """Encode template text and the messages in its gaps; only template text may contain special tokens."""
        for index, text in enumerate(parts):
            if index % 2 == 0:
                yield from _pieces((self.tokens.encode_trusted(text), Source.PROMPT))
                continue
            message = messages[int(text)]
            if message["role"] == "tool":
                quoted = is_json_string(parts[index - 1], parts[index + 1])
                yield self._encode_tool_result(message["content"], quoted=quoted)
            elif is_first:  # the instruction mentions observations without containing any
                yield from _pieces((self.tokens.encode(message["content"]), Source.PROMPT))
            else:
                yield from self._encode_text(message["content"], Source.PROMPT)

    def _encode_assistant(self, content: str) -> Iterator[Piece]:
        opening = self.protocol.marks[0].strip() if self.protocol.marks else ""
        parts = split_observations(content, self.protocol)
        if opening and any(opening in body for before, body, _ in parts if not before):
            raise ValueError(f"the assistant's text opens {opening} without closing it; close it")
        return self._encode_text(content, Source.ASSISTANT)

    def _encode_text(self, content: str, source: Source) -> Iterator[Piece]:
        """Encode text, with the body of each observation truncated as in an episode."""
        for opening, body, closing in split_observations(content, self.protocol):
            if not (opening or closing):
                yield from _pieces((self.tokens.encode(body), source))
                continue
            observation = Observation(opening, body, closing)
            ids = self.tokens.encode(observation.text)
            if truncated := len(ids) > self.observation_tokens:
                first, last = observation.frame_ids(self.tokens)
                ids = observation.ids(self.tokens, self.observation_tokens) or [*first, *last]
            yield Piece(ids, Source.OBSERVATION, truncated)

    def _encode_tool_result(self, content: str, *, quoted: bool) -> Piece:
        """Encode a tool result; if the model searches with tool calls, truncate it as in an episode."""
        ids = self.tokens.encode(Observation("", content, "", quoted=quoted).escaped_body)
        if self.protocol.marks is not None:
            return Piece(ids, Source.OBSERVATION)
        frame = sum(map(len, self.protocol.observe(ToolCall.search(""), ((),)).frame_ids(self.tokens)))
        limit = max(0, self.observation_tokens - frame)
        return Piece(ids[:limit], Source.OBSERVATION, truncated=len(ids) > limit)


def _pieces(*parts: tuple[list[int], Source]) -> Iterator[Piece]:
    return (Piece(ids, source) for ids, source in parts if ids)


def split_observations(text: str, protocol: Protocol) -> Iterator[tuple[str, str, str]]:
    """Split text into (opening, body, closing) of observations, and ("", text, "") between them."""
    opening, closing = (mark.strip() for mark in protocol.marks or ("", ""))
    while opening and opening in text:
        before, _, rest = text.partition(opening)
        body, closed, after = rest.partition(closing)
        if not closed:
            break
        # Line breaks around an observation belong to it: the protocol writes them, not the model.
        spoken, following = before.rstrip("\n"), after.lstrip("\n")
        if spoken:
            yield "", spoken, ""
        yield before[len(spoken) :] + opening, body, closing + after[: len(after) - len(following)]
        text = following
    if text:
        yield "", text, ""
