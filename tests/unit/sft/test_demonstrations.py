"""Demonstrations: valid actions, loss weights, and at most two hops."""

import random
from collections.abc import Callable

import pytest
import torch

from sleuth.agent import prompts
from sleuth.agent.tags import Tags
from sleuth.model.packing import WEIGHT, Row
from sleuth.model.tokens import Tokens
from sleuth.records import Answer, Malformed, ToolCall
from sleuth.sft.demonstrations import BEHAVIOURS, Demonstrator, Script, expert, render_move
from sleuth.sft.dialects import OwnAgent
from sleuth.sft.quickstart_policy import build_tokenizer
from sleuth.synthesis.world.world import World, WorldQuestion

READING = 0.125
PROMPT = "brief"


@pytest.fixture(scope="module")
def world() -> World:
    return World(300, 3)


@pytest.fixture(scope="module")
def questions(world: World) -> list[WorldQuestion]:
    return list(world.questions("train", 60))


@pytest.fixture(scope="module")
def plain(world: World) -> Tokens:
    return Tokens(build_tokenizer(passage.contents for passage in world.passages()))


@pytest.fixture(scope="module")
def demonstrator(world: World, plain: Tokens) -> Demonstrator:
    return Demonstrator(world, plain, READING)


Behaviour = Callable[[WorldQuestion, World, random.Random], Script]

all_behaviours = pytest.mark.parametrize("behaviour", BEHAVIOURS.values(), ids=BEHAVIOURS)


@all_behaviours
def test_actions_parse(behaviour: Behaviour, world: World, questions: list[WorldQuestion]) -> None:
    for each in questions:
        for move in behaviour(each, world, random.Random(0)):
            read = Tags().parse(render_move(move, Tags().write))
            assert isinstance(read, Malformed) if move.action is None else read == move.action


@all_behaviours
def test_search_shows_the_passage_with_its_title(
    behaviour: Behaviour, world: World, questions: list[WorldQuestion]
) -> None:
    searches = [
        move
        for each in questions
        for move in behaviour(each, world, random.Random(1))
        if isinstance(move.action, ToolCall)
    ]
    for move in searches:
        assert isinstance(move.action, ToolCall)
        assert world.passage(move.row).title == move.action.lookups[0]


@all_behaviours
def test_at_most_two_hops(behaviour: Behaviour, world: World, questions: list[WorldQuestion]) -> None:
    deep = [each for each in questions if len(each.hops) > 2]
    assert deep
    for each in deep:
        for seed in range(20):
            actions = iter([move.action for move in behaviour(each, world, random.Random(seed))])
            taken = [hop for hop in each.hops if ToolCall.search(hop.subject) in actions]
            assert len(taken) < 3


def test_expert_is_correct_up_to_two_hops(world: World, questions: list[WorldQuestion]) -> None:
    for each in questions:
        if len(each.hops) > 2:
            continue
        *shown, last = expert(each, world, random.Random(0))
        assert [move.action for move in shown] == [ToolCall.search(hop.subject) for hop in each.hops]
        assert isinstance(last.action, Answer)
        assert last.action.text in each.question.golden_answers


@all_behaviours
def test_row_weights(
    behaviour: Behaviour, demonstrator: Demonstrator, plain: Tokens, world: World, questions: list[WorldQuestion]
) -> None:
    for each in questions[:20]:
        script = behaviour(each, world, random.Random(4))
        row = demonstrator.row(each, script, OwnAgent(plain, Tags()))
        prompt = prompts.render(each.question, PROMPT, Tags(), plain)
        ids, weights = row.ids_L.tolist(), weights_of(row)
        assert ids[: len(prompt)] == prompt
        assert set(weights[: len(prompt)]) == {0.0}
        assert set(weights[len(prompt) :]) <= {READING, 1.0}
        learned = plain.decode([token for token, weight in zip(ids, weights, strict=True) if weight == 1.0])
        read = plain.decode([token for token, weight in zip(ids, weights, strict=True) if weight == READING])
        assert learned == "".join(render_move(move, Tags().write) for move in script)
        assert read.count("<information>") == sum(isinstance(move.action, ToolCall) for move in script)


def test_drill_learns_only_the_verdict(demonstrator: Demonstrator, questions: list[WorldQuestion]) -> None:
    compared = [each for each in questions if each.question.type in ("comparison", "yes_no")]
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


def test_without_its_question_a_demonstration_starts_at_the_first_search(
    world: World, questions: list[WorldQuestion], demonstrator: Demonstrator, plain: Tokens
) -> None:
    speech = OwnAgent(plain, Tags())
    chain = next(each for each in questions if each.question.type == "two_hop")
    script = expert(chain, world, random.Random(0))
    whole = demonstrator.row(chain, script, speech)
    row = demonstrator.row(chain, script, speech, prompted=False)
    prompt, first = len(speech.prompt(chain.question)), len(plain.encode(render_move(script[0], Tags().write)))
    assert row.ids_L.tolist() == whole.ids_L.tolist()[prompt:]
    assert weights_of(row) == [0.0] * first + weights_of(whole)[prompt + first :]
