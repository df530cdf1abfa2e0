"""Demonstrations of both dialects; function calls have the tokens of a conversation through the gateway."""

import random

import pytest

from sleuth.agent.function_calls import FunctionCalls
from sleuth.gateway.calls import FunctionCall, Message
from sleuth.gateway.prompting import ChatPrompts
from sleuth.model.tokens import Tokens
from sleuth.records import Answer, ToolCall
from sleuth.sft.demonstrations import Demonstrator, expert, render_move
from sleuth.sft.dialects import DIALECTS, OutsideAgent, OwnAgent
from sleuth.sft.quickstart_policy import DemonstrationSet, Plan, build_tokenizer
from sleuth.synthesis.world.world import World

PLAN = Plan(dialect=DIALECTS["tools"], passages=300, worlds=1, questions=60)


@pytest.fixture(scope="module")
def demonstrations() -> DemonstrationSet:
    return DemonstrationSet.generate(PLAN)


@pytest.fixture(scope="module")
def tokens(demonstrations: DemonstrationSet) -> Tokens:
    return Tokens(build_tokenizer(demonstrations.texts(), PLAN.dialect))


@pytest.fixture(scope="module")
def world(demonstrations: DemonstrationSet) -> World:
    return demonstrations.worlds[0]


def outside(tokens: Tokens, system: str = "Search first.") -> OutsideAgent:
    own = OwnAgent(tokens, FunctionCalls(tokens), (tokens.eos_id or 0,))
    return OutsideAgent(own, system, "search", "query", "Search the encyclopedia.")


@pytest.mark.parametrize("system", ["", "Search first."])
def test_tokens_are_those_of_a_conversation_through_the_gateway(
    system: str, demonstrations: DemonstrationSet, tokens: Tokens, world: World
) -> None:
    item = next(each for each in demonstrations.questions[0] if len(each.hops) == 2)
    script, agent = expert(item, world, random.Random(0)), outside(tokens, system)
    chat, functions = ChatPrompts(tokens), agent._functions
    messages = [Message("system", system)] if system else []
    messages.append(Message("user", item.question.question))
    ids = chat.encode(messages, functions)
    for number, move in enumerate(script):
        ids += [*tokens.encode(render_move(move, agent.write)), *agent.end]
        content, calls = chat.parse(render_move(move, agent.write))
        if isinstance(move.action, Answer):
            assert calls == ()
            continue
        assert isinstance(move.action, ToolCall)
        (call,) = calls
        assert (call.name, call.arguments) == ("search", f'{{"query": "{item.hops[number].subject}"}}')
        found = world.passage(move.row).contents
        messages += [
            Message("assistant", content, (FunctionCall(call.id, call.name, call.arguments),)),
            Message("tool", found, tool_call_id=call.id),
        ]
        ids += chat.encode_after(messages, functions, len(messages) - 1, turn_ended=True)
    assert Demonstrator(world, tokens, 0.1).row(item, script, agent).ids_L.tolist() == ids


def test_the_end_of_a_turn_is_learned(demonstrations: DemonstrationSet, tokens: Tokens, world: World) -> None:
    item = next(each for each in demonstrations.questions[0] if len(each.hops) == 1)
    row = Demonstrator(world, tokens, 0.0).row(item, expert(item, world, random.Random(0)), outside(tokens))
    learned = [int(row.ids_L[place]) for place in row.positions_S]
    assert learned.count(tokens.eos_id or 0) == 2
    assert learned[-1] == tokens.eos_id


def test_agents_are_drawn_at_random(tokens: Tokens) -> None:
    draw, rng = PLAN.dialect.speech(tokens), random.Random(0)
    agents = [draw(rng) for _ in range(200)]
    names = [agent.name for agent in agents]
    assert {"own", "outside"} == set(names)
    assert len({agent.function for agent in agents if isinstance(agent, OutsideAgent)}) > 2


def test_names_after_a_quotation_mark_are_single_tokens(tokens: Tokens, world: World) -> None:
    for row in range(50):
        first, *rest = world.passage(row).title.split()
        assert len(tokens.encode(f'"{first}')) == 2
        assert len(tokens.encode("".join(f" {word}" for word in rest))) == len(rest)
