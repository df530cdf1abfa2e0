"""Where a turn ends: at the first stop, whatever the engine sampled after it."""

from collections.abc import Sequence
from dataclasses import replace

from sleuth.engines.base import Completion
from sleuth.model.tokens import Tokens


def up_to_stop(completion: Completion, stops: Sequence[str], tokens: Tokens) -> tuple[Completion, str]:
    """The tokens up to the one that completes the first stop, and the text up to that stop itself.

    What that token carries past the stop is nobody's action. Tokens after it are dropped, should an engine return any:
    they are neither shown nor trained.
    """
    text = tokens.decode(completion.ids)
    end = first_end(text, stops)
    if end is None:
        return completion, text
    count = len(completion.ids)
    while first_end(tokens.decode(completion.ids[: count - 1]), stops) is not None:
        count -= 1
    kept = replace(
        completion,
        ids=completion.ids[:count],
        logprobs=completion.logprobs[:count],
        versions=completion.versions[:count],
    )
    return kept, text[:end]


def first_end(text: str, stops: Sequence[str]) -> int | None:
    """Where the first stop in a text ends; None where there is none."""
    return min((text.index(stop) + len(stop) for stop in stops if stop in text), default=None)
