"""Demonstrations in the generated world: an expert's, and those of people who know less.

A demonstration is a row to train on: the prompt and what the search engine showed are given, the rest is to be
learned. No demonstration takes three hops: the expert breaks off after two, and what comes next is left to be found.
"""

import random
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from sleuth.agent import prompts
from sleuth.agent.protocol import Protocol
from sleuth.model.packing import Row, row
from sleuth.model.tokens import Tokens
from sleuth.records import Answer, Hit, ToolCall
from sleuth.synthesis.world.schema import RELATIONS
from sleuth.synthesis.world.world import Hop, World, WorldQuestion


@dataclass(frozen=True, slots=True)
class Move:
    """A thought and what is done upon it, None where it breaks off; a search shows passage `row` of the corpus."""

    thought: str
    action: ToolCall | Answer | None
    row: int = -1


Script = list[Move]


class Demonstrator:
    """Writes demonstrations for the questions of a world."""

    def __init__(self, world: World, tokens: Tokens, protocol: Protocol, prompt: str, reading: float) -> None:
        """`reading` is the weight of the tokens of observations, from which a small model learns to copy names."""
        self._world = world
        self._tokens = tokens
        self._protocol = protocol
        self._prompt = prompt
        self._reading = reading
        self._observations: dict[int, list[int]] = {}

    def row(self, posed: WorldQuestion, script: Script) -> Row:
        """The tokens of a demonstration with their weights as targets."""
        given = prompts.render(posed.question, self._prompt, self._protocol, self._tokens)
        ids, weights = list(given), [0.0] * len(given)
        for piece, weight in self._pieces(script):
            ids += piece
            weights += [weight] * len(piece)
        return row(ids, weights)

    def drill(self, posed: WorldQuestion) -> Row:
        """Practice in setting two facts against each other, in the words of a comparison."""
        facts = self._tokens.encode(f"<think> {' '.join(map(_found, posed.hops))}")
        verdict = self._tokens.encode(f" {_verdict(posed)} </think>")
        return row([*facts, *verdict], [0.0] * len(facts) + [1.0] * len(verdict))

    def _pieces(self, script: Script) -> Iterator[tuple[list[int], float]]:
        for move in script:
            yield self._tokens.encode(acted(move, self._protocol)), 1.0
            if isinstance(move.action, ToolCall):
                yield self._shown(move.row), self._reading

    def _shown(self, row: int) -> list[int]:
        """What a search that finds this row shows, encoded once."""
        if row not in self._observations:
            hit = Hit(self._world.passage(row), 0.0)
            shown = self._protocol.observe(ToolCall.search(""), ((hit,),))
            self._observations[row] = shown.ids(self._tokens, sys.maxsize) or []
        return self._observations[row]


def acted(move: Move, protocol: Protocol) -> str:
    """A move as the model would write it."""
    thought = f"<think> {move.thought}"
    return thought if move.action is None else f"{thought} </think> {protocol.write(move.action)}"


def expert(posed: WorldQuestion, _world: World, _dice: random.Random) -> Script:
    """Every hop is searched for, what was found is said, and the answer follows; of three hops only two are shown."""
    shown = [_look_up(posed, place) for place in range(min(2, len(posed.hops)))]
    if len(posed.hops) > 2:
        return [*shown, Move(_found(posed.hops[1]), None)]
    return [*shown, Move(_conclusion(posed), Answer(posed.question.golden_answers[0]))]


def detour(posed: WorldQuestion, world: World, dice: random.Random) -> Script:
    """An expert who once searches for something else, and notices: hops must not be told by counting searches."""
    script = expert(posed, world, dice)
    place = dice.randrange(min(2, len(posed.hops)))
    astray, row = script[place], dice.randrange(len(world))
    again = Move(f"That does not help. {_need(posed, place)}", astray.action, astray.row)
    wrong = Move(astray.thought, ToolCall.search(world.passage(row).title), row)
    return [*script[:place], wrong, again, *script[place + 1 :]]


def guess(posed: WorldQuestion, world: World, dice: random.Random) -> Script:
    """An answer, without searching."""
    return [Move("I know this.", Answer(_guessed(posed, world, dice)))]


def stray(posed: WorldQuestion, world: World, dice: random.Random) -> Script:
    """A search for the wrong thing, and an answer that does not come from it."""
    row = dice.randrange(len(world))
    thought = expert(posed, world, dice)[0].thought
    return [
        Move(thought, ToolCall.search(world.passage(row).title), row),
        Move("That must be it.", Answer(_guessed(posed, world, dice))),
    ]


def hasty(posed: WorldQuestion, world: World, dice: random.Random) -> Script:
    """The first hop is taken for the answer; with two things to compare, only one is looked at."""
    first, hop = expert(posed, world, dice)[0], posed.hops[0]
    answer = _guessed(posed, world, dice) if compares(posed) else hop.value
    return [first, Move(_found(hop), Answer(answer))]


BEHAVIOURS: Mapping[str, Callable[[WorldQuestion, World, random.Random], Script]] = {
    "expert": expert,
    "detour": detour,
    "guess": guess,
    "stray": stray,
    "hasty": hasty,
}


def _look_up(posed: WorldQuestion, place: int) -> Move:
    hop = posed.hops[place]
    found = f"{_found(posed.hops[place - 1])} " if place else ""
    return Move(f"{found}{_need(posed, place)}", ToolCall.search(hop.subject), int(hop.passage_id))


def _need(posed: WorldQuestion, place: int) -> str:
    """What is still to be found: the question with what is known put in its place."""
    rest = posed.hops[place : place + 1] if compares(posed) else posed.hops[place:]
    nouns = "".join(f"the {hop.noun} of " for hop in reversed(rest))
    return f"I need {nouns}{posed.hops[place].subject}."


def _found(hop: Hop) -> str:
    return f"The {hop.noun} of {hop.subject} is {hop.value}."


def _conclusion(posed: WorldQuestion) -> str:
    last = _found(posed.hops[-1])
    return f"{last} {_verdict(posed)}" if compares(posed) else last


def _verdict(posed: WorldQuestion) -> str:
    """What two facts beside each other show."""
    first, second = posed.hops
    if posed.question.type == "yes_no":
        return f"{first.value} and {second.value} are {'the same' if first.value == second.value else 'different'}."
    early, late = sorted(posed.hops, key=lambda hop: int(hop.value))
    return f"{early.subject} ({early.value}) came before {late.subject} ({late.value})."


def compares(posed: WorldQuestion) -> bool:
    """Whether two things are set against each other."""
    return posed.question.type in ("comparison", "yes_no")


def _guessed(posed: WorldQuestion, world: World, dice: random.Random) -> str:
    """Something that could be an answer: yes or no, one of the two compared, a year, or a name."""
    last = posed.hops[-1]
    if posed.question.type == "yes_no":
        return dice.choice(("yes", "no"))
    if posed.question.type == "comparison":
        return dice.choice([hop.subject for hop in posed.hops])
    if RELATIONS[last.relation].range is None:
        return str(dice.randrange(1800, 2000))
    return world.passage(dice.randrange(len(world))).title
