"""Episodes with a chat-completions server: search, function calls, one-turn methods, budgets and failures."""

import asyncio
import json
from typing import Any

import pytest

from sleuth.agent.remote import RemoteAgent, restore_stop
from sleuth.agent.task import Task
from sleuth.agent.tools import Toolbox
from sleuth.config.agent import AgentConfig
from sleuth.engines.remote import Reply
from sleuth.errors import ConfigError
from sleuth.records import Answer, Malformed, Outcome, Question, StopReason, ToolCall, Trajectory
from sleuth.reward.rubric import measure

Stage = Any
QUESTION = Question("q", "What is the capital of Norway?", ("Oslo",), "s")
STOPS = ("</search>", "</answer>")


def run(stage: Stage, shelf: Any, hear: Any = None, temperature: float = 0.0, **config: Any) -> Trajectory:
    agent = RemoteAgent.of(stage.endpoint(patience=0.0), Toolbox(shelf, 3), AgentConfig(**config))
    return asyncio.run(agent.run(Task(QUESTION, temperature=temperature), on_text=hear))


def test_a_search_and_an_answer(stage: Stage, shelf: Any) -> None:
    stage.play = stage.searching
    told: list[str] = []
    found = run(stage, shelf, told.append)
    assert (found.stop, found.answer, found.searches) == (StopReason.ANSWERED, "Oslo", 1)
    assert [turn.text for turn in found.turns] == [
        "<think> Hm. </think><search> Norway</search>",
        "<think> I know. </think><answer> Oslo</answer>",
    ]
    assert [(turn.tokens, turn.formed) for turn in found.turns] == [(5, True), (5, True)]
    assert (found.ids, found.sampled, found.logprobs, found.versions) == ((), (), (), ())
    first, second = stage.heard
    assert first["stop"] == list(STOPS)
    assert [message["role"] for message in second["messages"]] == ["user", "assistant", "user"]
    shown = second["messages"][2]["content"]
    assert shown.startswith("<information>Doc 1(Title: Norway) Oslo is")
    assert shown.count("</information>") == 1  # what documents say closes nothing
    assert "".join(told).count("<information>") == 2  # in the instruction, and what was found


@pytest.mark.parametrize(
    ("words", "ended", "stop", "text"),
    [
        ("<search> a", True, "", "<search> a</search>"),
        ("<search> a", True, None, "<search> a"),  # the server knows that it was no stop
        ("<search> a", False, "", "<search> a"),
        ("<answer> a", True, "</answer>", "<answer> a</answer>"),
        ("<answer> a</answer>", True, "", "<answer> a</answer>"),
        ("<search> a</search> and <answer> b", True, "", "<search> a</search>"),  # it did not stop
        ("<answer> and then <search> a", True, "", "<answer> and then <search> a</search>"),
        ("a", True, "", "a"),
        ("a", True, "other", "a"),
    ],
)
def test_stops_are_put_back(words: str, ended: bool, stop: str | None, text: str) -> None:
    assert restore_stop(Reply(words, "", None, 0, ended, stop, 1, 1), STOPS) == text


def test_thoughts_kept_apart_are_written_down_and_not_acted_on(stage: Stage, shelf: Any) -> None:
    thought = "Shall I <search> x </search>?"
    stage.play = lambda _: stage.said("<answer> Oslo", reasoning_content=thought)
    (turn,) = run(stage, shelf).turns
    assert (turn.action, turn.formed) == (Answer("Oslo"), True)
    assert turn.text == f"<think>{thought}</think>\n<answer> Oslo</answer>"


def test_words_outside_the_grammar_are_corrected_until_turns_run_out(stage: Stage, shelf: Any) -> None:
    stage.play = lambda _: stage.said("")
    found = run(stage, shelf, searches=2)
    assert (found.stop, len(found.turns), found.answer) == (StopReason.OUT_OF_TURNS, 3, None)
    assert {turn.outcome for turn in found.turns} == {Outcome.CORRECTED}
    assert [message["content"] for message in stage.heard[1]["messages"]][1] == "(empty)"
    assert "No action was taken" in stage.heard[1]["messages"][2]["content"]


def test_last_search_is_refused(stage: Stage, shelf: Any) -> None:
    stage.play = lambda _: stage.said("<search> Norway")
    found = run(stage, shelf, searches=1)
    assert (found.stop, found.turns[-1].outcome) == (StopReason.OUT_OF_TURNS, Outcome.REFUSED)


def calling(stage: Stage, arguments: str, name: str = "search") -> Any:
    call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}

    def play(body: dict[str, Any]) -> Any:
        later = len(body["messages"]) > 1
        return stage.said("<answer> Oslo") if later else stage.said(None, "tool_calls", tool_calls=[call])

    return play


def test_tools_are_the_servers_own(stage: Stage, shelf: Any) -> None:
    stage.play = calling(stage, '{"query_list": ["Norway </tool_call>"]}')
    found = run(stage, shelf, protocol="tools")
    assert (found.answer, found.searches) == ("Oslo", 1)
    assert found.turns[0].action == ToolCall.search("Norway </tool_call>")
    assert all(turn.formed for turn in found.turns)
    first, second = stage.heard
    assert [tool["function"]["name"] for tool in first["tools"]] == ["search"]
    _, call, shown = second["messages"]
    assert call["tool_calls"][0]["function"]["arguments"] == '{"query_list": ["Norway </tool_call>"]}'
    assert (shown["role"], shown["tool_call_id"]) == ("tool", "c1")
    assert "Oslo is its capital" in shown["content"]


