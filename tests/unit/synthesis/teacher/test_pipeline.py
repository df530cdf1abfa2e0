"""The whole pipeline with a scripted teacher: filters, counts, costs, the cache, resume and failing calls."""

import asyncio
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from sleuth.engines.base import Sampling
from sleuth.engines.scripted import ScriptedEngine
from sleuth.errors import EngineFailure, InputError, SearchUnavailable
from sleuth.model.tokens import Tokens
from sleuth.records import Hit, Passage
from sleuth.synthesis.candidate import Candidate, Evidence
from sleuth.synthesis.teacher.calls import MAX_FAILURES, TeacherCalls
from sleuth.synthesis.teacher.model_filters import ModelFilters, same_answer
from sleuth.synthesis.teacher.pipeline import TeacherConfig, TeacherResult, make_questions
from sleuth.synthesis.teacher.prompts import load_prompts
from sleuth.synthesis.teacher.question_file import make_question_file, replies_path, report_path
from sleuth.synthesis.teacher.reply_cache import ReplyCache, reply_key
from sleuth.synthesis.teacher.teacher import EngineTeacher, Reply, TeacherSource

Teach = Callable[[Sequence[dict[str, Any]]], str]
CONFIG = TeacherConfig(questions=1000, linked=0.5, rules=False)


class Scripted:
    """A teacher whose replies a function writes; it may fail."""

    def __init__(self, teach: Teach, fails: Callable[[int], bool] = lambda _: False) -> None:
        self.teach, self.fails, self.calls = teach, fails, 0
        self.identity, self.concurrency = {"model": "scripted"}, 8

    async def complete(self, messages: Sequence[Any], sampling: Sampling) -> Reply:
        self.calls += 1
        await asyncio.sleep(0)
        if self.fails(self.calls):
            raise EngineFailure("the model is away")
        return Reply(self.teach(messages), 100, 10)


class Shelf:
    """A search engine that finds the passages of half of the tools."""

    def __init__(self, passages: list[Passage]) -> None:
        self.passages = passages

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchUnavailable]:
        found = [each for each in self.passages[::2] if any(each.title[:-3] in query for query in queries)]
        return [[Hit(self.passages[1], 2.0), *(Hit(each, 1.0) for each in found)][:k] for _ in queries]


def run(
    passages: list[Passage], teacher: Any, path: Path, config: TeacherConfig = CONFIG, **more: Any
) -> TeacherResult:
    with ReplyCache(path) as cache:
        calls = TeacherCalls(teacher, cache)
        result = asyncio.run(make_questions(passages, calls, load_prompts(), config, **more))
        result.removed["pending calls"] = calls.pending
        return result


def questions(result: TeacherResult) -> list[str]:
    return [row.question.question for row in result.rows]


def test_candidates_pass_and_each_filter_counts(manual: list[Passage], script: Any, tmp_path: Path) -> None:
    names = [passage.title.removesuffix("(1)") for passage in manual]
    script.known, script.misread = set(names[:5]), set(names[5:12])
    result = run(manual, Scripted(script), tmp_path / "cache.jsonl")
    assert len(result.rows) == 38
    assert result.proposed == 150
    assert +result.removed == Counter(
        {
            "quote not in passage": 50,
            "subject not named": 50,
            "known without documents": 5,
            "other answer from the evidence": 7,
        }
    )
    row = result.rows[0]
    passage = next(each for each in manual if each.id == row.question.supporting_ids[0])
    assert row.question.golden_answers[0] in passage.text
    assert row.extra["evidence"][0]["quote"].rstrip(".") in passage.text
    assert (row.question.hops, row.question.answerable, row.question.data_source) == (1, True, "teacher")


