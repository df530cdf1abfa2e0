"""Methods of one turn: what the model is asked, what it may say, and what is remembered of it."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sleuth.agent import methods
from sleuth.agent.episode import Agent
from sleuth.agent.protocol import UserProtocol, make_protocol
from sleuth.agent.tags import Tags
from sleuth.agent.task import Task
from sleuth.agent.tools import Toolbox
from sleuth.config.agent import AgentConfig
from sleuth.engines.scripted import ScriptedEngine
from sleuth.errors import ConfigError, ReplayMiss, SearchUnavailable
from sleuth.model.tokens import Tokens
from sleuth.records import (
    Answer,
    Hit,
    Malformed,
    Outcome,
    Question,
    Segment,
    StopReason,
    ToolCall,
    Trajectory,
    Turn,
    run_lengths,
)
from sleuth.retrieval.retriever import Retriever
from sleuth.reward.rubric import measure

MakesAgent = Callable[..., Agent]

QUESTION = Question("q1", "Where was Ada Lovelace born", ("London",), "test")
SHOT = Question("q2", "What is the capital of Norway", ("Oslo", "Christiania"), "test")
SAID = "<answer> London </answer>"


class Closed:
    """A search engine that answers nobody."""

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchUnavailable]:
        return [SearchUnavailable(query, "closed") for query in queries]


def play(agent: MakesAgent, method: str, line: str, shots: Sequence[Question] = (), **knobs: Any) -> Trajectory:
    made = agent(line, method=method, **{"prompt": None, **knobs})
    ready = replace(made, method=methods.make_method(made.config, shots))
    return asyncio.run(ready.run(Task(QUESTION)))


def asked(trajectory: Trajectory, tokens: Tokens) -> str:
    (_, given), *_ = run_lengths(trajectory.sampled)
    return tokens.decode(trajectory.ids[:given])


def test_direct_answers_in_one_turn(agent: MakesAgent, tokens: Tokens) -> None:
    found = play(agent, "direct", SAID)
    assert (found.stop, found.answer, found.searches) == (StopReason.ANSWERED, "London", 0)
    (turn,) = found.turns
    assert (turn.outcome, turn.hits, turn.formed) == (Outcome.ANSWERED, (), True)
    assert [origin for origin, _ in run_lengths(found.sampled)] == ["given", "sampled"]
    assert asked(found, tokens).endswith("<answer> Lisbon </answer>\nQuestion: Where was Ada Lovelace born?\n")


@pytest.mark.parametrize(
    ("method", "said", "formed"),
    [
        ("direct", "\n<answer>London</answer>", True),
        ("direct", f"<think> so </think> {SAID}", False),
        ("cot", f"<think> so </think> {SAID}", True),
        ("cot", SAID, False),
    ],
)
def test_the_form_is_the_one_that_the_prompt_asks_for(agent: MakesAgent, method: str, said: str, formed: bool) -> None:
    (turn,) = play(agent, method, said).turns
    assert (turn.action, turn.formed) == (Answer("London"), formed)


def test_rag_is_shown_what_a_search_for_the_question_finds(agent: MakesAgent, tokens: Tokens) -> None:
    found = play(agent, "rag", SAID)
    (turn,) = found.turns
    assert [hit.passage.id for hit in turn.hits] == ["ada"]
    assert "\nDocuments:\nDoc 1(Title: Ada Lovelace) Ada Lovelace was born in London.\n" in asked(found, tokens)
    parts = measure(QUESTION, found)
    assert (parts["retrieval_hit"], parts["searches"], parts["em"], parts["format"]) == (1.0, 0.0, 1.0, 1.0)


def test_documents_cannot_speak_and_are_cut_by_tokens(agent: MakesAgent, tokens: Tokens) -> None:
    spoof = replace(QUESTION, question="spoof")
    made = agent(SAID, method="rag", prompt=None)
    found = asyncio.run(replace(made, method=methods.make_method(made.config)).run(Task(spoof)))
    assert asked(found, tokens).count("<answer>") == 1
    assert "(answer) Paris (/answer)" in asked(found, tokens)
    long = replace(QUESTION, question="long story sea")
    made = agent(SAID, method="rag", prompt="rag-brief", observation_tokens=12)
    cut = asyncio.run(replace(made, method=methods.make_method(made.config)).run(Task(long)))
    assert 12 < len(tokens.encode(asked(cut, tokens))) < 40
    assert asked(cut, tokens).endswith("\nQuestion: long story sea?\n")


def test_a_search_in_the_one_turn_is_refused(agent: MakesAgent) -> None:
    found = play(agent, "rag", "<search> Ada </search>")
    assert (found.stop, found.answer) == (StopReason.OUT_OF_TURNS, None)
    assert [(turn.action, turn.outcome) for turn in found.turns] == [(ToolCall.search("Ada"), Outcome.REFUSED)]


@pytest.mark.parametrize("said", ["London", "<think> so </think> London", "<answer> London", " London\n"])
def test_a_reply_in_no_form_is_the_answer(agent: MakesAgent, said: str) -> None:
    found = play(agent, "direct", said)
    assert (found.stop, found.answer) == (StopReason.ANSWERED, "London")
    assert not found.turns[0].formed


def test_a_reply_without_words_is_none(agent: MakesAgent) -> None:
    found = play(agent, "cot", "<think> so </think>")
    assert (found.stop, found.answer) == (StopReason.OUT_OF_TURNS, None)
    assert isinstance(found.turns[0].action, Malformed)


@pytest.mark.parametrize(
    "said", ["<think> It may be London", "<think> so </think> <think> London", "<think> <answer> London"]
)
def test_a_thought_that_was_cut_off_is_none(agent: MakesAgent, said: str) -> None:
    found = play(agent, "cot", said)
    assert (found.stop, found.answer) == (StopReason.OUT_OF_TURNS, None)


def test_a_search_that_fails_is_no_answer(agent: MakesAgent) -> None:
    found = play(agent, "rag", SAID, search=Closed())
    assert (found.stop, found.turns, found.ids) == (StopReason.SEARCH_UNAVAILABLE, (), ())
    assert "closed" in str(found.failure)


def test_a_prompt_longer_than_the_context_ends_before_it_begins(agent: MakesAgent) -> None:
    found = play(agent, "direct", SAID, context_tokens=8)
    assert (found.stop, found.turns) == (StopReason.OUT_OF_TOKENS, ())


@pytest.mark.parametrize(("limits", "seen"), [({}, True), ({"observation_tokens": 40}, False)])
def test_documents_of_rag_count_as_far_as_they_are_shown(
    agent: MakesAgent, tokens: Tokens, limits: dict[str, int], seen: bool
) -> None:
    question = replace(QUESTION, question="the ship's log")
    made = agent(SAID, method="rag", prompt="rag-brief", **limits)
    found = asyncio.run(replace(made, method=methods.make_method(made.config)).run(Task(question)))
    (turn,) = found.turns
    assert [hit.passage.id for hit in turn.hits] == ["log"]
    assert (measure(question, found)["retrieval_hit"] == 1.0) == seen
    assert (turn.shown is None) == seen
    assert asked(found, tokens).startswith(f"{turn.shown}\nQuestion: " if turn.shown else "Doc 1(Title: Log) ")


def test_what_rag_found_is_kept_and_does_not_count_where_the_prompt_left_no_room(agent: MakesAgent) -> None:
    found = play(agent, "rag", SAID, context_tokens=8)
    assert (found.stop, found.answer, sum(found.sampled)) == (StopReason.OUT_OF_TOKENS, None, 0)
    parts = measure(QUESTION, found)
    assert (parts["retrieval_hit"], parts["format"], parts["searches"], parts["em"]) == (0.0, 0.0, 0.0, 0.0)
    assert [(turn.hits[0].passage.id, turn.shown) for turn in found.turns] == [("ada", "")]


def test_documents_make_room_for_the_answer(agent: MakesAgent, tokens: Tokens) -> None:
    long = replace(QUESTION, question="long story sea")
    made = agent(SAID, method="rag", prompt="rag-brief", context_tokens=100, turn_tokens=40)
    found = asyncio.run(replace(made, method=methods.make_method(made.config)).run(Task(long)))
    assert (found.stop, found.answer) == (StopReason.ANSWERED, "London")
    assert 40 < len(tokens.encode(asked(found, tokens))) <= 60
    assert asked(found, tokens).startswith("Doc 1(Title: Long) A very long story")
    assert asked(found, tokens).endswith("\nQuestion: long story sea?\n")


@pytest.mark.parametrize(
    ("method", "form"),
    [("direct", "<answer> Oslo </answer>"), ("cot", "<think> The answer is Oslo. </think> <answer> Oslo </answer>")],
)
def test_examples_answer_in_the_form_of_the_prompt(agent: MakesAgent, tokens: Tokens, method: str, form: str) -> None:
    found = play(agent, method, SAID, [SHOT])
    shown = f"Question: What is the capital of Norway?\n{form}\n\nQuestion: Where was Ada Lovelace born?\n"
    assert asked(found, tokens).endswith(shown)


def test_a_prompt_of_the_row_tells_how_to_search_and_is_left_out(agent: MakesAgent, tokens: Tokens) -> None:
    own = replace(QUESTION, prompt=({"role": "user", "content": "Search for it: where?"},))
    made = agent(SAID, method="direct", prompt=None)
    found = asyncio.run(replace(made, method=methods.make_method(made.config)).run(Task(own)))
    assert "Search for it" not in asked(found, tokens)


@pytest.mark.parametrize(
    ("knobs", "shots", "sentence"),
    [
        ({"method": "rag", "prompt": "direct"}, [], "has no {documents}"),
        ({"method": "rag", "prompt": "brief"}, [], "--set agent.prompt=rag"),
        ({"method": "cot", "prompt": "rag"}, [], "the method cot retrieves nothing"),
        ({"method": "direct", "prompt": "brief"}, [SHOT], "has no {examples}"),
        ({"method": "search"}, [SHOT], "--shots has no effect with the method search"),
        ({"method": "rga"}, [], "agent.method = 'rga' is unknown"),
    ],
)
def test_what_does_not_fit_is_refused(knobs: dict[str, Any], shots: list[Question], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        methods.make_method(AgentConfig.model_validate(knobs), shots)
    assert sentence in str(refused.value)


METHODS = """
from dataclasses import replace
from sleuth.agent.episode import multi_turn
from sleuth.errors import EngineFailure, ReplayMiss, SearchUnavailable

