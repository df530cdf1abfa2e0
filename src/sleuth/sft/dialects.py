"""The two dialects of the quickstart's policies: search tags, and function calls through a chat template.

The second is read by agents that were not written for Sleuth. They differ in their system prompt, in the function that
they declare and in how they show a search result, so its demonstrations draw these at random.
"""

import random
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sleuth.agent import prompts
from sleuth.agent.chat_template import turn_frame
from sleuth.agent.function_calls import FunctionCalls
from sleuth.agent.protocol import Protocol
from sleuth.agent.tags import Tags
from sleuth.model.tokens import JSON_PATTERN, TAG_PATTERN, Tokens
from sleuth.records import Answer, Hit, Passage, Question, ToolCall
from sleuth.sft.demonstrations import Speech

PAD = "<|pad|>"
PROMPT = "brief"
OWN_AGENT = 0.25  # share of function-call demonstrations with the prompt of Sleuth's own agent


@dataclass(frozen=True, slots=True)
class OwnAgent:
    """The prompts, actions and observations of Sleuth's own agent; `end` closes a turn of the model."""

    tokens: Tokens
    protocol: Protocol
    end: tuple[int, ...] = ()
    name: str = "own"

    def prompt(self, question: Question) -> list[int]:
        return prompts.render(question, PROMPT, self.protocol, self.tokens)

    def write(self, action: ToolCall | Answer) -> str:
        return self.protocol.write(action)

    def observe(self, passage: Passage) -> list[int]:
        shown = self.protocol.observe(ToolCall.search(""), ((Hit(passage, 0.0),),))
        return shown.ids(self.tokens, sys.maxsize) or []


@dataclass(frozen=True, slots=True)
class OutsideAgent:
    """An agent that declares its own function, and shows the contents of a passage as they are."""

    own: OwnAgent
    system: str
    function: str
    parameter: str
    description: str
    name: str = "outside"

    @property
    def end(self) -> tuple[int, ...]:
        return self.own.end

    def prompt(self, question: Question) -> list[int]:
        asked = {"role": "user", "content": question.question}
        messages = [{"role": "system", "content": self.system}, asked] if self.system else [asked]
        return prompts.encode(messages, self.own.tokens, self._functions)

    def write(self, action: ToolCall | Answer) -> str:
        if isinstance(action, ToolCall):
            action = ToolCall(self.function, {self.parameter: action.lookups[0]})
        return self.own.protocol.write(action)

    def observe(self, passage: Passage) -> list[int]:
        frame = turn_frame("tool", self.own.tokens, self._functions)
        return replace(frame, body=passage.contents).ids(self.own.tokens, sys.maxsize) or []

    @property
    def _functions(self) -> tuple[Mapping[str, Any], ...]:
        schema = {"type": "object", "properties": {self.parameter: {"type": "string"}}}
        declared = {"name": self.function, "description": self.description, "parameters": schema}
        return ({"type": "function", "function": declared},)


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a policy speaks; `speech` returns a function that draws the agent of a demonstration."""

    recipe: str  # of the policy's training
    piece: str  # regular expression of the tokenizer's pieces, each with the space before it
    special: tuple[str, ...]  # padding, then the end of a turn, then others
    chat_template: str | None
    texts: Callable[[], Iterator[str]]  # with words that should be single tokens
    speech: Callable[[Tokens], Callable[[random.Random], Speech]]


def _tag_texts() -> Iterator[str]:
    yield Tags().instruction
    tags = ("think", "search", "information", "answer")
    yield " ".join(f"<{slash}{name}>" for name in tags for slash in ("", "/"))
    yield "\n\n<information>Doc 1(Title: No action was taken: nothing found.\n</information>\n\n"


def _tag_speech(tokens: Tokens) -> Callable[[random.Random], Speech]:
    agent = OwnAgent(tokens, Tags())
    return lambda _: agent


CHAT_TEMPLATE = """
{%- set first = messages[0] %}
{%- if tools or first.role == "system" %}{{ "<|im_start|>system\\n" }}
{%- if first.role == "system" %}{{ first.content + "\\n" }}{% endif %}
{%- for tool in tools or [] %}{{ tool.function.name }}(
{%- for name, schema in tool.function.parameters.properties.items() %}
{{- name }}: {{ schema.type or "any" }}{{ "" if loop.last else ", " }}
{%- endfor %}): {{ tool.function.description + "\\n" }}
{%- endfor %}{{ "<|im_end|>\\n" }}
{%- endif %}
{%- for message in messages %}
{%- if not loop.first or message.role != "system" %}{{ "<|im_start|>" + message.role + "\\n" + message.content }}
{%- for call in message.tool_calls or [] %}
{{- " " if message.content else "" }}<tool_call>
{{ {"name": call.function.name, "arguments": call.function.arguments} | tojson }}
</tool_call>
{%- endfor %}{{ "<|im_end|>\\n" }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<|im_start|>assistant\\n" }}{% endif %}
""".strip()
SYSTEM_PROMPTS = (
    "",
    "Answer the question. Search for the facts that you need.",
    "You are a helpful assistant.",
    "You are a helpful assistant that can search. Answer the question.",
    "Use the tools to find the facts, then answer.",
    "Search before you answer.",
)
FUNCTIONS = ("search", "search", "search", "lookup", "find", "retrieve")
PARAMETERS = ("query", "query", "query", "q", "text", "topic")
DESCRIPTIONS = (
    "Search the encyclopedia.",
    "Search the documents.",
    "Find facts about a person, place or work.",
    "Returns the passages that it finds.",
)


def _function_call_texts() -> Iterator[str]:
    yield from (*SYSTEM_PROMPTS, *FUNCTIONS, *PARAMETERS, *DESCRIPTIONS)
    yield 'system\nuser\nassistant\ntool\nsearch(query: string, query_list: array): \n<tool_call>\n{"name": "search", '
    yield '"arguments": {"query": "Who"}}\n</tool_call> <tool_call> <answer> </answer> <think> </think>'
    yield '{"query_list": ["Who"]}} Question: Doc 1 (Title: Nothing was found.'
    yield "Asks the search engine and shows the passages that it finds for each query."


def _function_call_speech(tokens: Tokens) -> Callable[[random.Random], Speech]:
    end = tokens.eos_id
    assert end is not None  # noqa: S101  the tokenizer was built with one
    own = OwnAgent(tokens, FunctionCalls(tokens), (end,))

    def draw(rng: random.Random) -> Speech:
        if rng.random() < OWN_AGENT:
            return own
        return OutsideAgent(own, *map(rng.choice, (SYSTEM_PROMPTS, FUNCTIONS, PARAMETERS, DESCRIPTIONS)))

    return draw


DIALECTS: Mapping[str, Dialect] = {
    "tags": Dialect(
        recipe="quickstart",
        piece=TAG_PATTERN,
        special=(PAD, "<|end|>"),
        chat_template=None,
        texts=_tag_texts,
        speech=_tag_speech,
    ),
    "tools": Dialect(
        recipe="quickstart-tools",
        # Punctuation of JSON in few pieces: a call of a function takes twenty tokens instead of thirty.
        piece=JSON_PATTERN,
        special=(PAD, "<|im_end|>", "<|im_start|>"),
        chat_template=CHAT_TEMPLATE,
        texts=_function_call_texts,
        speech=_function_call_speech,
    ),
}