def test_drafts_by_rules_are_checked_by_one_reading(manual: list[Passage], tmp_path: Path) -> None:
    """A teacher that writes no questions, and reads only defaults."""

    def teach(messages: Sequence[dict[str, Any]]) -> str:
        default = re.search(r"The default is (\d+)", str(messages[-1]["content"]))
        return default[1] if default and "default" in str(messages[-1]["content"]).rpartition("Question:")[2] else "?"

    config = TeacherConfig(questions=1000, linked=0.0)
    teacher = Scripted(teach)
    result = run(manual, teacher, tmp_path / "cache.jsonl", config)
    assert {row.question.type for row in result.rows} == {"default value"}
    assert 0 < len(result.rows) < result.drafts
    assert result.removed["other answer from the evidence"] == result.drafts - len(result.rows)
    assert teacher.calls == len(manual) + 2 * result.drafts  # proposals, closed book, one reading
    few = run(manual, Scripted(teach), tmp_path / "few.jsonl", replace(config, questions=20))
    assert few.drafts == 20


@pytest.mark.parametrize(("check", "kind"), [("is_stable", "misread"), ("quote_suffices", "misread")])
def test_readings_that_differ_remove_a_question(
    check: str, kind: str, good: list[Candidate], script: Any, tmp_path: Path
) -> None:
    names = {each.question.removesuffix("?").rpartition(" ")[2] for each in good}

    async def verdicts() -> list[object]:
        with ReplyCache(tmp_path / "cache.jsonl") as cache:
            filters = ModelFilters(TeacherCalls(Scripted(script), cache), load_prompts())
            return [await getattr(filters, check)(candidate) for candidate in good]

    assert asyncio.run(verdicts()) == [True] * 50
    (tmp_path / "cache.jsonl").unlink()
    setattr(script, kind, names)
    assert asyncio.run(verdicts()) == [False] * 50


@pytest.mark.parametrize("kind", ["known", "misread"])
def test_model_filters_catch_planted_questions(kind: str, good: list[Candidate], script: Any, tmp_path: Path) -> None:
    """Fifty planted questions that the teacher knows, or answers otherwise from the evidence, are all caught."""
    names = [each.question.removesuffix("?").rpartition(" ")[2] for each in good]
    setattr(script, kind, set(names))

    async def verdicts() -> list[object]:
        with ReplyCache(tmp_path / "cache.jsonl") as cache:
            filters = ModelFilters(TeacherCalls(Scripted(script), cache), load_prompts())
            check = filters.not_known if kind == "known" else filters.round_trip
            return [await check(candidate) for candidate in good]

    assert asyncio.run(verdicts()) == [False] * 50
    setattr(script, kind, set())
    (tmp_path / "cache.jsonl").unlink()
    assert asyncio.run(verdicts()) == [True] * 50


def test_question_that_one_of_two_passages_answers(manual: list[Passage], script: Any, tmp_path: Path) -> None:
    name = manual[0].title.removesuffix("(1)")
    evidence = (Evidence(manual[1], "x"), Evidence(manual[0], "y"))
    candidate = Candidate(f"Who is the maintainer of {name}?", ("Person0 Quill",), evidence, "linked passages")

    async def needed() -> tuple[object, object]:
        with ReplyCache(tmp_path / "cache.jsonl") as cache:
            filters = ModelFilters(TeacherCalls(Scripted(script), cache), load_prompts())
            return await filters.round_trip(candidate), await filters.needs_each(candidate)

    assert asyncio.run(needed()) == (True, False)


def test_engine_batches_and_the_cache_makes_calls_only_once(
    manual: list[Passage], script: Any, speaker: Callable[..., Tokens], tmp_path: Path
) -> None:
    tokens = speaker("hermes")
    prompts: list[str] = []

    def play(ids: Sequence[int]) -> Sequence[int]:
        text = str(tokens.tokenizer.decode(list(ids)))
        prompts.append(text)
        turns = [turn.partition("\n") for turn in text.split("<|im_start|>")[1:]]
        messages = [{"role": role, "content": rest.partition("<|im_end|>")[0]} for role, _, rest in turns[:-1]]
        return tokens.encode(script(messages))

    teacher = EngineTeacher(ScriptedEngine(play), tokens, {"sha256": "x"}, 16, 100_000)
    first = run(manual[:6], teacher, tmp_path / "cache.jsonl")
    assert len(first.rows) == 6
    made = len(prompts)
    assert made == 6 * 6  # proposals, closed book, round trips, two sampled readings, the quote alone
    shared = prompts[0].partition("Title: bra")[0]
    assert sum(prompt.startswith(prompts[0][:1000]) for prompt in prompts) == 6
    assert shared
    again = run(manual[:6], teacher, tmp_path / "cache.jsonl")
    assert questions(again) == questions(first)
    assert len(prompts) == made
    short = EngineTeacher(ScriptedEngine(play), tokens, {"sha256": "y"}, 16, 100)
    assert run(manual[:6], short, tmp_path / "short.jsonl").removed["refused by the teacher"] == 6


