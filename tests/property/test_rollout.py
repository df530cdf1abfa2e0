"""Whatever an outside agent does with its history, every sampled token is recorded once, as it was sampled."""

import asyncio
from collections.abc import Callable

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sleuth.agent.task import Task
from sleuth.config.agent import AgentConfig
from sleuth.engines.scripted import ScriptedEngine
from sleuth.gateway.calls import Call, Choice, Message, Reply
from sleuth.gateway.rollout import Policy, Rollout
from sleuth.model.tokens import Tokens
from sleuth.records import Question, StopReason

FUNCTION = {"type": "function", "function": {"name": "search", "parameters": {"type": "object", "properties": {}}}}
LINES = st.sampled_from(
    [
        "Oslo<|im_end|>",
        "Oslo",
        " spaced  out ",
        'Look.<tool_call>\n{"name": "search", "arguments": {}}\n</tool_call><|im_end|>',
        "<tool_call>broken",
        "<think> Hm. </think> Yes<|im_end|>",
    ]
)
OPERATIONS = st.tuples(
    st.integers(0, 5),  # which of the known conversations is continued
    st.sampled_from(["continue", "edit", "cut", "strip", "new"]),
    st.sampled_from(["", "writer"]),
    st.booleans(),  # with a function
    st.integers(1, 3),  # choices
)


def follow(conversation: tuple[Message, ...], choice: Choice) -> tuple[Message, ...]:
    reply = Message("assistant", choice.content, choice.tool_calls)
    after = [Message("tool", "A result.", tool_call_id=call.id) for call in choice.tool_calls]
    return (*conversation, reply, *(after or [Message("user", "And then?")]))


def change(conversation: tuple[Message, ...], how: str) -> tuple[Message, ...]:
    *before, last = conversation
    match how:
        case "edit":
            return (*before, Message(last.role, f"{last.content} Edited.", tool_call_id=last.tool_call_id))
        case "cut":
            return (Message("user", "A summary."), *conversation[-1:]) if last.role == "user" else conversation
        case "strip":
            stripped = [Message(each.role, each.content.strip(), each.tool_calls, each.tool_call_id) for each in before]
            return (*stripped, last)
        case "new":
            return (Message("system", "Another agent."), Message("user", "Hello."))
    return conversation


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(OPERATIONS, min_size=1, max_size=8), st.lists(LINES, min_size=24, max_size=24))
def test_every_sampled_token_is_recorded_once(
    speaker: Callable[..., Tokens], operations: list[tuple[int, str, str, bool, int]], lines: list[str]
) -> None:
    tokens = speaker("hermes")
    engine = ScriptedEngine.playing(*[tokens.encode_trusted(line) for line in lines])
    policy = Policy.of(engine, tokens, AgentConfig(run="import:a.b"))
    rollout = Rollout(policy, Task(Question("q", "?", (), "test")))
    known: list[tuple[Message, ...]] = [(Message("user", "Where is it?"),)]
    replies: list[Reply] = []
    for place, how, role, called, count in operations:
        conversation = change(known[place % len(known)], how)
        call = Call(conversation, role=role, functions=(FUNCTION,) if called else (), n=count)
        replies.append(asyncio.run(rollout.complete(call)))
        known += [follow(conversation, choice) for choice in replies[-1].choices]
    trajectory = rollout.finish(StopReason.ANSWERED)
    choices = [(reply.prompt_ids, choice) for reply in replies for choice in reply.choices]
    assert sum(trajectory.sampled) == sum(len(choice.ids) for _, choice in choices) == len(trajectory.logprobs)
    for turn, (prompt, choice) in zip(trajectory.turns, choices, strict=True):
        assert turn.segment is not None
        segment = trajectory.segments[turn.segment]
        start, end = len(prompt), len(prompt) + len(choice.ids)
        assert segment.ids[:end] == prompt + choice.ids
        assert all(segment.sampled[start:end])
    for segment in trajectory.segments:
        assert not any(segment.sampled[: segment.shared])
        assert sum(segment.sampled) == sum(count for _, count in segment.calls)
        if segment.parent is not None:
            assert segment.ids[: segment.shared] == trajectory.segments[segment.parent].ids[: segment.shared]
