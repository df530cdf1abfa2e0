"""What a chat template writes between two turns of the model, learned once from a conversation of gaps.

Only this new suffix is ever rendered: the tokens that came before stay as they are, whatever the template would make
of them now.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sleuth.agent.observation import Observation
from sleuth.agent.template import GAP, Function, framed, is_quoted
from sleuth.errors import ConfigError
from sleuth.model.tokens import Tokens

REMEDY = "choose agent.protocol = tags, or a model whose chat template has tools"


@dataclass(frozen=True, slots=True)
class Frame:
    """The template's text from the end of the model's turn to the content shown, and from there to its next turn."""

    opening: str
    closing: str

    def around(self, body: str) -> Observation:
        quoted = is_quoted(self.opening, self.closing)
        return Observation(self.opening, body, self.closing, trusted=True, quoted=quoted)


def frame(role: str, tokens: Tokens, functions: Sequence[Function]) -> Frame:
    """The frame of what a role shows; one that is not the same after every turn is a ConfigError."""
    turns = [{"role": name} for name in ("user", "assistant", role, "assistant", role)]
    once, twice = (_pieces(turns[:count], tokens, functions) for count in (3, 5))
    found = Frame(*once[-2:])
    # What stands before a later gap may be rewritten by a later turn; what follows the model's words may not.
    if Frame(*twice[-2:]) != found or twice[1] != found.opening:
        raise ConfigError(
            f"the chat template writes what the {role} says differently from turn to turn, so that it cannot be added "
            f"to a conversation; {REMEDY}"
        )
    return found


def attempted(messages: Sequence[dict[str, str]], tokens: Tokens, functions: Sequence[Function]) -> str:
    """What the template writes around messages; whatever it raises is a ConfigError."""
    try:
        return framed(messages, tokens, functions)
    except Exception as error:  # a template is a program of others, and may raise anything
        raise ConfigError(f"the chat template refuses a conversation with tools ({error}); {REMEDY}") from error


def _pieces(messages: Sequence[dict[str, str]], tokens: Tokens, functions: Sequence[Function]) -> list[str]:
    """What stands after each content."""
    parts = attempted(messages, tokens, functions).split(GAP)[1:]
    if [*map(str, range(len(messages)))] != parts[::2]:
        roles = ", ".join(message["role"] for message in messages)
        raise ConfigError(f"the chat template does not write every message of {roles} once and in order; {REMEDY}")
    return parts[1::2]