async def same(agent, task, session, hear):
    return await multi_turn(agent, task, agent.conversation(session, hear))
async def fails(agent, task, session, hear):
    return {}["nothing"]
async def none(agent, task, session, hear): pass
async def another(agent, task, session, hear):
    return replace(await multi_turn(agent, task, agent.conversation(session, hear)), group=7)
async def cut(agent, task, session, hear):
    found = await multi_turn(agent, task, agent.conversation(session, hear))
    return replace(found, segments=(replace(found.segments[0], logprobs=found.logprobs[1:]),))
async def infinite(agent, task, session, hear):
    found = await multi_turn(agent, task, agent.conversation(session, hear))
    return replace(found, segments=(replace(found.segments[0], logprobs=(float("-inf"), *found.logprobs[1:])),))
async def odd(agent, task, session, hear):
    return replace(await multi_turn(agent, task, agent.conversation(session, hear)), stop="done")
async def broken(agent, task, session, hear): raise EngineFailure("out of order")
async def unanswered(agent, task, session, hear): raise SearchUnavailable("oslo", "refused")
async def unrecorded(agent, task, session, hear): raise ReplayMiss("searches.jsonl", "oslo", 3)
def plain(agent, task, session, hear): pass
async def short(agent, task): pass
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "methods_of_a_user.py").write_text(METHODS)
    monkeypatch.syspath_prepend(tmp_path)
    return "import:methods_of_a_user"


