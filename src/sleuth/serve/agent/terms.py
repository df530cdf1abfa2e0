"""What a server says of its agent, and on which terms questions are answered."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Facts:
    """What a server says of its agent: its name, what it searches, and since when it is there."""

    name: str
    searches: str
    created: int


@dataclass(frozen=True, slots=True)
class Terms:
    """On which terms questions are answered.

    `places` at once, while others wait for one of them `wait` seconds at most; `tokens` sampled for one at most, and
    `prompt` tokens with which it may begin, where the agent's own limits are not enough; `characters` of all messages;
    `temperature` where a request names none.
    """

    places: int = 64
    tokens: int | None = None
    prompt: int | None = None
    characters: int = 32_768
    temperature: float = 0.0
    wait: float = 60.0
