"""Agents in Python: asking, streaming, evaluating, and what is printed."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import sleuth
from sleuth.api.agent import AgentAnswer, AgentEvent, ToolOutput, read_questions
from sleuth.errors import ConfigError, InputError
from sleuth.records import Answer, Malformed, Outcome, Question, Segment, StopReason, ToolCall, Trajectory, Turn
from sleuth.serve.agent.live_episode import Thought

SETTINGS = {
    "agent": {"prompt": "brief", "searches": 2, "turn_tokens": 64, "observation_tokens": 96, "context_tokens": 512},
    "retrieval.k": 1,
}
QUESTION = "Who founded the Amber Mirror?"
SEED = 1  # with this seed the untrained policy searches once before it answers


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> sleuth.Index:
    documents = [{"id": "mirror", "title": "Amber Mirror", "text": "The Amber Mirror was founded by Kellan Whitlock."}]
    return sleuth.Index.build(documents, tmp_path_factory.mktemp("documents") / "index")


@pytest.fixture(scope="module")
def agent(index: sleuth.Index) -> Iterator[sleuth.Agent]:
    with sleuth.Agent.load("quickstart", index, settings=SETTINGS) as loaded:
        yield loaded


def test_same_seed_same_answer_however_it_is_asked(agent: sleuth.Agent) -> None:
    async def ask() -> list[AgentAnswer]:
        together = [agent.ask_async(QUESTION, temperature=1.0, seed=seed) for seed in (SEED, SEED + 1)]
        events = [event async for event in agent.stream(QUESTION, temperature=1.0, seed=SEED)]
        assert isinstance(events[-1], AgentAnswer)
        return [*await asyncio.gather(*together), events[-1]]

    asked = agent.ask(QUESTION, temperature=1.0, seed=SEED)
    first, second, streamed = asyncio.run(ask())
    assert asked.trajectory.ids == first.trajectory.ids == streamed.trajectory.ids != second.trajectory.ids


def test_a_blocking_call_works_where_an_event_loop_is_running(agent: sleuth.Agent) -> None:
    async def cell() -> str:  # like a cell of a notebook
        return str(agent.ask(QUESTION))

    assert asyncio.run(cell()) == str(agent.ask(QUESTION))


def test_events_add_up_to_the_trajectory(agent: sleuth.Agent) -> None:
    events: list[AgentEvent] = list(agent.stream(QUESTION, temperature=1.0, seed=SEED))
    answer = events[-1]
    assert isinstance(answer, AgentAnswer)
    assert answer.queries
    calls = [event for event in events if isinstance(event, ToolCall)]
    assert [query for call in calls for query in call.lookups] == list(answer.queries)
    outputs = [event for event in events if isinstance(event, ToolOutput)]
    assert [output.hits for output in outputs] == [turn.hits for turn in answer.turns if turn.outcome is Outcome.FOUND]
    thoughts = "".join(event.text for event in events if isinstance(event, Thought))
    spoken = "".join(turn.text for turn in answer.turns)
    assert thoughts
    assert all(piece.strip() in spoken for piece in thoughts.split("\n\n"))


def test_a_stream_that_is_left_early_frees_its_slot(agent: sleuth.Agent) -> None:
    for _ in agent.stream(QUESTION, temperature=1.0, seed=SEED):
        break
    assert agent.ask(QUESTION, temperature=1.0, seed=SEED).stop is StopReason.ANSWERED  # lockstep would wait for it


def test_the_transcript_is_streamed_as_text(agent: sleuth.Agent) -> None:
    pieces: list[str] = []
    answer = agent.ask(QUESTION, on_text=pieces.append)
    assert QUESTION in "".join(pieces)
    assert answer.turns[-1].text in "".join(pieces)


def test_questions_are_scored_with_the_metric_or_the_function(agent: sleuth.Agent) -> None:
    rows = [{"question": QUESTION, "golden_answers": [agent.ask(QUESTION).text or ""]}]
    seen: list[str | None] = []
    evaluation = agent.evaluate(rows, on_result=lambda result: seen.append(result.answer))
    assert isinstance(evaluation, sleuth.Evaluation)
    assert (evaluation.em.value, evaluation.em.count) == (1.0, 1)
    assert seen == [evaluation.results[0].answer]

    def brief(question: Question, trajectory: Trajectory) -> sleuth.Reward:
        return sleuth.Reward(0.5, {"words": float(len((trajectory.answer or "").split()))})

    (result,) = agent.evaluate(rows, reward=brief).results
    assert result.values is not None
    assert result.values["words"] > 0


@pytest.mark.parametrize(
    ("problem", "says"),
    [
        ({"model": "wise"}, "model has no effect"),
        ({"settings": {"train.steps": 3}}, "train.steps"),
        ({"settings": {"agent.serches": 3}}, "agent.serches"),
        ({"before": True}, "before"),
    ],
)
def test_options_without_effect_are_rejected(index: sleuth.Index, problem: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        sleuth.Agent.load("quickstart", index, **problem)  # type: ignore[arg-type]


def test_a_folder_that_is_no_model_is_rejected(tmp_path: Path, index: sleuth.Index) -> None:
    with pytest.raises(InputError, match=r"manifest\.json"):
        sleuth.Agent.load(tmp_path, index)


def test_an_empty_question_is_rejected(agent: sleuth.Agent) -> None:
    with pytest.raises(InputError, match="question is empty"):
        agent.ask("  ")


def test_questions_are_rows_records_or_a_file(asked: Path) -> None:
    question = Question("q", "Where?", ("there",), "mine")
    first, second = read_questions([question, {"question": "Who?", "answer": "Ada"}])
    assert (first, second.golden_answers) == (question, ("Ada",))
    assert len(read_questions(asked)) == 6
    with pytest.raises(InputError, match="question 0"):
        read_questions([{"question": "Who?"}])
    with pytest.raises(InputError, match="no questions"):
        read_questions([])


def trajectory(stop: StopReason, *turns: Turn) -> Trajectory:
    return Trajectory(Question("q", "Who?", (), "asked"), 0, 0, 0, (Segment((1,), (False,), (), ()),), turns, stop)


SEARCHED = Turn("", ToolCall.search("Ada"), Outcome.FOUND, 3)
LINES = {
    "Answer: Ada (2 searches)": (StopReason.ANSWERED, SEARCHED, SEARCHED, Turn("", Answer("Ada"), Outcome.ANSWERED, 3)),
    "No answer: the search engine failed (1 search)": (
        StopReason.SEARCH_UNAVAILABLE,
        SEARCHED,
        Turn("", ToolCall.search("Ada"), Outcome.UNAVAILABLE, 3),
    ),
    "No answer: out of turns (1 search)": (StopReason.OUT_OF_TURNS, SEARCHED),
    "No answer: out of tokens (0 searches)": (
        StopReason.OUT_OF_TOKENS,
        Turn("", Malformed("no"), Outcome.CORRECTED, 3),
    ),
    "No answer: engine failed (0 searches)": (StopReason.ENGINE_FAILED,),
    "No answer: the prompt exceeds agent.context_tokens; ask a shorter question": (StopReason.OUT_OF_TOKENS,),
}


@pytest.mark.parametrize(("line", "ended"), list(LINES.items()), ids=LINES)
def test_a_printed_answer_has_the_text_or_the_reason(line: str, ended: tuple[StopReason, *tuple[Turn, ...]]) -> None:
    stop, *turns = ended
    assert str(AgentAnswer(trajectory(stop, *turns))) == line


def test_a_failed_function_is_named_in_the_printed_answer() -> None:
    lost = replace(
        trajectory(StopReason.FUNCTION_FAILED), failure="'import:mine.method' raised KeyError: 'x' (mine.py:3)"
    )
    assert str(AgentAnswer(lost)) == "No answer: 'import:mine.method' raised KeyError: 'x' (mine.py:3)"