def test_a_user_defined_method(agent: MakesAgent, mine: str) -> None:
    found = asyncio.run(replace(agent(SAID), method=methods.find_method(f"{mine}.same")).run(Task(QUESTION)))
    assert found.answer == "London"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("fails", "methods_of_a_user.fails' raised KeyError: 'nothing' ("),
        ("none", "methods_of_a_user.none' returned NoneType; expected a Trajectory"),
        ("another", "returned a Trajectory of another task (question, group, sample, step)"),
        ("cut", "versions; expected one origin per id"),
        ("infinite", "returned a Trajectory with a logprob in segment 0 that is not finite"),
        ("odd", "returned a Trajectory with stop = 'done'"),
    ],
)
def test_a_method_that_fails_makes_its_trajectory_unusable(agent: MakesAgent, mine: str, name: str, says: str) -> None:
    found = asyncio.run(replace(agent(SAID), method=methods.find_method(f"{mine}.{name}")).run(Task(QUESTION, group=3)))
    assert (found.stop, found.group) == (StopReason.FUNCTION_FAILED, 3)
    assert not found.stop.usable
    assert says in str(found.failure)


@pytest.mark.parametrize(
    ("name", "stop", "says"),
    [
        ("broken", StopReason.ENGINE_FAILED, "out of order"),
        ("unanswered", StopReason.SEARCH_UNAVAILABLE, "refused"),
    ],
)
def test_an_engine_or_a_search_that_fails_in_a_users_method_is_not_the_methods_fault(
    agent: MakesAgent, mine: str, name: str, stop: StopReason, says: str
) -> None:
    found = asyncio.run(replace(agent(SAID), method=methods.find_method(f"{mine}.{name}")).run(Task(QUESTION)))
    assert found.stop is stop
    assert says in str(found.failure)


