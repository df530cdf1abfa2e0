"""Demonstrations in the generated world, by an expert and by lower-quality behaviours.

A demonstration is a training row: the loss excludes the prompt and the search results. No demonstration takes
three hops: the expert stops after two and leaves the third to be discovered by reinforcement learning.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from sleuth.model.packing import Row, row
from sleuth.model.tokens import Tokens
from sleuth.records import THINK_CLOSE, THINK_OPEN, Answer, Passage, Question, ToolCall
from sleuth.synthesis.world.schema import RELATIONS
from sleuth.synthesis.world.world import Hop, World, WorldQuestion


@dataclass(frozen=True, slots=True)
class Move:
    """A thought and an action (None stops the episode); for a search, `row` is the passage it returns."""

    thought: str
    action: ToolCall | Answer | None
    row: int = -1


Script = list[Move]


class Speech(Protocol):
    """The words of an agent in a demonstration; `end` closes a turn, and agents with one `name` observe alike."""

    @property
    def name(self) -> str: ...

    @property
    def end(self) -> tuple[int, ...]: ...

    def prompt(self, question: Question) -> list[int]: ...

    def write(self, action: ToolCall | Answer) -> str: ...

    def observe(self, passage: Passage) -> list[int]:
        """Return the tokens of a search result, which begin with the end of the turn."""


def render_move(move: Move, write: Callable[[ToolCall | Answer], str]) -> str:
    """Format a move as the model's output."""
    thought = f"{THINK_OPEN} {move.thought}"
    return thought if move.action is None else f"{thought} {THINK_CLOSE} {write(move.action)}"


class Demonstrator:
    """Renders scripts for the questions of a world as training rows.

    `reading` is the loss weight of observation tokens, which teach a small model to copy names.
    """

    def __init__(self, world: World, tokens: Tokens, reading: float) -> None:
        self._world, self._tokens, self._reading = world, tokens, reading
        self._observations: dict[tuple[str, int], list[int]] = {}

    def row(self, item: WorldQuestion, script: Script, speech: Speech, prompted: bool = True) -> Row:
        """Return the tokens of a demonstration and their loss weights.

        Without its prompt, it starts at the first search, whose thought is given: later thoughts then depend on that
        thought, because there is no question to read.
        """
        pieces = [(speech.prompt(item.question), 0.0)] if prompted else []
        for move in script:
            is_given = not prompted and move is script[0]
            pieces.append((self._tokens.encode(render_move(move, speech.write)), 0.0 if is_given else 1.0))
            if move.action is not None:
                pieces.append((list(speech.end), 1.0))
            if isinstance(move.action, ToolCall):
                pieces.append((self._observation(move.row, speech)[len(speech.end) :], self._reading))
        return row(
            [token for ids, _ in pieces for token in ids], [weight for ids, weight in pieces for _ in range(len(ids))]
        )

    def drill(self, item: WorldQuestion) -> Row:
        """Return a comparison drill: both facts are given, and only the verdict is trained on."""
        facts = self._tokens.encode(f"{THINK_OPEN} {' '.join(map(_fact, item.hops))}")
        verdict = self._tokens.encode(f" {_verdict(item)} {THINK_CLOSE}")
        return row([*facts, *verdict], [0.0] * len(facts) + [1.0] * len(verdict))

    def _observation(self, row: int, speech: Speech) -> list[int]:
        """Return the tokens of a search result, cached after the first call."""
        key = speech.name, row
        if key not in self._observations:
            self._observations[key] = speech.observe(self._world.passage(row))
        return self._observations[key]


def expert(item: WorldQuestion, _world: World, _rng: random.Random) -> Script:
    """Search for each hop, state the fact, and answer; stops after two hops even if the question needs three."""
    searches: Script = []
    for index, hop in enumerate(item.hops[:2]):
        known = f"{_fact(item.hops[index - 1])} " if index else ""
        searches.append(Move(f"{known}{_need(item, index)}", ToolCall.search(hop.subject), int(hop.passage_id)))
    if len(item.hops) > 2:
        return [*searches, Move(_fact(item.hops[1]), None)]
    last = _fact(item.hops[-1])
    conclusion = f"{last} {_verdict(item)}" if is_comparison(item) else last
    return [*searches, Move(conclusion, Answer(item.question.golden_answers[0]))]


def detour(item: WorldQuestion, world: World, rng: random.Random) -> Script:
    """Expert script with one wrong search added, so that the number of searches does not reveal the hops."""
    script = expert(item, world, rng)
    index = rng.randrange(min(2, len(item.hops)))
    move, row = script[index], rng.randrange(len(world))
    wrong = Move(move.thought, ToolCall.search(world.passage(row).title), row)
    again = Move(f"That does not help. {_need(item, index)}", move.action, move.row)
    return [*script[:index], wrong, again, *script[index + 1 :]]


def guess(item: WorldQuestion, world: World, rng: random.Random) -> Script:
    """Answer at random without a search."""
    return [Move("I know this.", Answer(_random_answer(item, world, rng)))]


def stray(item: WorldQuestion, world: World, rng: random.Random) -> Script:
    """Make a wrong search, then answer at random."""
    row = rng.randrange(len(world))
    thought = expert(item, world, rng)[0].thought
    wrong = Move(thought, ToolCall.search(world.passage(row).title), row)
    return [wrong, Move("That must be it.", Answer(_random_answer(item, world, rng)))]


def hasty(item: WorldQuestion, world: World, rng: random.Random) -> Script:
    """Answer with the value of the first hop; for comparisons, answer at random after one search."""
    first, hop = expert(item, world, rng)[0], item.hops[0]
    answer = _random_answer(item, world, rng) if is_comparison(item) else hop.value
    return [first, Move(_fact(hop), Answer(answer))]


Behaviour = Callable[[WorldQuestion, World, random.Random], Script]
BEHAVIOURS: Mapping[str, Behaviour] = {
    "expert": expert,
    "detour": detour,
    "guess": guess,
    "stray": stray,
    "hasty": hasty,
}


def is_comparison(item: WorldQuestion) -> bool:
    return item.question.type in ("comparison", "yes_no")


def _need(item: WorldQuestion, index: int) -> str:
    """Return the question with the facts found so far filled in."""
    rest = item.hops[index : index + 1] if is_comparison(item) else item.hops[index:]
    nouns = "".join(f"the {hop.noun} of " for hop in reversed(rest))
    return f"I need {nouns}{item.hops[index].subject}."


def _fact(hop: Hop) -> str:
    return f"The {hop.noun} of {hop.subject} is {hop.value}."


def _verdict(item: WorldQuestion) -> str:
    """Return the sentence that states the result of a comparison."""
    first, second = item.hops
    if item.question.type == "yes_no":
        return f"{first.value} and {second.value} are {'the same' if first.value == second.value else 'different'}."
    early, late = sorted(item.hops, key=lambda hop: int(hop.value))
    return f"{early.subject} ({early.value}) came before {late.subject} ({late.value})."


def _random_answer(item: WorldQuestion, world: World, rng: random.Random) -> str:
    """Return a random plausible answer: yes or no, one of the compared subjects, a year, or a name."""
    if item.question.type == "yes_no":
        return rng.choice(("yes", "no"))
    if item.question.type == "comparison":
        return rng.choice([hop.subject for hop in item.hops])
    if RELATIONS[item.hops[-1].relation].range is None:
        return str(rng.randrange(1800, 2000))
    return world.passage(rng.randrange(len(world))).title
