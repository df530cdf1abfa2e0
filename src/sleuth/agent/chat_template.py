"""Chat templates, rendered with placeholders so that untrusted content never passes through the template."""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from sleuth.agent.observation import Observation
from sleuth.errors import ConfigError
from sleuth.model.tokens import Tokens

GAP = "\ue000"
REMEDY = "choose agent.protocol = tags, or a model whose chat template supports tools"

Function = Mapping[str, Any]  # a function declaration as chat templates expect it
Functions = Sequence[Function]
Messages = Sequence[Mapping[str, Any]]


def placeholder(index: int) -> str:
    """Placeholder for the content of message `index`."""
    return f"{GAP}{index}{GAP}"


def render_frame(
    messages: Messages, tokens: Tokens, functions: Functions = (), *, generation_prompt: bool = True
) -> str:
    """Render messages with placeholders for their contents."""
    hollow = [{**message, "content": placeholder(index)} for index, message in enumerate(messages)]
    return render_cached(hollow, tokens, functions, generation_prompt=generation_prompt)


def render_cached(messages: Messages, tokens: Tokens, functions: Functions, *, generation_prompt: bool) -> str:
    """Like `render`, with a cache; for messages whose contents are placeholders."""
    return _render_cached(tokens, json.dumps([messages, list(functions)]), generation_prompt)


@lru_cache(maxsize=256)
def _render_cached(tokens: Tokens, conversation: str, generation_prompt: bool) -> str:
    messages, functions = json.loads(conversation)
    return render(messages, tokens, functions, generation_prompt=generation_prompt)


def render(messages: Messages, tokens: Tokens, functions: Functions = (), *, generation_prompt: bool) -> str:
    """Render messages as text with the chat template."""
    text = tokens.tokenizer.apply_chat_template(
        [dict(message) for message in messages],
        tools=[dict(function) for function in functions] or None,
        tokenize=False,
        add_generation_prompt=generation_prompt,
    )
    assert isinstance(text, str)  # noqa: S101  tokenize=False returns text
    return text


def try_render_frame(messages: Messages, tokens: Tokens, functions: Functions) -> str:
    """Like `render_frame`, but raises ConfigError if the template fails."""
    try:
        return render_frame(messages, tokens, functions)
    except Exception as error:  # templates are third-party programs
        raise ConfigError(f"the chat template rejects a conversation with tools ({error}); {REMEDY}") from error


def is_json_string(before: str, after: str) -> bool:
    """Whether the template writes the content between these two texts as a JSON string."""
    return before.endswith('"') and after.startswith('"')


def turn_frame(role: str, tokens: Tokens, functions: Functions) -> Observation:
    """Return the template text around a `role` message between two model turns, as an observation without a body.

    Only this text is appended later: earlier tokens stay unchanged, even if the template would render them differently.
    Raises ConfigError if the text depends on the position of the turn.
    """
    turns = [{"role": name} for name in ("user", "assistant", role, "assistant", role)]
    once, twice = (_text_between(turns[:count], tokens, functions) for count in (3, 5))
    opening, closing = once[-2:]
    # Appending turns may change the text before an assistant message, but not the text after it.
    if twice[-2:] != [opening, closing] or twice[1] != opening:
        raise ConfigError(
            f"the chat template renders {role} messages differently from turn to turn, so they cannot be appended to "
            f"a conversation; {REMEDY}"
        )
    return Observation(opening, "", closing, trusted=True, quoted=is_json_string(opening, closing))


def _text_between(messages: Messages, tokens: Tokens, functions: Functions) -> list[str]:
    parts = try_render_frame(messages, tokens, functions).split(GAP)[1:]
    if [*map(str, range(len(messages)))] != parts[::2]:
        roles = ", ".join(message["role"] for message in messages)
        raise ConfigError(f"the chat template does not render each of the messages {roles} once, in order; {REMEDY}")
    return parts[1::2]
