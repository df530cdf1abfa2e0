"""Conversations as tokens, each piece by whose words it is.

The assistant's words are taken letter for letter and stand where the agent's sampled tokens would: behind the chat
template's own opening of its turn. Templates that would have it otherwise are refused.
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


class Voice(StrEnum):
    """Whose words a piece is."""

    GIVEN = "given"  # the prompt, and what the chat template writes
    SPOKEN = "spoken"  # the assistant's
    SHOWN = "shown"  # the search engine's, or another tool's


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens of one voice; `cut` where an observation was longer than it may be."""

    ids: list[int]
    voice: Voice
    cut: bool = False


def checked(row: Mapping[str, object]) -> list[Message]:
    """The messages of a row; a ValueError says what is wrong with them."""
    messages = row["messages"]
    if not isinstance(messages, list) or not messages:
        raise ValueError(f"messages must be a list of one message or more, and it is {str(messages)[:60]!r}")
    found = [_message(each, number) for number, each in enumerate(messages, 1)]
    if not any(each["role"] == "assistant" for each in found):
        raise ValueError("no message is the assistant's, so there is nothing to learn")
    if found[0]["role"] == "assistant":
        raise ValueError("the assistant speaks first, and nothing comes before it")
    return found


def _message(message: object, number: int) -> Message:
    if not isinstance(message, dict):
        raise ValueError(f"message {number} is no object with role and content: {str(message)[:60]!r}")
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        raise ValueError(f"message {number} has the role {role!r}; expected one of {', '.join(ROLES)}")
    others = [key for key, value in message.items() if key not in ("role", "content") and value is not None]
    if others:
        raise ValueError(
            f"message {number} holds {others[0]!r}, which is not read; write it into content as the model would say it"
        )
    if not isinstance(content, str) or (role == "assistant" and not content.strip()):
        raise ValueError(f"message {number} needs a text as content, and it is {content!r}")
    return {"role": role, "content": content}


@dataclass(frozen=True, slots=True)
class _Turn:
    """What the chat template writes before an assistant's message, by text and gap in turn, and after it."""

    place: int
    given: tuple[str, ...]
    closing: str


