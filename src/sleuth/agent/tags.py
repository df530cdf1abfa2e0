"""The tag protocol of Search-R1: <think>, <search>, <information> and <answer>, and RLinf's variant of it."""

import json
import re
from collections.abc import Sequence
from typing import Any

from sleuth.agent.chat_template import Function
from sleuth.agent.observation import MAX_CHARACTERS, Observation
from sleuth.agent.tools import SEARCH, Tool, ToolResult, validate_call
from sleuth.errors import ConfigError
from sleuth.records import THINK_CLOSE, THINK_OPEN, Action, Answer, Hit, Malformed, ToolCall

RESERVED = ("think", "information", "answer")


def _patterns(names: Sequence[str]) -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    """Compile patterns for the end of a turn, for any tag of the grammar, and for lookalike tags in documents."""
    tags = "|".join(map(re.escape, dict.fromkeys(("think", "search", "information", "answer", *names))))
    return (
        re.compile(rf"</({'|'.join(map(re.escape, (*names, 'answer')))})>"),
        re.compile(rf"(</?(?:{tags})>)"),
        re.compile(rf"<\s*+(/?+)\s*+({tags})\s*+>", re.IGNORECASE),
    )


class Tags:
    """Each turn reasons, then calls a tool or answers; the observation follows in the same assistant message.

    `<search> query </search>` calls search. Any other tool is called with a tag of the same name around a JSON object
    of arguments; for a tool with a single parameter, the bare value is enough.
    """

    stops: tuple[str, ...] = ("</search>", "</answer>")
    functions: tuple[Function, ...] = ()
    _opening, _closing = "\n\n<information>", "</information>\n\n"
    marks: tuple[str, str] | None = (_opening, _closing)
    instruction = (
        "Work out the answer to the question step by step. Put your reasoning between <think> and </think>, before "
        "every action. Whenever you lack a fact, ask the search engine by writing <search> your query </search>; what "
        "it finds is shown to you between <information> and </information>. Search as often as you need. When you know "
        "the answer, give it alone and short between <answer> and </answer>, for example <answer> Lisbon </answer>."
    )
    _correction = "Write <search> query </search> to search or <answer> answer </answer> to answer."
    _tools: tuple[Tool, ...] = (SEARCH,)
    _end, _any_tag, _loose_tag = _patterns(["search"])

    def __init__(self, tools: Sequence[Tool] = (SEARCH,)) -> None:
        names = [tool.name for tool in tools]
        if names == ["search"]:
            return
        for name in names:
            if name in RESERVED or not re.fullmatch(r"[A-Za-z_][\w-]*", name):
                raise ConfigError(
                    f"the name of the tool {name!r} cannot be used as a tag; choose agent.protocol = tools, or "
                    "rename the tool"
                )
        self._tools = tuple(tools)
        self.stops = tuple(f"</{name}>" for name in (*names, "answer"))
        self.instruction = _instruction(tools)
        calls = ["<search> query </search>" if tool.name == "search" else _example(tool) for tool in tools]
        self._correction = f"Write {' or '.join(calls)} to call a tool or <answer> answer </answer> to answer."
        self._end, self._any_tag, self._loose_tag = _patterns(names)

    def parse(self, text: str) -> Action:
        closing = self._end.search(text)
        if closing is None:
            call = "a search" if self.stops[:-1] == ("</search>",) else "a tool call"
            return Malformed(f"neither {call} nor an answer was closed")
        name = closing[1]
        _, opening, content = text[: closing.start()].rpartition(f"<{name}>")
        if not opening:
            return Malformed(f"</{name}> closes nothing that was opened")
        content = content.strip()
        if name == "answer":
            return Answer(content)
        if name == "search":
            return ToolCall.search(content) if content else Malformed("the search is empty")
        tool = next(tool for tool in self._tools if tool.name == name)
        try:
            arguments = _read_arguments(content, tool)
        except ValueError as error:
            return Malformed(str(error))
        return validate_call(name, arguments, self._tools)

    def write(self, action: ToolCall | Answer) -> str:
        match action:
            case Answer(text):
                return f"<answer> {text} </answer>"
            case ToolCall("search", {"query_list": [query]}):
                return f"<search> {query} </search>"
            case ToolCall("search"):
                raise ValueError(f"the tag protocol searches for one query at a time, not {action.lookups}")
            case ToolCall(name, arguments):
                content = json.dumps(dict(arguments), ensure_ascii=False).replace("<", "\\u003c")
                return f"<{name}>{content}</{name}>"

    def is_well_formed(self, text: str, action: Action) -> bool:
        """Whether the turn is one thought and one action, with only white space around them."""
        if isinstance(action, Malformed):
            return False
        tag = action.name if isinstance(action, ToolCall) else "answer"
        # outside, <think>, thought, </think>, outside, <tag>, content, </tag>, outside
        pieces = self._any_tag.split(text)
        return pieces[1::2] == [THINK_OPEN, THINK_CLOSE, f"<{tag}>", f"</{tag}>"] and not "".join(pieces[::4]).strip()

    def observe(self, call: ToolCall, result: ToolResult) -> Observation:  # noqa: ARG002  the wording is the same
        if isinstance(result, str):
            return self._wrap(f"{self._sanitize(result)}\n")
        passages = (hit for hits in result for hit in hits)
        documents = [self._document(number, hit) for number, hit in enumerate(passages, 1)]
        return self._wrap("".join(documents) or "Nothing was found.\n")

    def correct(self, action: Malformed) -> Observation:
        return self._wrap(f"No action was taken: {action.reason}. {self._correction}")

    def to_messages(self, turns: Sequence[str], observations: Sequence[Observation]) -> list[dict[str, str]]:
        shown = [each.text for each in observations]
        content = "".join(text + after for text, after in zip(turns, [*shown, ""], strict=True))
        return [{"role": "assistant", "content": content}]

    def _document(self, number: int, hit: Hit) -> str:
        passage = hit.passage
        return f"Doc {number}(Title: {self._sanitize(passage.title)}) {self._sanitize(passage.text)}\n"

    def _wrap(self, body: str) -> Observation:
        return Observation(self._opening, body, self._closing)

    def _sanitize(self, text: str) -> str:
        """Rewrite the grammar's tags with round brackets, so that a document cannot imitate the model."""
        text = text[:MAX_CHARACTERS]
        return self._loose_tag.sub(r"(\1\2)", text) if "<" in text else text


