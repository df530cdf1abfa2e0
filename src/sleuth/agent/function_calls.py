"""The protocol for JSON function calls in the chat template's format, as Qwen, Hermes and Llama 3 write them."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple, Protocol

from sleuth.agent.chat_template import GAP, REMEDY, Functions, render, try_render_frame, turn_frame
from sleuth.agent.observation import Observation, sanitizer
from sleuth.agent.tools import SEARCH, Tool, ToolResult, validate_call
from sleuth.errors import ConfigError
from sleuth.model.tokens import Tokens
from sleuth.records import THINK_CLOSE, THINK_OPEN, Action, Answer, Hit, Malformed, ToolCall

PROBE = ToolCall.search("Oslo")
INSTRUCTION = (
    "Work out the answer to the question step by step. You may put your reasoning between <think> and </think> before "
    "you act. Whenever you lack a fact, {hints}; one call a turn. When you know the answer, give it alone and short "
    "between <answer> and </answer>, for example <answer> Lisbon </answer>."
)
HINTS = {"search": "call the function search with one query or several", "access": "read a page with access"}
GRAMMAR_TAGS = ("think", "answer", "tool_call", "tool_response", "tools")  # rewritten wherever a document contains them


class ParsedTurn(NamedTuple):
    """The content of a turn's action and the text around it; the content of a malformed action is the reason."""

    kind: Literal["call", "answer", "neither"]
    content: str
    before: str = ""
    after: str = ""


class CallFormat(Protocol):
    """How a model family writes function calls; `template` has a placeholder for the JSON of the call."""

    stops: tuple[str, ...]
    template: str
    arguments_key: str
    tags: tuple[str, ...]
    opening: str  # how a call begins

    def split(self, text: str) -> ParsedTurn:
        """Find the action in a turn; never raises."""

    def split_calls(self, text: str) -> tuple[str, list[str]]:
        """Return the text before the first call, and the JSON of each call."""


class Hermes:
    """JSON between <tool_call> and </tool_call>, as Hermes and Qwen write it; the first closing tag ends the turn."""

    stops: tuple[str, ...] = ("</tool_call>", "</answer>")
    template = "<tool_call>\n{}\n</tool_call>"
    arguments_key = "arguments"
    tags: tuple[str, ...] = ("tool_call", "tool_response", "tools")
    opening = "<tool_call>"
    _end = re.compile(r"</(tool_call|answer)>")
    _calls = re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL)

    def split(self, text: str) -> ParsedTurn:
        closing = self._end.search(text)
        if closing is None:
            return ParsedTurn("neither", "neither a function call nor an answer was closed")
        before, opening, content = text[: closing.start()].rpartition(f"<{closing[1]}>")
        if not opening:
            return ParsedTurn("neither", f"</{closing[1]}> closes nothing that was opened")
        return ParsedTurn("answer" if closing[1] == "answer" else "call", content, before, text[closing.end() :])

    def split_calls(self, text: str) -> tuple[str, list[str]]:
        return text.partition(self.opening)[0], self._calls.findall(text)


class Bare:
    """JSON alone, as Llama 3 writes it; the turn ends with the model's end-of-turn token."""

    stops: tuple[str, ...] = ("</answer>",)
    template = "{}"
    arguments_key = "parameters"
    tags: tuple[str, ...] = ()
    opening = "{"
    _call = re.compile(r'\{\s*"(?:name|type)"\s*:')

    def split(self, text: str) -> ParsedTurn:
        head, closing, after = text.partition("</answer>")
        before, opening, content = head.rpartition("<answer>") if closing else (text, "", "")
        spoken = before if opening else text
        if call := self._call.search(spoken):
            try:
                end = json.JSONDecoder().raw_decode(spoken, call.start())[1]
            except (ValueError, RecursionError):
                end = len(spoken)
            return ParsedTurn("call", spoken[call.start() : end], spoken[: call.start()], spoken[end:])
        if opening:
            return ParsedTurn("answer", content, before, after)
        unopened = "</answer> closes nothing that was opened"
        return ParsedTurn("neither", unopened if closing else "no function was called and no answer given")

    def split_calls(self, text: str) -> tuple[str, list[str]]:
        turn = self.split(text)
        return (turn.before, [turn.content]) if turn.kind == "call" else (text, [])