@dataclass(frozen=True, slots=True)
class Conversations:
    """Renders messages for one tokenizer; observations in the assistant's text are told by the protocol's marks."""

    tokens: Tokens
    protocol: Protocol
    observation_tokens: int
    _written: dict[tuple[str, ...], Sequence[_Turn]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def pieces(self, messages: Sequence[Message]) -> Iterator[Piece]:
        """The conversation up to the assistant's last word; a ValueError says why it cannot be rendered."""
        places = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
        if self.tokens.tokenizer.chat_template is None:
            yield from self._plain(messages, places)
            return
        for turn in self._turns(tuple(message["role"] for message in messages)):
            yield from self._given(turn.given, messages, first=turn.place == places[0])
            yield from self._spoken(messages[turn.place]["content"])
            yield from self._closing(turn.closing)

    def _turns(self, roles: tuple[str, ...]) -> Sequence[_Turn]:
        """What the chat template writes around the assistant's turns; it sees no contents, so that roles say it all."""
        if roles not in self._written:
            self._written[roles] = tuple(self._around([{"role": role, "content": ""} for role in roles]))
        return self._written[roles]

    def _around(self, messages: Sequence[Message]) -> Iterator[_Turn]:
        said = ""
        for place in (place for place, message in enumerate(messages) if message["role"] == "assistant"):
            opened = self._frame(messages[:place], opening=True)
            before, words, closing = self._frame(messages[: place + 1], opening=False).partition(placeholder(place))
            if not words or not before.startswith(opened) or not opened.startswith(said):
                raise InputError(
                    "the chat template does not go on where it stopped: what it writes up to an assistant's turn is "
                    f"not how the conversation with that turn begins (message {place + 1}); choose a template that "
                    "keeps earlier text, or give each assistant's turn in a row of its own"
                )
            yield _Turn(place, tuple(opened[len(said) :].split(GAP)), closing)
            said = opened + words + closing

    def _plain(self, messages: Sequence[Message], places: Sequence[int]) -> Iterator[Piece]:
        """Without a chat template, as the agent prompts such a model: the text of what comes before, and one turn."""
        (place, *others) = places
        if others or any(message["role"] == "tool" for message in messages):
            raise InputError(
                "the tokenizer has no chat template, which a conversation of several turns needs; "
                "give a model with one, or traces of one assistant's turn each"
            )
        yield Piece(prompts.encode(messages[:place], self.tokens), Voice.GIVEN)
        yield from self._spoken(messages[place]["content"])
        if self.tokens.eos_id is not None:
            yield Piece([self.tokens.eos_id], Voice.SPOKEN)

    def _frame(self, messages: Sequence[Message], *, opening: bool) -> str:
        """What the chat template writes around the contents, each of which is a numbered gap."""
        try:
            frame = render_frame(messages, self.tokens, self.protocol.functions, generation_prompt=opening)
        except Exception as error:  # a template is a program of others, and may raise anything
            raise ValueError(f"the chat template refuses the messages ({error})") from error
        if [int(number) for number in frame.split(GAP)[1::2]] != list(range(len(messages))):
            roles = ", ".join(message["role"] for message in messages)
            raise ValueError(f"the chat template does not write every message of {roles} once and in order")
        return frame

    def _given(self, pieces: Sequence[str], messages: Sequence[Message], *, first: bool) -> Iterator[Piece]:
        """A stretch of the frame with its gaps filled; only text of the template itself may name special tokens."""
        for place, text in enumerate(pieces):
            if place % 2 == 0:
                yield from self._worded([(self.tokens.encode_trusted(text), Voice.GIVEN)])
                continue
            message = messages[int(text)]
            if message["role"] == "tool":
                yield self._seen(message["content"], quoted=is_json_string(pieces[place - 1], pieces[place + 1]))
            elif first:  # the instruction speaks of observations, and is none
                yield from self._worded([(self.tokens.encode(message["content"]), Voice.GIVEN)])
            else:
                yield from self._parted(message["content"], Voice.GIVEN)

    def _spoken(self, content: str) -> Iterator[Piece]:
        opening = self.protocol.marks[0].strip() if self.protocol.marks else ""
        if opening and any(opening in body for before, body, _ in observed(content, self.protocol) if not before):
            raise ValueError(f"the assistant's text opens {opening} and does not close it; close it")
        return self._parted(content, Voice.SPOKEN)

    def _closing(self, text: str) -> Iterator[Piece]:
        """The end of a turn: the assistant says it up to its special token, and the template writes the rest."""
        ids = self.tokens.encode_trusted(text)
        end = next((place + 1 for place, token in enumerate(ids) if token in self.tokens.special_ids), len(ids))
        return self._worded([(ids[:end], Voice.SPOKEN), (ids[end:], Voice.GIVEN)])

    def _parted(self, content: str, voice: Voice) -> Iterator[Piece]:
        for opening, body, closing in observed(content, self.protocol):
            if opening or closing:
                yield self._shown(opening, body, closing)
            else:
                yield from self._worded([(self.tokens.encode(body), voice)])

    def _shown(self, opening: str, body: str, closing: str) -> Piece:
        """An observation, its body cut to the budget as an episode cuts it."""
        shown = Observation(opening, body, closing)
        whole = self.tokens.encode(shown.text)
        if len(whole) <= self.observation_tokens:
            return Piece(whole, Voice.SHOWN)
        first, last = shown.frame_ids(self.tokens)
        return Piece(shown.ids(self.tokens, self.observation_tokens) or [*first, *last], Voice.SHOWN, cut=True)

    def _seen(self, content: str, *, quoted: bool) -> Piece:
        """What a tool says, cut to the budget as an episode cuts it where tools are how the model searches."""
        body = self.tokens.encode(Observation("", content, "", quoted=quoted).escaped_body)
        if self.protocol.marks is not None:
            return Piece(body, Voice.SHOWN)
        frame = sum(map(len, self.protocol.observe(ToolCall.search(""), ((),)).frame_ids(self.tokens)))
        room = max(0, self.observation_tokens - frame)
        return Piece(body[:room], Voice.SHOWN, cut=len(body) > room)

    def _worded(self, pieces: Sequence[tuple[list[int], Voice]]) -> Iterator[Piece]:
        return (Piece(ids, voice) for ids, voice in pieces if ids)


def observed(text: str, protocol: Protocol) -> Iterator[tuple[str, str, str]]:
    """Text and observations in turn, as opening, body and closing; what is none, or not closed, has a body only."""
    opening, closing = (mark.strip() for mark in protocol.marks or ("", ""))
    while opening and opening in text:
        before, _, rest = text.partition(opening)
        body, closed, after = rest.partition(closing)
        if not closed:
            break
        # The line breaks around an observation are part of it: the protocol writes them, not the model.
        said, following = before.rstrip("\n"), after.lstrip("\n")
        if said:
            yield "", said, ""
        yield before[len(said) :] + opening, body, closing + after[: len(after) - len(following)]
        text = following
    if text:
        yield "", text, ""
