"""A trajectory as a conversation."""

from collections.abc import Callable
from typing import Any

import pytest

from sleuth.page.transcript import transcript

Read = Callable[[str], tuple[list[tuple[str, dict[str, str | None]]], str]]
HOSTILE = "</div></article><script>alert(1)</script><img src=x onerror=alert(2)>"


def test_order(read: Read, row: dict[str, Any]) -> None:
    _, text = read(transcript(row))
    said = [
        "Where was the founder of Velcor born?",
        "right",
        "thoughtI need the founder.",
        "searchVelcor founder",
        "Velcor score 7.25 gold passage",
        "Velcor was founded by Ada Rim.",
        "99 score 3.5 ",
        "no valid actionhmm hmm",
        "neither a search nor an answer was closed",
        "thoughtAda Rim was born in Amrund.",
        "answerAmrund",
        "Right answers: Amrund, Old Amrund",
        "reward 1em 1f1 1searches 1",
    ]
    places = [text.index(each) for each in said]
    assert places == sorted(places)
    assert text.count("gold passage") == 1


def test_step_and_sample_are_shown_in_training_only(read: Read, row: dict[str, Any]) -> None:
    assert "world, step 40, sample 1" in read(transcript(row))[1]
    assert "step" not in read(transcript(row | {"step": 0}))[1]


def test_sampled_text(read: Read, row: dict[str, Any]) -> None:
    assert (
        "as sampled, 21 tokens<think>I need the founder.</think><search> Velcor founder </search>"
        in read(transcript(row))[1]
    )


def test_a_wrong_answer(read: Read, row: dict[str, Any]) -> None:
    row["score"] = {"total": 0.2, "parts": {"em": 0.0}}
    text = read(transcript(row))[1]
    assert "wrong" in text
    assert "right" not in text


@pytest.mark.parametrize("stop", ["search_unavailable", "engine_failed", "function_failed"])
def test_an_unusable_trajectory_is_neither_right_nor_wrong(read: Read, row: dict[str, Any], stop: str) -> None:
    row |= {"stop": stop, "score": None}
    row["turns"][0] |= {"outcome": "unavailable", "hits": []}
    text = read(transcript(row))[1]
    assert "unusable: " in text
    assert "wrong" not in text
    assert "gave no answer." in text


def test_a_refused_search_and_an_empty_result(read: Read, row: dict[str, Any]) -> None:
    row["turns"][0]["hits"] = []
    row["turns"][2] = {"action": "search", "query": "more", "hits": [], "outcome": "refused", "tokens": 3, "text": ""}
    text = read(transcript(row | {"stop": "out_of_turns"}))[1]
    assert "Nothing was found." in text
    assert "Refused: no calls were left." in text
    assert "stopped: no turns left" in text


def test_an_empty_answer_is_shown_as_empty(read: Read, row: dict[str, Any]) -> None:
    row["turns"][2] |= {"answer": "", "text": "<answer></answer>"}
    assert "answer(empty)" in read(transcript(row))[1]


def test_several_queries_and_pages(read: Read, row: dict[str, Any]) -> None:
    said = '<think>Two.</think><tool_call>{"name": "search"}</tool_call>'
    row["turns"][0] |= {"queries": ["Velcor", "Oslo"], "counts": [0, 0], "text": said, "hits": []}
    del row["turns"][0]["query"]
    row["turns"][1] = {"action": "access", "urls": ["https://a.no"], "hits": [], "outcome": "found", "tokens": 3}
    text = read(transcript(row))[1]
    assert "thoughtTwo.searchVelcorsearchOsloNothing was found." in text
    assert "accesshttps://a.noNothing was found." in text


def test_optional_fields(read: Read) -> None:
    turn = {"action": "search", "query": "x", "hits": [{"id": "1", "score": 1.0}], "outcome": "found", "tokens": 3}
    bare = {"question_id": "q1", "turns": [turn], "stop": "out_of_tokens", "score": {"total": 0.0, "parts": {}}}
    text = read(transcript(bare))[1]
    assert "q1 wrong" in text
    assert "searchx1 score 1 " in text


def test_tags_inside_a_thought_do_not_end_it(read: Read, row: dict[str, Any]) -> None:
    row["turns"][0]["text"] = "<think>I could <search> or not</think><search>q</search>"
    assert "thoughtI could <search> or not" in read(transcript(row))[1]


def test_all_texts_are_escaped(read: Read, row: dict[str, Any]) -> None:
    before, _ = read(transcript(row))
    for turn in row["turns"]:
        turn |= {key: HOSTILE for key in ("text", "query", "answer", "reason") if key in turn}
    row["turns"][0]["hits"][0] |= {"title": HOSTILE, "text": HOSTILE, "id": HOSTILE}
    row |= {"question": HOSTILE, "golden_answers": [HOSTILE], "data_source": HOSTILE, "kind": HOSTILE}
    row["score"]["parts"][HOSTILE] = 1.0
    after, text = read(transcript(row))
    assert {tag for tag, _ in after} <= {tag for tag, _ in before}
    assert not [name for _, attributes in after for name in attributes if name.startswith("on")]
    assert text.count(HOSTILE) >= 12


def test_a_score_without_total(read: Read, row: dict[str, Any]) -> None:
    text = read(transcript(row | {"score": {"parts": {"em": 1.0}}}))[1]
    assert "right" in text


def test_segments_of_an_outside_agent(read: Read, row: dict[str, Any]) -> None:
    turns = row["turns"]
    turns[1] = {
        "action": "tool",
        "name": "find",
        "arguments": {"a": "b"},
        "outcome": "returned",
        "tokens": 3,
        "text": "",
    }
    turns[2] |= {"segment": 1, "text": "<think>So.</think>Amrund"}
    helper = {"action": "answer", "answer": "Hm", "text": "Looks right.", "segment": None, "outcome": "answered"}
    row |= {"turns": [*turns[:2], helper, turns[2], dict(turns[0])], "reward": {"total": 1.0, "parts": {}}}
    row["segments"] = [
        {"role": "searcher", "parent": None, "shared": 0},
        {"role": "", "parent": 0, "shared": 1200},
    ]
    _, text = read(transcript(row))
    said = [
        "Segment 0, searcher",
        "searchVelcor founder",
        "findb",
        "helper model, not trained onLooks right.",
        "Segment 1, 1,200 tokens shared with segment 0",
        "thoughtSo.answerAmrund",
        "Segment 0, searcher",
        "reward from the agent 1",
    ]
    assert text.count("Segment 0, searcher") == 2
    places = [text.index(each) for each in said[:6]]
    assert places == sorted(places)
    assert said[-1] in text


def test_a_reward_without_a_right_answer_is_no_verdict(read: Read, row: dict[str, Any]) -> None:
    row |= {"golden_answers": [], "reward": {"total": 0.5, "parts": {}}, "score": {"total": 0.5, "parts": {"em": 0.0}}}
    text = read(transcript(row))[1]
    assert "wrong" not in text
    assert "reward 0.5" in text
