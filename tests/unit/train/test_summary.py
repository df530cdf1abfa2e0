"""What a finished run leaves behind."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sleuth.config import recipe
from sleuth.config.reward import RewardConfig
from sleuth.errors import InputError
from sleuth.evaluate.results import Evaluation, QuestionResult, ScoredTrajectory
from sleuth.model.policy import Policy
from sleuth.records import Answer, Outcome, Question, Segment, StopReason, Trajectory, Turn
from sleuth.reward.rubric import Rubric
from sleuth.train.checkpoint import Progress
from sleuth.train.held_out import HeldOutResults, load_ceiling
from sleuth.train.loop import Outcome as Finished
from sleuth.train.loop import train
from sleuth.train.metrics import peak_memory_gib
from sleuth.train.observer import SilentObserver
from sleuth.train.parts import Parts
from sleuth.train.summary import select_transcripts, summarise, write_summary


def evaluation(*answers: tuple[int, str | None]) -> Evaluation:
    """Questions of so many hops with these answers, of which "oslo" is right and None was lost to search."""

    def played(number: int, hops: int, answer: str | None) -> Trajectory:
        question = Question(f"q{number}", "Where?", ("oslo",), "made", hops=hops)
        stop = StopReason.SEARCH_UNAVAILABLE if answer is None else StopReason.ANSWERED
        turns = () if answer is None else (Turn(f"<answer>{answer}</answer>", Answer(answer), Outcome.ANSWERED, 3),)
        return Trajectory(question, number, 0, 0, (Segment((1, 2), (False, True), (-1.0,), (0,)),), turns, stop)

    rubric = Rubric(RewardConfig())
    scored = (asyncio.run(rubric.score_one(played(number, *each))) for number, each in enumerate(answers))
    return Evaluation(tuple(QuestionResult.of(ScoredTrajectory(*each)) for each in scored))


def test_summary_names_what_changed_and_what_it_took() -> None:
    before = evaluation((1, "rome"), (1, "oslo"), (2, "rome"), (3, None))
    after = evaluation((1, "oslo"), (1, "oslo"), (2, "rome"), (3, "oslo"))
    finished = Finished(HeldOutResults(before, before), HeldOutResults(after, after), Progress(7, 12.5, 900))
    found = summarise(finished, None)
    assert found["em_before"]["value"] == pytest.approx(1 / 3)
    assert found["em_after"]["value"] == pytest.approx(3 / 4)
    assert found["em_after"]["low"] < 0.75 < found["em_after"]["high"]
    assert found["em_gain"]["value"] == pytest.approx(1 / 3)
    assert found["em_sampled_after"]["count"] == 4
    assert found["em_by_hops"].keys() == {"1 hop", "2 hops"}
    assert found["searches_by_hops"].keys() == {"1 hop", "2 hops", "all"}
    assert (found["steps"], found["seconds"], found["tokens"]) == (7, 12.5, 900)
    assert 0.01 < found["peak_memory_gib"] == pytest.approx(peak_memory_gib(), rel=0.1)
    assert found["ceiling"] is None
    json.dumps(found, allow_nan=False)


def test_summary_counts_the_questions_that_were_lost() -> None:
    before = evaluation((1, "rome"), (1, "oslo"), (2, "rome"), (3, None))
    after = evaluation((1, "oslo"), (1, None), (2, "rome"), (3, "oslo"))
    whole = evaluation((1, "oslo"), (1, "oslo"), (2, "rome"), (3, "oslo"))
    found = summarise(Finished(HeldOutResults(before, whole), HeldOutResults(after, whole), Progress(7)), None)
    assert found["held_out"] == {
        "questions": 4,
        "lost": {"before": {"search_unavailable": 1}, "after": {"search_unavailable": 1}},
        "kinds_without_pairs": ["3 hops"],
    }
    assert (found["em_before"]["count"], found["em_after"]["count"], found["em_gain"]["count"]) == (3, 3, 2)
    assert {kind: entry["questions"] for kind, entry in found["em_by_hops"].items()} == {"1 hop": 2, "2 hops": 1}
    alone = summarise(Finished(None, HeldOutResults(whole, after), Progress(7)), None)
    assert alone["held_out"]["lost"] == {"sampled_after": {"search_unavailable": 1}}
    assert "held_out" not in summarise(Finished(None, None, Progress(7)), None)


@pytest.mark.parametrize(
    "change",
    [
        "world.seed=5",
        "world.passages=300",
        "retrieval.k=3",
        "retrieval.kind=dense",
        "retrieval.stemmer=none",
        "retrieval.rerank=cross-encoder",
        "retrieval.replay=searches.jsonl",
        "agent.searches=2",
        "evaluate.questions=20",
    ],
)
def test_ceiling_stands_only_beside_what_it_was_measured_on(change: str, tmp_path: Path) -> None:
    shipped, quickstart = recipe.resolve_policy("quickstart"), recipe.load("quickstart")
    known = load_ceiling(shipped, quickstart)
    assert known is not None
    assert known["em"]["count"] == quickstart.evaluate.questions
    assert load_ceiling(shipped, recipe.load("quickstart", ["train.seed=7", "retrieval.cache=9"])) == known
    assert load_ceiling(shipped, recipe.load("quickstart", [change])) is None
    assert load_ceiling(tmp_path, quickstart) is None


def test_transcripts_are_of_every_kind_wrong_before_right() -> None:
    answers = [(hops, answer) for hops in (1, 2, 3) for answer in ("oslo", "rome", "oslo", "bonn")]
    shown = [(each.question.hops, each.answer) for each in select_transcripts(evaluation(*answers))]
    assert [hops for hops, _ in shown] == [1, 2, 3, 1, 2, 3, 1, 2, 3, 1]
    assert {answer for _, answer in shown[:3]} == {"rome"}
    assert {answer for _, answer in shown[3:6]} == {"oslo"}


@pytest.mark.parametrize("count", [1, 2, 3, 10, 40])
def test_transcripts_are_ten_where_there_are_as_many(count: int) -> None:
    picked = select_transcripts(evaluation(*[(1, "rome" if n % 3 else "oslo") for n in range(count)], (1, None)))
    assert len(picked) == len({each.question.id for each in picked}) == min(10, count)
    assert all(each.usable for each in picked)


def test_finished_run_has_summary_and_report(
    parts: Callable[..., Parts], policy: Callable[..., Policy], tmp_path: Path, judged: str
) -> None:
    policy().save(tmp_path / "model")
    made = parts(tmp_path / "run", reward={"answer": judged}, model={"policy": str(tmp_path / "model")})
    found = write_summary(made, train(made, SilentObserver(), 0.0))
    assert json.loads((made.run.path / "summary.json").read_text()) == found
    assert found["steps"] == 3
    page = (made.run.path / "report.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "Who wrote book 1?" in page
    assert [name for name in ("<script", "<link", "src=") if name in page] == []


def test_run_whose_report_could_not_be_written_is_not_finished(
    parts: Callable[..., Parts], policy: Callable[..., Policy], tmp_path: Path, judged: str
) -> None:
    policy().save(tmp_path / "model")
    tables = {"model": {"policy": str(tmp_path / "model")}, "evaluate": {"before": False, "after": False}}
    made = parts(tmp_path / "run", reward={"answer": judged}, train={"steps": 1}, **tables)
    outcome = train(made, SilentObserver(), 0.0)
    (made.run.path / "events.jsonl").write_text("broken\n")
    with pytest.raises(InputError, match=r"events\.jsonl"):
        write_summary(made, outcome)
    assert made.run.summary() is None


@pytest.mark.parametrize("asked", ["before", "after", None])
def test_summary_holds_what_was_asked(
    asked: str | None, parts: Callable[..., Parts], policy: Callable[..., Policy], tmp_path: Path, judged: str
) -> None:
    policy().save(tmp_path / "model")
    evaluate = {"before": asked == "before", "after": asked == "after"}
    tables = {"model": {"policy": str(tmp_path / "model")}, "evaluate": evaluate, "train": {"steps": 1}}
    made = parts(tmp_path / "run", reward={"answer": judged}, **tables)
    found = write_summary(made, train(made, SilentObserver(), 0.0))
    assert {name for name in found if name.startswith("em_")} == (
        {f"em_{asked}", f"em_sampled_{asked}"} if asked else set()
    )
    assert "searches_by_hops" not in found
    assert found["steps"] == 1
    assert (made.run.path / "report.html").read_text().startswith("<!doctype html>")