class RLinfTags(Tags):
    """RLinf's variant: passages begin with `[Doc k](url):`, and each observation opens the next <think>."""

    _opening, _closing = "\n\n<information>\n", "\n</information>\n\n<think>\n"
    marks: tuple[str, str] | None = (_opening, _closing)

    def is_well_formed(self, text: str, action: Action) -> bool:
        opened = text if THINK_OPEN in text else f"{THINK_OPEN}{text}"
        return super().is_well_formed(opened, action)

    def to_messages(self, turns: Sequence[str], observations: Sequence[Observation]) -> list[dict[str, str]]:
        continued = [text.lstrip().removeprefix(THINK_OPEN).lstrip() for text in turns[1:]]
        return super().to_messages([*turns[:1], *continued], observations)

    def _document(self, number: int, hit: Hit) -> str:
        passage = hit.passage
        text = f"{passage.title}\n{passage.text}"[:5_000]  # as RLinf cuts passages
        url = passage.extra.get("url", passage.id)
        return f"[Doc {number}]({self._sanitize(str(url))}):\n{self._sanitize(text)}\n\n"


def _read_arguments(content: str, tool: Tool) -> dict[str, Any]:
    """Parse the arguments inside a tool's tag: a JSON object, or the value of the tool's only parameter."""
    parameter = tool.only_parameter
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict):
        return value
    if parameter is None:
        names = ", ".join(tool.parameters.get("properties", {})) or "no arguments"
        raise ValueError(f"the call of {tool.name} needs a JSON object with {names}")
    is_text = tool.parameters["properties"][parameter].get("type") in ("string", "array")
    return {parameter: content if is_text or value is None else value}


def _instruction(tools: Sequence[Tool]) -> str:
    before, search, after = Tags.instruction.partition("ask the search engine by writing <search> your query </search>")
    if not any(tool.name == "search" for tool in tools):
        search, after = "call one of your tools", after.replace("Search as often", "Call them as often")
        after = after.replace("what it finds is", "what it returns is")
    others = [tool for tool in tools if tool.name != "search"]
    lines = [f"{_example(tool)}: {' '.join(tool.description.split())}" for tool in others]
    listed = "\n".join(["\nYou can also call these tools in the same way; the arguments are JSON:", *lines])
    return before + search + after + listed


def _example(tool: Tool) -> str:
    if (parameter := tool.only_parameter) is not None:
        return f"<{tool.name}> {parameter} </{tool.name}>"
    shape = {
        name: schema.get("type", "any JSON value") for name, schema in tool.parameters.get("properties", {}).items()
    }
    return f"<{tool.name}>{json.dumps(shape)}</{tool.name}>"
