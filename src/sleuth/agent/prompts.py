"""From a question to the ids the episode begins with."""

from collections.abc import Sequence

from sleuth.agent.protocol import Protocol
from sleuth.errors import ConfigError
from sleuth.model.tokens import Tokens
from sleuth.records import Question

# {instruction} is the protocol's own; the question is put in as plain text, after the template was read.
TEMPLATES = {
    "instruct": "{instruction}\nQuestion: {question}\n",
    "brief": "Question: {question}\n",
}
GAP = "\ue000"


def render(question: Question, template: str, protocol: Protocol, tokens: Tokens) -> list[int]:
    """The ids of the prompt: the row's own where it has one, else the template, through the model's chat template."""
    return encode(messages(question, template, protocol), tokens)


def messages(question: Question, template: str, protocol: Protocol) -> tuple[dict[str, str], ...]:
    """What the model is asked: the row's own prompt where it has one, else the template."""
    return question.prompt or ({"role": "user", "content": _filled(question, template, protocol)},)


def encode(messages: Sequence[dict[str, str]], tokens: Tokens) -> list[int]:
    """The ids of messages up to where the model speaks: through its chat template, or their text alone."""
    if tokens.tokenizer.chat_template is None:
        return [*tokens.opening, *tokens.encode("\n".join(message["content"] for message in messages))]
    return _chat(messages, tokens)


def named(template: str) -> str:
    """The text of a template."""
    if template not in TEMPLATES:
        raise ConfigError(f"agent.prompt is {template!r}; expected one of {', '.join(TEMPLATES)}")
    return TEMPLATES[template]


def _filled(question: Question, template: str, protocol: Protocol) -> str:
    before, _, after = named(template).partition("{question}")
    asked = question.question.strip()
    asked = asked if asked.endswith("?") else f"{asked}?"
    return before.replace("{instruction}", protocol.instruction) + asked + after


def _chat(messages: Sequence[dict[str, str]], tokens: Tokens) -> list[int]:
    """The chat template around the contents: only its own text may name special tokens, the contents may not."""
    gaps = [{**message, "content": f"{GAP}{number}{GAP}"} for number, message in enumerate(messages)]
    frame = tokens.tokenizer.apply_chat_template(gaps, tokenize=False, add_generation_prompt=True)
    assert isinstance(frame, str)  # noqa: S101  tokenize=False gives text
    ids: list[int] = []
    for place, piece in enumerate(frame.split(GAP)):
        ids += tokens.encode_trusted(piece) if place % 2 == 0 else tokens.encode(messages[int(piece)]["content"])
    return ids