def test_failed_calls_wait_for_the_next_start(manual: list[Passage], script: Any, tmp_path: Path) -> None:
    whole = run(manual, Scripted(script), tmp_path / "whole.jsonl")
    random = Random(1)
    shaky = Scripted(script, lambda _: random.random() < 0.3)
    first = run(manual, shaky, tmp_path / "cache.jsonl")
    assert first.waiting
    assert len(first.rows) < len(whole.rows)
    for _ in range(20):
        result = run(manual, shaky, tmp_path / "cache.jsonl")
        if not result.waiting:
            break
    assert questions(result) == questions(whole)
    assert [row.extra for row in result.rows] == [row.extra for row in whole.rows]


def test_teacher_that_always_fails_is_left_alone(manual: list[Passage], script: Any, tmp_path: Path) -> None:
    teacher = Scripted(script, lambda _: True)
    result = run(manual, teacher, tmp_path / "cache.jsonl")
    assert result.stopped
    assert result.waiting == len(manual)
    assert MAX_FAILURES <= teacher.calls < MAX_FAILURES + teacher.concurrency


def test_number_of_questions_is_limited_and_seeded(manual: list[Passage], script: Any, tmp_path: Path) -> None:
    few = TeacherConfig(questions=7, seed=1, rules=False)
    first = run(manual, Scripted(script), tmp_path / "a.jsonl", few)
    assert len(first.rows) == 7
    assert questions(first) == questions(run(manual, Scripted(script), tmp_path / "b.jsonl", few))
    other = TeacherConfig(questions=7, seed=2, rules=False)
    assert questions(first) != questions(run(manual, Scripted(script), tmp_path / "c.jsonl", other))


def test_search_is_recorded_or_filters(manual: list[Passage], script: Any, tmp_path: Path) -> None:
    shelf = Shelf(manual)
    result = run(manual, Scripted(script), tmp_path / "a.jsonl", retriever=shelf)
    ranks = Counter(row.extra["search_rank"] for row in result.rows)
    assert ranks == {2: 25, None: 24, 1: 1}
    strict = TeacherConfig(questions=1000, found_within=2, rules=False)
    kept = run(manual, Scripted(script), tmp_path / "b.jsonl", strict, retriever=shelf)
    assert (len(kept.rows), kept.removed["not found by search"]) == (26, 24)


def test_cache_survives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "cache.jsonl"
    with ReplyCache(path) as cache:
        cache.add("one", Reply("first", 1, 2))
        with pytest.raises(InputError, match="in use"), ReplyCache(path):
            raise AssertionError
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"key": "two", "te')
    with ReplyCache(path) as cache:
        assert (len(cache), cache.get("one"), cache.get("two")) == (1, Reply("first", 1, 2), None)
        cache.add("two", Reply("\u2028 ä\n", 3, 4))
    assert len(path.read_bytes().splitlines()) == 2
    with ReplyCache(path) as cache:
        assert cache.get("two") == Reply("\u2028 ä\n", 3, 4)
    path.write_text('{"key": 1}\n')
    with pytest.raises(InputError, match="line 1"), ReplyCache(path):
        raise AssertionError


def test_key_depends_on_model_messages_and_sampling() -> None:
    message = [{"role": "user", "content": "x"}]
    keys = {
        reply_key({"model": "a"}, message, Sampling(5)),
        reply_key({"model": "b"}, message, Sampling(5)),
        reply_key({"model": "a"}, [{"role": "user", "content": "y"}], Sampling(5)),
        reply_key({"model": "a"}, message, Sampling(5, seed=1)),
    }
    assert len(keys) == 4