class FunctionCalls:
    """Protocol of JSON calls and tool messages; a turn without a call answers in <answer> tags.

    Generation stops after the first call of a turn. The chat template determines the format of calls.
    """

    marks = None

    def __init__(self, tokens: Tokens | None, tools: Sequence[Tool] = (SEARCH,)) -> None:
        """Raises ConfigError if the tokenizer's chat template does not support tools."""
        if tokens is None:
            raise ConfigError("the protocol tools needs a model's chat template; name the model with --model")
        functions = tuple(tool.function for tool in tools)
        call_format = detect_format(tokens, functions)
        frames = [turn_frame(role, tokens, functions) for role in ("tool", "user")]
        self._configure(tools, call_format, frames, tokens)

    def _configure(
        self, tools: Sequence[Tool], call_format: CallFormat, frames: Sequence[Observation], tokens: Tokens | None
    ) -> None:
        self._tools, self._format = tuple(tools), call_format
        self._tool_frame, self._user_frame = frames
        self.functions = tuple(tool.function for tool in tools)
        self.stops = call_format.stops
        self._tag = re.compile(rf"</?(?:{'|'.join(('think', 'answer', *call_format.tags))})>")
        self._sanitize = sanitizer(GRAMMAR_TAGS, tokens)
        hints = " or ".join(HINTS.get(tool.name, f"call the function {tool.name}") for tool in tools)
        self.instruction = INSTRUCTION.format(hints=hints)

    def parse(self, text: str) -> Action:
        turn = self._format.split(text)
        if turn.kind == "call":
            return parse_call(turn.content, self._tools)
        return Answer(turn.content.strip()) if turn.kind == "answer" else Malformed(turn.content)

    def write(self, action: ToolCall | Answer) -> str:
        if isinstance(action, Answer):
            return f"<answer> {action.text} </answer>"
        call = {"name": action.name, self._format.arguments_key: dict(action.arguments)}
        # Escaped, so that no argument can close the tag.
        return self._format.template.format(json.dumps(call, ensure_ascii=False).replace("<", "\\u003c"))

    def is_well_formed(self, text: str, action: Action) -> bool:
        """Whether the turn is one action with nothing after it and at most one thought before it."""
        turn = self._format.split(text)
        inside = turn.content if turn.kind == "answer" else ""
        alone = not turn.after.strip() and not self._tag.search(inside)
        tags_before = self._tag.findall(turn.before)
        return not isinstance(action, Malformed) and alone and tags_before in ([], [THINK_OPEN, THINK_CLOSE])

    def observe(self, call: ToolCall, result: ToolResult) -> Observation:
        if isinstance(result, str):
            parts = [result]
        elif call.name == "access":
            parts = [
                f"Page {url}:\n{pages[0].passage.contents.strip()}" if pages else f"There is no page {url}."
                for url, pages in zip(call.lookups, result, strict=True)
            ]
        elif len(call.lookups) == 1:
            parts = [_list_documents(hits) for hits in result]
        else:
            parts = [f"For {query}:\n{_list_documents(hits)}" for query, hits in zip(call.lookups, result, strict=True)]
        return replace(self._tool_frame, body=self._sanitize("\n---\n".join(parts)))

    def correct(self, action: Malformed) -> Observation:
        return self._correction(action, f" like this: {self.write(ToolCall.search('your query'))}\nor")

    def _correction(self, action: Malformed, example: str) -> Observation:
        hint = f"Call a function{example} answer like this: <answer> answer </answer>"
        return replace(self._user_frame, body=f"No action was taken: {action.reason}. {hint}")

    def to_messages(self, turns: Sequence[str], observations: Sequence[Observation]) -> list[dict[str, str]]:
        messages: list[dict[str, str]] = []
        for text, seen in zip(turns, [*observations, None], strict=True):
            messages.append({"role": "assistant", "content": text})
            if seen is not None:
                messages.append({"role": "tool", "content": seen.body})
        return messages


class RemoteFunctionCalls(FunctionCalls):
    """Function calls that a chat-completions server has already parsed; observations are plain text."""

    def __init__(self, tools: Sequence[Tool] = (SEARCH,)) -> None:
        frame = Observation("", "", "")
        self._configure(tools, Hermes(), (frame, frame), None)
        self.stops = ("</answer>",)

    def correct(self, action: Malformed) -> Observation:
        return self._correction(action, ", or")


def parse_call(call: str, tools: Sequence[Tool]) -> ToolCall | Malformed:
    """Read a call from JSON and validate its arguments; never raises."""
    read = read_call(call)
    return read if isinstance(read, Malformed) else validate_call(read.name, dict(read.arguments), tools)


def read_call(call: str) -> ToolCall | Malformed:
    """Read a call from JSON without NaN and infinity, which cannot be written again; never raises."""
    try:
        value = json.loads(call)
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return Malformed("the JSON of the call cannot be read")
    match value:
        case {"name": str(name), "arguments": dict(arguments)} | {"name": str(name), "parameters": dict(arguments)}:
            return ToolCall(name, arguments)
    return Malformed("the call is no object with a name and an object of arguments")


def _list_documents(hits: Sequence[Hit]) -> str:
    documents = [
        f"Doc {number} (Title: {hit.passage.title})\n{hit.passage.text.strip()}" for number, hit in enumerate(hits, 1)
    ]
    return "\n".join(documents) or "Nothing was found."


def detect_format(tokens: Tokens, functions: Functions) -> CallFormat:
    """Render a call with the chat template and return the format that parses it."""
    if tokens.tokenizer.chat_template is None:
        raise ConfigError(f"agent.protocol = tools needs a chat template, and the model has none; {REMEDY}")
    question = {"role": "user", "content": GAP}
    if try_render_frame([question], tokens, functions) == try_render_frame([question], tokens, ()):
        raise ConfigError(f"agent.protocol = tools does not fit this model: its chat template ignores tools; {REMEDY}")
    function = {"name": PROBE.name, "arguments": dict(PROBE.arguments)}
    calling = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
    try:
        rendered = render([question, calling], tokens, functions, generation_prompt=False)
    except Exception as error:  # templates are third-party programs
        raise ConfigError(f"the chat template rejects a function call ({error}); {REMEDY}") from error
    formats: tuple[CallFormat, ...] = (Hermes(), Bare())
    for call_format in formats:
        turn = call_format.split(rendered.rpartition(GAP)[2])
        if turn.kind == "call" and parse_call(turn.content, (SEARCH,)) == PROBE:
            break
    else:
        raise ConfigError(f"the chat template writes function calls in an unknown format; {REMEDY}")
    for tag in (f"<{slash}{word}>" for word in call_format.tags[:1] for slash in ("", "/")):
        if tokens.decode(tokens.encode_trusted(tag)).strip() != tag:  # special tokens are not part of decoded text
            raise ConfigError(f"the tokenizer treats {tag} as a special token, which decoding drops; {REMEDY}")
    return call_format