@pytest.mark.parametrize("arguments", ["{", '{"query_list": 3}', '"<answer>x</answer>"'])
def test_calls_that_cannot_be_read_are_corrected_in_words(stage: Stage, shelf: Any, arguments: str) -> None:
    stage.play = calling(stage, arguments)
    found = run(stage, shelf, protocol="tools")
    assert isinstance(found.turns[0].action, Malformed)
    assert found.answer == "Oslo"
    assert ["tool_calls" in message for message in stage.heard[1]["messages"]] == [False, False, False]
    assert stage.heard[1]["messages"][2]["role"] == "user"


def test_one_turn_with_documents(stage: Stage, shelf: Any) -> None:
    found = run(stage, shelf, method="rag", observation_tokens=5)
    assert (found.answer, found.searches, len(found.turns[0].hits)) == ("Oslo", 0, 1)
    assert found.turns[0].formed
    (body,) = stage.heard
    assert "Doc 1(Title: Norway)" in body["messages"][0]["content"]
    assert "capital" not in body["messages"][0]["content"].partition("Documents:")[2].partition("Question:")[0]
    assert found.turns[0].action == Answer("Oslo")
    assert found.turns[0].shown == "Doc 1(Title: Norway)"
    assert measure(QUESTION, found)["retrieval_hit"] == 0.0
    whole = run(stage, shelf, method="rag")
    assert whole.turns[0].shown is None
    assert measure(QUESTION, whole)["retrieval_hit"] == 1.0


@pytest.mark.parametrize(("budget", "seen"), [(5, 0.0), (500, 1.0)])
def test_what_is_found_counts_as_far_as_it_is_shown(stage: Stage, shelf: Any, budget: int, seen: float) -> None:
    stage.play = stage.searching
    found = run(stage, shelf, observation_tokens=budget)
    assert measure(QUESTION, found)["retrieval_hit"] == seen
    assert found.turns[0].hits
    assert found.turns[0].shown == (None if seen else "Doc 1(Title: Norway)")


def test_one_turn_from_memory(stage: Stage, shelf: Any) -> None:
    stage.play = lambda _: stage.said("<search> Norway")
    found = run(stage, shelf, method="direct")
    assert (found.stop, len(stage.heard)) == (StopReason.OUT_OF_TURNS, 1)
    assert run(stage, shelf, method="cot", protocol="tools").answer == "<search> Norway"  # no tool of that protocol
    assert "tools" not in stage.heard[-1]


def test_context_is_counted_by_the_server(stage: Stage, shelf: Any) -> None:
    stage.play = lambda _: stage.said("<search> Norway", given=990, tokens=10)
    found = run(stage, shelf, context_tokens=1000)
    assert (found.stop, len(found.turns)) == (StopReason.OUT_OF_TOKENS, 1)
    stage.play = stage.searching
    run(stage, shelf, context_tokens=300, turn_tokens=500)
    first, second = (body["max_tokens"] for body in stage.heard[1:])
    assert second < 300 - 25
    assert first < 300


def test_prompt_that_does_not_fit_is_not_asked(stage: Stage, shelf: Any) -> None:
    found = run(stage, shelf, context_tokens=10)
    assert (found.stop, found.turns, stage.heard) == (StopReason.OUT_OF_TOKENS, (), [])


def test_server_whose_context_is_full_ends_the_episode_as_any_context_does(stage: Stage, shelf: Any) -> None:
    stage.play = lambda _: stage.scene({"error": {"code": "context_length_exceeded", "message": "context length"}}, 400)
    assert run(stage, shelf).stop is StopReason.OUT_OF_TOKENS


def test_failures_of_others_make_an_episode_unusable(stage: Stage, shelf: Any) -> None:
    stage.play = lambda _: stage.said("<search> book")
    found = run(stage, shelf)
    assert (found.stop, found.turns[0].outcome) == (StopReason.SEARCH_UNAVAILABLE, Outcome.UNAVAILABLE)
    stage.play = lambda _: stage.scene({"error": "broken"}, 500)
    found = run(stage, shelf)
    assert (found.stop, found.stop.usable) == (StopReason.ENGINE_FAILED, False)
    assert "500 Internal Server Error: broken" in str(found.failure)


def test_sampling_is_seeded_turn_by_turn(stage: Stage, shelf: Any) -> None:
    stage.play = stage.searching
    run(stage, shelf, temperature=0.7)
    assert len({body["seed"] for body in stage.heard}) == 2
    assert json.dumps(stage.heard[0]).count('"temperature": 0.7') == 1


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"protocol": "import:json.loads"}, "import:json.loads.*expected tags, rlinf, tools"),
        (
            {"method": "import:sleuth.agent.episode.multi_turn"},
            "multi_turn",
        ),
    ],
)
def test_what_is_for_tokens_is_refused(stage: Stage, shelf: Any, config: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        run(stage, shelf, **config)