def test_a_recording_without_a_search_of_a_users_method_ends_the_run(agent: MakesAgent, mine: str) -> None:
    with pytest.raises(ReplayMiss):
        asyncio.run(replace(agent(SAID), method=methods.find_method(f"{mine}.unrecorded")).run(Task(QUESTION)))


@pytest.mark.parametrize(("name", "says"), [("plain", "is not async"), ("short", "cannot be called with 4 arguments")])
def test_a_method_that_cannot_be_called_is_refused_before_the_run(mine: str, name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=rf"{says}.*expected async def \(agent, task, session, on_text\)"):
        methods.make_method(AgentConfig(method=f"{mine}.{name}"))


def test_a_protocol_that_fails_makes_the_trajectory_unusable(agent: MakesAgent) -> None:
    class Own(Tags):
        def parse(self, text: str) -> Any:
            raise RecursionError(text)

    found = asyncio.run(replace(agent(SAID), protocol=UserProtocol("import:mine.own", Own())).run(Task(QUESTION)))
    assert found.stop is StopReason.FUNCTION_FAILED
    assert "'import:mine.own' raised RecursionError: <answer> London </answer> (" in str(found.failure)


def test_examples_are_drawn_by_seed_and_fewer_are_among_more() -> None:
    pool = [replace(SHOT, id=str(number)) for number in range(20)]
    few, more, others = methods.draw_shots(pool, 3, 0), methods.draw_shots(pool, 6, 0), methods.draw_shots(pool, 3, 1)
    assert few == more[:3]
    assert few != others
    with pytest.raises(ConfigError, match=r"21\b.*\b20 questions"):
        methods.draw_shots(pool, 21, 0)


@pytest.mark.parametrize("kind", ["hermes", "llama"])
def test_a_model_of_function_calls_is_told_of_none(
    speaker: Callable[..., Tokens], retriever: Retriever, kind: str
) -> None:
    tokens = speaker(kind)
    config = AgentConfig(method="rag", protocol="tools")
    engine = ScriptedEngine.playing(tokens.encode(SAID))
    tool = Toolbox(retriever, 2)
    agent = Agent(engine, tokens, make_protocol("tools", tokens), tool, config, methods.make_method(config))
    found = asyncio.run(agent.run(Task(QUESTION)))
    assert (found.answer, found.turns[0].formed) == ("London", True)
    said = tokens.tokenizer.decode(list(found.ids))
    assert "Ada Lovelace was born in London." in said
    assert "NAME" not in said


TAGGED = "Answer it. Search by <search> query </search>, answer by <answer> it </answer>. Question: where?"
CALLED = "Answer it. Search by <tool_call> query </tool_call>. Question: where?"


