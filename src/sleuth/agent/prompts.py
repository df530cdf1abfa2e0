"""Prompts: build the initial token ids of an episode from a question and a template."""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from sleuth.agent.chat_template import GAP, Function, render_frame
from sleuth.agent.protocol import Protocol
from sleuth.errors import ConfigError
from sleuth.model.tokens import Tokens
from sleuth.records import Answer, Question
from sleuth.reward.answers import ABSTENTION

SHIPPED = Path(__file__).with_name("prompts.toml")
QUESTION, DOCUMENTS, EXAMPLES = "{question}", "{documents}", "{examples}"
_PLACEHOLDER = re.compile(r"\{(instruction|question|form|documents|examples|abstain|unknown)\}")
_MOST_LIKELY = "give the answer that you think most likely"


def render(
    question: Question, template: str, protocol: Protocol, tokens: Tokens, *, abstain: bool = False
) -> list[int]:
    """Return the token ids of the question's own prompt, or of the template if the question has none."""
    return encode(messages(question, template, protocol, abstain=abstain), tokens, protocol.functions)


def messages(
    question: Question, template: str, protocol: Protocol, *, abstain: bool = False
) -> tuple[dict[str, str], ...]:
    return question.prompt or fill(question, template, protocol, abstain=abstain)


def fill(
    question: Question,
    template: str,
    protocol: Protocol,
    documents: str = "",
    examples: str = "",
    *,
    abstain: bool = False,
) -> tuple[dict[str, str], ...]:
    """Fill in the template, ignoring the question's own prompt; `abstain` allows the answer "I don't know"."""
    refusal = f"write {protocol.write(Answer(ABSTENTION))}"
    contents = {
        "instruction": protocol.instruction,
        "question": with_question_mark(question),
        "form": protocol.write(Answer("Lisbon")),
        "documents": documents,
        "examples": examples,
        "abstain": f"\nShould you not find the answer, {refusal} instead of a guess." if abstain else "",
        "unknown": refusal if abstain else _MOST_LIKELY,
    }
    # One pass, so that a placeholder inside the filled-in text stays as it is.
    text = _PLACEHOLDER.sub(lambda place: contents[place[1]], _find_template(template))
    return ({"role": "user", "content": text},)


def continue_conversation(
    question: Question,
    earlier: Sequence[dict[str, str]],
    template: str,
    protocol: Protocol,
    *,
    abstain: bool = False,
) -> Question:
    """Return the question with earlier messages before its filled-in template, as its own prompt."""
    return replace(question, prompt=(*earlier, *fill(question, template, protocol, abstain=abstain)))


def encode(messages: Sequence[dict[str, str]], tokens: Tokens, functions: Sequence[Function] = ()) -> list[int]:
    """Encode messages up to the model's turn with the chat template, or as plain text without a template.

    Only the template's own text may contain special tokens; the contents may not.
    """
    if tokens.tokenizer.chat_template is None:
        return [*tokens.prefix_ids, *tokens.encode("\n".join(message["content"] for message in messages))]
    ids: list[int] = []
    for place, piece in enumerate(render_frame(messages, tokens, functions).split(GAP)):
        ids += tokens.encode_trusted(piece) if place % 2 == 0 else tokens.encode(messages[int(piece)]["content"])
    return ids


def load_template(template: str) -> str:
    """Return the text of a shipped template, or of a user's template given as FILE.toml:NAME, without abstaining."""
    return _find_template(template).replace("{abstain}", "").replace("{unknown}", _MOST_LIKELY)


def _find_template(template: str) -> str:
    file, colon, name = template.rpartition(":")
    known = templates(Path(file) if colon else SHIPPED)
    if name not in known:
        raise ConfigError(
            f"agent.prompt is {template!r}; expected one of {', '.join(known)}"
            + ("" if colon else ", or your own prompt as FILE.toml:NAME")
        )
    return known[name]


@lru_cache(maxsize=8)
def templates(file: Path) -> dict[str, str]:
    try:
        found = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"cannot read the prompts of {file} ({reason}); expected a TOML file") from error
    for name, text in found.items():
        if not isinstance(text, str) or QUESTION not in text:
            raise ConfigError(f"the prompt {name!r} of {file} must be a string that contains {QUESTION}")
    return found


def with_question_mark(question: Question) -> str:
    text = question.question.strip()
    return text if text.endswith("?") else f"{text}?"
