"""Demonstrations: rows whose prompt is given, whose grammar parses, and in which no third hop is ever shown."""

import random
from collections.abc import Callable

import pytest
import torch

from sleuth.agent import prompts
from sleuth.agent.tags import Tags
from sleuth.model.packing import WEIGHT, Row
from sleuth.model.tokens import Tokens
from sleuth.records import Answer, Malformed, ToolCall
from sleuth.sft.demonstrations import BEHAVIOURS, Demonstrator, Script, acted, expert
from sleuth.sft.quickstart_tokenizer import tokenizer
from sleuth.synthesis.world.world import World, WorldQuestion

READING = 0.125
PROMPT = "brief"


@pytest.fixture(scope="module")
def world() -> World:
    return World(300, 3)


@pytest.fixture(scope="module")
def posed(world: World) -> list[WorldQuestion]:
    return list(world.questions("train", 60))


@pytest.fixture(scope="module")
def plain(world: World) -> Tokens:
    return Tokens(tokenizer(passage.contents for passage in world.passages()))


@pytest.fixture(scope="module")
def demonstrator(world: World, plain: Tokens) -> Demonstrator:
    return Demonstrator(world, plain, Tags(), PROMPT, READING)


Behaviour = Callable[[WorldQuestion, World, random.Random], Script]

everyone = pytest.mark.parametrize("behaviour", BEHAVIOURS.values(), ids=BEHAVIOURS)


@everyone
def test_actions_are_of_the_grammar(behaviour: Behaviour, world: World, posed: list[WorldQuestion]) -> None:
    for each in posed:
        for move in behaviour(each, world, random.Random(0)):
            read = Tags().parse(acted(move, Tags()))
            assert isinstance(read, Malformed) if move.action is None else read == move.action


@everyone
def test_searches_show_the_passage_that_bears_their_name(
    behaviour: Behaviour, world: World, posed: list[WorldQuestion]
) -> None:
    searches = [
        move for each in posed for move in behaviour(each, world, random.Random(1)) if isinstance(move.action, ToolCall)
    ]
    for move in searches:
        assert isinstance(move.action, ToolCall)
        assert world.passage(move.row).title == move.action.lookups[0]


@everyone
def test_no_demonstration_takes_three_hops(behaviour: Behaviour, world: World, posed: list[WorldQuestion]) -> None:
    deep = [each for each in posed if len(each.hops) > 2]
    assert deep
    for each in deep:
        for seed in range(20):
            actions = iter([move.action for move in behaviour(each, world, random.Random(seed))])
            taken = [hop for hop in each.hops if ToolCall.search(hop.subject) in actions]
            assert len(taken) < 3


def test_expert_answers_right_where_two_hops_are_enough(world: World, posed: list[WorldQuestion]) -> None:
    for each in posed:
        if len(each.hops) > 2:
            continue
        *shown, last = expert(each, world, random.Random(0))
        assert [move.action for move in shown] == [ToolCall.search(hop.subject) for hop in each.hops]
        assert isinstance(last.action, Answer)
        assert last.action.text in each.question.golden_answers


@everyone
def test_row_learns_what_was_done_and_reads_a_little(
    behaviour: Behaviour, demonstrator: Demonstrator, plain: Tokens, world: World, posed: list[WorldQuestion]
) -> None:
    for each in posed[:20]:
        script = behaviour(each, world, random.Random(4))
        row = demonstrator.row(each, script)
        prompt = prompts.render(each.question, PROMPT, Tags(), plain)
        ids, weights = row.ids_L.tolist(), weights_of(row)
        assert ids[: len(prompt)] == prompt
        assert set(weights[: len(prompt)]) == {0.0}
        assert set(weights[len(prompt) :]) <= {READING, 1.0}
        learned = plain.decode([token for token, weight in zip(ids, weights, strict=True) if weight == 1.0])
        read = plain.decode([token for token, weight in zip(ids, weights, strict=True) if weight == READING])
        assert learned == "".join(acted(move, Tags()) for move in script)
        assert read.count("<information>") == sum(isinstance(move.action, ToolCall) for move in script)


def test_drill_practises_only_the_verdict(demonstrator: Demonstrator, posed: list[WorldQuestion]) -> None:
    compared = [each for each in posed if each.question.type in ("comparison", "yes_no")]
    assert compared
    for each in compared:
        weights = weights_of(demonstrator.drill(each))
        assert set(weights) == {0.0, 1.0}
        assert weights == sorted(weights)


def weights_of(row: Row) -> list[float]:
    """The weight of every token."""
    weights = torch.zeros(len(row.ids_L))
    weights[row.positions_S] = row.columns[WEIGHT]
    return weights.tolist()