@pytest.mark.parametrize(
    ("protocol", "own", "method", "sentence"),
    [
        ("tags", TAGGED, "search", None),
        ("tools", CALLED, "search", None),
        ("tools", "Just answer: where?", "search", None),
        ("tools", TAGGED, "rag", None),  # which has a prompt of its own
        ("tools", TAGGED, "search", "'q1' searches with <search>, .*agent.protocol=tags"),
        (
            "tags",
            CALLED,
            "search",
            "'q1' searches with <tool_call>, .*agent.protocol=tool",
        ),
    ],
)
def test_a_prompt_of_the_row_in_another_grammar_is_refused(
    speaker: Callable[..., Tokens], retriever: Retriever, protocol: str, own: str, method: str, sentence: str | None
) -> None:
    tokens = speaker("hermes")
    config = AgentConfig(method=method, protocol=protocol)
    engine, tool = ScriptedEngine.playing(), Toolbox(retriever, 2)
    made = Agent(engine, tokens, make_protocol(protocol, tokens), tool, config, methods.make_method(config))
    rows = [SHOT, replace(QUESTION, prompt=({"role": "user", "content": own},))]
    if sentence is None:
        methods.require_prompts(made, rows)
    else:
        with pytest.raises(ConfigError, match=sentence):
            methods.require_prompts(made, rows)


@pytest.mark.parametrize("method", ["search", "direct", "rag"])
def test_prompts_that_leave_no_room_are_counted_and_refused_where_all_do(method: str, agent: MakesAgent) -> None:
    def overlong(context: int, *questions: Question) -> str | None:
        made = agent(SAID, method=method, prompt=None, context_tokens=context)
        return methods.describe_overlong(replace(made, method=methods.make_method(made.config)), questions, "questions")

    endless = replace(QUESTION, id="q3", question="Who " * 4000)
    assert overlong(4000, QUESTION, SHOT) is None
    told = overlong(4000, QUESTION, endless, SHOT)
    assert told is not None
    assert told.startswith("1 of 3 questions have a prompt of agent.context_tokens = 4,000 tokens or more (the longest")
    with pytest.raises(ConfigError, match=r"2 of 2 questions have .* raise agent.context_tokens"):
        overlong(8, QUESTION, SHOT)


TURN = Turn("so", Answer("so"), Outcome.ANSWERED, 2)
PARENT = Segment((1, 2, 3), (False, True, True), (-1.0, -1.0), (0, 0), calls=((0, 2),), temperatures=(0.5, 0.5))
CHILD = Segment((1, 2, 4), (False, False, True), (-1.0,), (0,), "writer", parent=0, shared=2)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, None),
        ({"ids": (1, 2, 4, 5)}, "segment 1 of 4 ids with 3 origins"),
        ({"versions": ()}, "segment 1 of 3 ids with 3 origins, 1 of them sampled, 1 logprobs and 0 versions"),
        ({"logprobs": (float("nan"),)}, "a logprob in segment 1 that is not finite"),
        ({"parent": 1}, "segment 1 whose parent is 1"),
        ({"parent": None}, "segment 1 with shared = 2"),
        ({"ids": (1, 9, 4)}, "segment 1 with shared = 2"),
        ({"shared": 3}, "segment 1 with shared = 3"),
        ({"calls": ((0, 2),)}, "segment 1 whose calls are ((0, 2),) for 1 sampled ids"),
        ({"calls": ((1, 1),)}, "for 1 sampled ids and 1 turns"),
        ({"temperatures": (0.5, 0.5)}, "segment 1 with temperatures"),
        ({"temperatures": (0.0,)}, "segment 1 with temperatures (0.0,)"),
    ],
)
def test_every_segment_of_a_method_is_checked(change: dict[str, Any], says: str | None) -> None:
    task = Task(QUESTION)
    found = replace(task.trajectory(StopReason.ANSWERED, [TURN]), segments=(PARENT, replace(CHILD, **change)))
    problem = methods._problem(found, task)
    assert (problem is None) == (says is None)
    assert (says or "") in (problem or "")