@pytest.mark.parametrize(
    ("reply", "same"),
    [("gzip", True), ("The gzip.", True), ("It is gzip, a program", True), ("bzip2", False), ("", False)],
)
def test_same_answers(reply: str, same: bool) -> None:
    assert same_answer(reply, ("gzip",)) is same


def source(stage: Any) -> TeacherSource:
    return TeacherSource(stage.url, stage.endpoint(), concurrency=8)


async def write(passages: list[Passage], stage: Any, out: Path) -> TeacherResult:
    return await make_question_file(passages, source(stage), out, CONFIG)


def test_server_that_fails_a_third_of_the_calls_gives_the_same_file(
    manual: list[Passage], script: Any, stage: Any, tmp_path: Path
) -> None:
    stage.play = lambda body: stage.said(script(body["messages"]))
    asyncio.run(write(manual, stage, tmp_path / "calm.jsonl"))
    random, lock = Random(2), threading.Lock()

    def shaky(body: dict[str, Any]) -> Any:
        with lock:
            fails = random.random() < 0.3
        return stage.scene({"error": "busy"}, 503) if fails else stage.said(script(body["messages"]))

    stage.play = shaky
    result = asyncio.run(write(manual, stage, tmp_path / "shaky.jsonl"))
    assert len(result.rows) == 50
    assert (tmp_path / "shaky.jsonl").read_bytes() == (tmp_path / "calm.jsonl").read_bytes()
    report = json.loads(report_path(tmp_path / "shaky.jsonl").read_bytes())
    assert report["complete"] is True
    assert report["counts"]["accepted"] == 50
    assert report["costs"]["round trip"] | {"seconds": 0} == {
        "calls": 50,
        "cached": 0,
        "refused": 0,
        "failed": 0,
        "prompt_tokens": 1000,
        "completion_tokens": 250,
        "seconds": 0,
    }


def test_finished_file_is_kept_and_unfinished_one_is_continued(
    manual: list[Passage], script: Any, stage: Any, tmp_path: Path
) -> None:
    out = tmp_path / "made.jsonl"

    def refuse_readers(body: dict[str, Any]) -> Any:
        refused = "Text:" in body["messages"][-1]["content"] and "Title:" not in body["messages"][-1]["content"]
        return stage.scene({"error": "no"}, 401) if refused else stage.said(script(body["messages"]))

    stage.play = refuse_readers
    first = asyncio.run(write(manual, stage, out))
    assert first.waiting == 50
    assert json.loads(report_path(out).read_bytes())["complete"] is False
    calls = len(stage.heard)
    stage.play = lambda body: stage.said(script(body["messages"]))
    assert len(asyncio.run(write(manual, stage, out)).rows) == 50
    assert calls + 50 * 4 <= len(stage.heard) < calls + 50 * 5  # the readings, and what failed before them
    assert replies_path(out).is_file()
    with pytest.raises(InputError, match="already exists"):
        asyncio.run(write(manual, stage, out))


def test_call_that_the_server_refuses_for_good_does_not_wait(
    manual: list[Passage], script: Any, stage: Any, tmp_path: Path
) -> None:
    stage.play = lambda _: stage.scene({"error": {"message": "maximum context length"}}, 400)
    result = asyncio.run(write(manual[:3], stage, tmp_path / "made.jsonl"))
    assert (result.waiting, result.removed["refused by the teacher"]) == (0, 3)


def test_question_without_a_word_of_its_document_names_it(manual: list[Passage], tmp_path: Path) -> None:
    def teach(messages: Sequence[dict[str, Any]]) -> str:
        if "Title:" in str(messages[-1]["content"]):
            return "Question: Where do remote ledgers come from?\nAnswer: remote depot"
        return "a remote depot" if "Text:" in str(messages[-1]["content"]) else "?"

    (row,) = run(manual[:1], Scripted(teach), tmp_path / "cache.jsonl").rows
    assert row.question.question == f"In {manual[0].title}, where do remote ledgers come from?"
