"""The chat template of a model, written around contents that it never sees: each is a numbered gap."""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from sleuth.model.tokens import Tokens

GAP = "\ue000"

Function = Mapping[str, Any]  # a function as chat templates are told of it: a JSON schema with name and parameters


def gap(number: int) -> str:
    """What stands for the content of message `number`."""
    return f"{GAP}{number}{GAP}"


def framed(
    messages: Sequence[Mapping[str, Any]], tokens: Tokens, functions: Sequence[Function] = (), *, opening: bool = True
) -> str:
    """What the template writes around the contents of messages; with `opening` up to where the model speaks."""
    gaps = [{**message, "content": gap(number)} for number, message in enumerate(messages)]
    return _frame(tokens, json.dumps([gaps, list(functions)]), opening)


@lru_cache(maxsize=64)
def _frame(tokens: Tokens, told: str, opening: bool) -> str:
    """The same for every question of a run."""
    gaps, functions = json.loads(told)
    return written(gaps, tokens, functions, opening=opening)


def written(
    messages: Sequence[Mapping[str, Any]], tokens: Tokens, functions: Sequence[Function] = (), *, opening: bool
) -> str:
    """What the template makes of messages as they are."""
    told = [dict(function) for function in functions] or None
    text = tokens.tokenizer.apply_chat_template(
        [dict(message) for message in messages],
        tools=told,  # type: ignore[arg-type]  # the library's own type knows no schemas of mappings
        tokenize=False,
        add_generation_prompt=opening,
    )
    assert isinstance(text, str)  # noqa: S101  tokenize=False gives text
    return text


def is_quoted(before: str, after: str) -> bool:
    """Whether a template that wrote this before and after a gap wrote the content as a string of JSON."""
    return before.endswith('"') and after.startswith('"')
