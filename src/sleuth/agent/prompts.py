"""From a question to the ids the episode begins with, by the templates of prompts.toml or of the user's own file."""

import re
import tomllib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

from sleuth.agent.protocol import Protocol
from sleuth.agent.template import GAP, Function, framed
from sleuth.errors import ConfigError
from sleuth.model.tokens import Tokens
from sleuth.records import Answer, Question, Search

SHIPPED = Path(__file__).with_name("prompts.toml")
QUESTION, DOCUMENTS, EXAMPLES, THOUGHT = "{question}", "{documents}", "{examples}", "<think>"
_PLACE = re.compile(r"\{(instruction|question|form|documents|examples)\}")
_FORM = Answer("Lisbon")
# What a prompt that explains a grammar has to name, and the protocol that speaks it.
_GRAMMARS = {"<search>": "tags", "<tool_call>": "tools"}


def render(question: Question, template: str, protocol: Protocol, tokens: Tokens) -> list[int]:
    """The ids of the prompt: the row's own where it has one, else the template, through the model's chat template."""
    return encode(messages(question, template, protocol), tokens, protocol.functions)


def messages(question: Question, template: str, protocol: Protocol) -> tuple[dict[str, str], ...]:
    """What the model is asked: the row's own prompt where it has one, else the template."""
    return question.prompt or asked(question, template, protocol)


def asked(
    question: Question, template: str, protocol: Protocol, documents: str = "", examples: str = ""
) -> tuple[dict[str, str], ...]:
    """The template filled in; a prompt of the row's own, which tells the model to search, has no say here."""
    contents = {
        "instruction": protocol.instruction,
        "question": marked(question),
        "form": protocol.act(_FORM),
        "documents": documents,
        "examples": examples,
    }
    # In one pass, so that what is filled in is never read as a place to fill.
    return ({"role": "user", "content": _PLACE.sub(lambda place: contents[place[1]], named(template))},)


def require_spoken(questions: Iterable[Question], protocol: Protocol) -> None:
    """Refuses the first question whose own prompt tells the model to search in another grammar than the protocol's."""
    spoken = protocol.act(Search("Oslo"))
    for question in questions:
        text = "\n".join(message["content"] for message in question.prompt or ())
        explained = [mark for mark in _GRAMMARS if mark in text]
        if explained and not any(mark in spoken for mark in explained):
            raise ConfigError(
                f"the question {question.id!r} has a prompt of its own that searches with {explained[0]}, which "
                f"agent.protocol does not read; choose --set agent.protocol={_GRAMMARS[explained[0]]}, or take the "
                "prompts out of the questions"
            )


def encode(messages: Sequence[dict[str, str]], tokens: Tokens, functions: Sequence[Function] = ()) -> list[int]:
    """The ids of messages up to where the model speaks: through its chat template, or their text alone."""
    if tokens.tokenizer.chat_template is None:
        return [*tokens.prefix_ids, *tokens.encode("\n".join(message["content"] for message in messages))]
    return _chat(messages, tokens, functions)


def named(template: str) -> str:
    """The text of a template: one that ships, or NAME of the user's own file as FILE.toml:NAME."""
    file, colon, name = template.rpartition(":")
    known = templates(Path(file) if colon else SHIPPED)
    if name not in known:
        raise ConfigError(
            f"agent.prompt is {template!r}; expected one of {', '.join(known)}"
            + ("" if colon else ", or a prompt of your own as FILE.toml:NAME")
        )
    return known[name]


@lru_cache(maxsize=8)
def templates(file: Path) -> dict[str, str]:
    """The templates of a file by name."""
    try:
        found = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"the prompts {file} cannot be read ({' '.join(str(error).split())}); give TOML") from error
    for name, text in found.items():
        if not isinstance(text, str) or QUESTION not in text:
            raise ConfigError(f"the prompt {name!r} of {file} is no text with {QUESTION} in it; write one")
    return found


def marked(question: Question) -> str:
    """The question with its mark."""
    text = question.question.strip()
    return text if text.endswith("?") else f"{text}?"


def _chat(messages: Sequence[dict[str, str]], tokens: Tokens, functions: Sequence[Function]) -> list[int]:
    """The chat template around the contents: only its own text may name special tokens, the contents may not."""
    ids: list[int] = []
    for place, piece in enumerate(framed(messages, tokens, functions).split(GAP)):
        ids += tokens.encode_trusted(piece) if place % 2 == 0 else tokens.encode(messages[int(piece)]["content"])
    return ids
