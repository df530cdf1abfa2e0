"""The run folder: nothing overwritten, nothing half written under its final name."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sleuth import __version__
from sleuth.errors import InputError
from sleuth.records import (
    Access,
    Answer,
    Hit,
    Malformed,
    Outcome,
    Passage,
    Question,
    Score,
    Search,
    StopReason,
    Trajectory,
    Turn,
)
from sleuth.runs.documents import FORMAT, Row, read_json
from sleuth.runs.provenance import code_version, fingerprint
from sleuth.runs.replacing import replacing
from sleuth.runs.rows import read_row, read_rows, write_rows
from sleuth.runs.run import Run, fresh, step_of
from sleuth.runs.temporaries import temporary_for
from sleuth.runs.trajectory import row


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(tmp_path / "runs" / "first", {"config": {"name": "first"}})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def trajectory(supporting_ids: tuple[str, ...] = ("p1",), stop: StopReason = StopReason.ANSWERED) -> Trajectory:
    hits = (Hit(Passage("p1", '"A"\ntext'), 2.5), Hit(Passage("p2", '"B"\ntext'), 1.0))
    return Trajectory(
        question=Question("q1", "Who?", ("Ada",), "world", supporting_ids=supporting_ids),
        group=3,
        sample=1,
        step=5,
        ids=(7, 8, 9, 10),
        sampled=(False, True, True, False),
        logprobs=(-0.5, -0.25),
        versions=(4, 4),
        turns=(
            Turn("<search>A</search>", Search("A"), Outcome.FOUND, 2, hits),
            Turn("hm", Malformed("no action"), Outcome.CORRECTED, 1),
            Turn("<answer>Ada</answer>", Answer("Ada"), Outcome.ANSWERED, 3),
        ),
        stop=stop,
    )


def test_create_writes_a_manifest_with_the_format(run: Run) -> None:
    assert Run.open(run.path).manifest() == {"format": FORMAT, "kind": "run", "config": {"name": "first"}}


def test_create_leaves_an_existing_path_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(InputError, match=f"exists already .* sleuth train --resume {tmp_path}"):
        Run.create(tmp_path, {})
    assert names(tmp_path) == ["mine.txt"]


def test_create_below_a_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written: a file stands where a folder should be"):
        Run.create(tmp_path / "file" / "run", {})


def test_open_refuses_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a run folder"):
        Run.open(tmp_path)


def test_open_refuses_another_format(run: Run) -> None:
    run.write_json("manifest.json", {"format": 99, "kind": "run"})
    with pytest.raises(InputError, match="has run format 99, and this version of Sleuth reads format 1"):
        Run.open(run.path)


def test_open_refuses_the_folder_of_something_else(run: Run) -> None:
    run.write_json("manifest.json", {"format": FORMAT, "kind": "bm25"})
    with pytest.raises(InputError, match="is not a run folder, its manifest is of something else"):
        Run.open(run.path)


def test_metrics_come_back_in_order(run: Run) -> None:
    assert list(run.metrics()) == []
    for step in (1, 2):
        run.append_metrics(step, {"reward/mean": step / 3})
    assert list(run.metrics()) == [{"step": 1, "reward/mean": 1 / 3}, {"step": 2, "reward/mean": 2 / 3}]


def test_metrics_refuse_what_json_cannot_hold(run: Run) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        run.append_metrics(1, {"loss/value": float("nan")})
    assert list(run.metrics()) == []


def test_rewind_drops_what_came_after_a_step(run: Run) -> None:
    for step in (1, 2, 3, 10):
        run.append_metrics(step, {})
        run.write_trajectories(step, [{"step": step}])
        run.write_learned(step, [{"ratio": [1.0]}])
        run.checkpoint(step).mkdir()
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "rew')
    run.rewind(2)
    run.append_metrics(3, {"again": True})
    assert list(run.metrics()) == [{"step": 1}, {"step": 2}, {"step": 3, "again": True}]
    files = ("jsonl", "learned.jsonl", "learned.offsets", "offsets")
    assert names(run.path / "trajectories") == [f"step-{step}.{each}" for step in (1, 2) for each in files]
    assert [step_of(path) for path in run.checkpoints()] == [1, 2, 3, 10]


def test_rewind_drops_later_events_but_no_rollback(run: Run) -> None:
    assert list(run.events()) == []
    said = [(2, "warn"), (5, "rollback"), (5, "warn"), (7, "skip")]
    for step, action in said:
        run.append_event(step, {"guard": "answerless", "action": action, "value": 0.9, "limit": None})
    run.rewind(4)
    assert [(each["step"], each["action"]) for each in run.events()] == [(2, "warn"), (5, "rollback")]
    assert next(run.events()) == {"step": 2, "guard": "answerless", "action": "warn", "value": 0.9, "limit": None}


def test_forget_removes_the_checkpoints_after_a_step(run: Run) -> None:
    for step in (2, 4, 10):
        run.checkpoint(step).mkdir()
    run.forget(4)
    assert names(run.path / "checkpoints") == ["step-2", "step-4"]


def test_rewind_to_the_start_empties_the_record(run: Run) -> None:
    run.append_metrics(1, {})
    run.rewind(0)
    assert list(run.metrics()) == []


def test_only_complete_checkpoints_are_listed_and_training_removes_the_rest(run: Run) -> None:
    assert run.latest() is None
    for name in ("step-2", "step-10", ".tmp-step-12", "notes"):
        (run.path / "checkpoints" / name).mkdir()
        (run.path / "checkpoints" / name / "model.safetensors").write_text(name)
    assert run.latest() == run.checkpoint(10)
    with run.held():
        assert run.checkpoints() == [run.checkpoint(2), run.checkpoint(10)]
    assert not (run.path / "checkpoints" / ".tmp-step-12").exists()


def test_checkpoint_that_stepped_aside_for_one_that_never_came_gets_its_name_back(run: Run) -> None:
    """As a process leaves it that was killed between the two renames of a replacement."""
    for name in ("old-step-3", "step-3", "old-step-5"):
        temporary_for(name, run.path / "checkpoints").mkdir()
    run.checkpoint(5).mkdir()
    with run.held():
        assert names(run.path / "checkpoints") == ["step-3", "step-5"]


def test_open_for_reading_removes_nothing(run: Run) -> None:
    (run.path / "checkpoints" / ".tmp-step-12").mkdir()
    Run.open(run.path)
    assert (run.path / "checkpoints" / ".tmp-step-12").exists()


def test_prune_keeps_the_newest(run: Run) -> None:
    for step in (1, 2, 10, 20):
        run.checkpoint(step).mkdir()
    run.prune(keep=2)
    assert names(run.path / "checkpoints") == ["step-10", "step-20"]


def test_prune_keeps_the_best_and_what_is_asked_for(run: Run) -> None:
    for step in (0, 1, 2, 10, 20):
        run.checkpoint(step).mkdir()
    run.score(1, 0.4)
    run.score(2, 0.3)
    run.prune(keep=1, also={0})
    assert names(run.path / "checkpoints") == ["step-0", "step-1", "step-20"]
    assert run.best() == run.checkpoint(1)


def test_best_that_is_gone_gives_way_to_a_lower_score(run: Run) -> None:
    assert run.best() is None
    for step, score in ((1, 0.5), (2, 0.25)):
        run.checkpoint(step).mkdir()
        run.score(step, score)
    assert run.best() == run.checkpoint(1)
    run.checkpoint(1).rmdir()
    assert run.best() is None
    run.score(2, 0.25)
    assert run.best() == run.checkpoint(2)


def test_summary_is_replaced_as_a_whole(run: Run) -> None:
    for em in (0.5, 0.75):
        path = run.write_summary({"em_after": em})
    assert read_json(path) == {"em_after": 0.75}


def test_row_has_the_published_fields() -> None:
    assert row(trajectory(), Score(1.0, {"em": 1.0})) == {
        "version": 1,
        "question_id": "q1",
        "data_source": "world",
        "question": "Who?",
        "golden_answers": ["Ada"],
        "group": 3,
        "sample": 1,
        "step": 5,
        "weights_versions": [4, 4],
        "ids": [7, 8, 9, 10],
        "origin": [["given", 1], ["sampled", 2], ["given", 1]],
        "logprobs": [-0.5, -0.25],
        "turns": [
            {
                "action": "search",
                "query": "A",
                "hits": [
                    {"id": "p1", "title": "A", "score": 2.5, "gold": True},
                    {"id": "p2", "title": "B", "score": 1.0, "gold": False},
                ],
                "outcome": "found",
                "tokens": 2,
                "text": "<search>A</search>",
                "formed": True,
            },
            {
                "action": "malformed",
                "reason": "no action",
                "hits": [],
                "outcome": "corrected",
                "tokens": 1,
                "text": "hm",
                "formed": True,
            },
            {
                "action": "answer",
                "answer": "Ada",
                "hits": [],
                "outcome": "answered",
                "tokens": 3,
                "text": "<answer>Ada</answer>",
                "formed": True,
            },
        ],
        "stop": "answered",
        "failure": None,
        "score": {"total": 1.0, "parts": {"em": 1.0}},
    }


def test_a_row_tells_several_queries_and_pages_apart() -> None:
    """One query is written as it always was: who reads `query` alone still can."""
    oslo, rome = (Hit(Passage(name, name), 1.0) for name in ("oslo", "rome"))
    turns = (
        Turn("x", Search("a", "b", "c"), Outcome.FOUND, 2, (oslo, rome), (0, 1, 1), formed=False),
        Turn("y", Access("https://oslo.no"), Outcome.FOUND, 2, (oslo,), (1,), shown="os"),
    )
    first, second = row(replace(trajectory(), turns=turns), None)["turns"]
    assert (first["action"], first["queries"], first["counts"]) == ("search", ["a", "b", "c"], [0, 1, 1])
    assert "query" not in first
    assert [hit["id"] for hit in first["hits"]] == ["oslo", "rome"]
    assert (first["formed"], second["formed"]) == (False, True)
    assert (second["action"], second["urls"], "counts" in second) == ("access", ["https://oslo.no"], False)
    assert ("shown" in first, second["shown"]) == (False, "os")


def test_unusable_trajectory_has_no_score_and_unknown_gold_is_not_told() -> None:
    unusable = row(trajectory(supporting_ids=(), stop=StopReason.SEARCH_UNAVAILABLE), None)
    assert unusable["score"] is None
    assert [sorted(hit) for hit in unusable["turns"][0]["hits"]] == [["id", "score", "title"]] * 2


def test_rows_are_read_in_order_and_by_number(tmp_path: Path) -> None:
    rows: list[Row] = [{"n": n, "text": "é\u2028\n" * n} for n in range(5)]
    path = tmp_path / "rows.jsonl"
    write_rows(path, rows)
    assert list(read_rows(path)) == rows
    assert [read_row(path, n) for n in (3, 0, 4)] == [rows[3], rows[0], rows[4]]
    starts = [int.from_bytes(path.with_suffix(".offsets").read_bytes()[8 * n : 8 * n + 8], "little") for n in range(5)]
    assert [json.loads(path.read_bytes()[start:].split(b"\n")[0])["n"] for start in starts] == list(range(5))


@pytest.mark.parametrize("n", [-1, 2])
def test_row_out_of_range_is_refused(tmp_path: Path, n: int) -> None:
    path = tmp_path / "rows.jsonl"
    write_rows(path, [{}, {}])
    with pytest.raises(InputError, match=f"has 2 rows, counted from 0, and no row {n}"):
        read_row(path, n)


@pytest.mark.parametrize(("line", "problem"), [("{", "line 2 is not valid JSON"), ("[]", "line 2 holds a list")])
def test_broken_row_is_named(tmp_path: Path, line: str, problem: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{{}}\n{line}\n")
    with pytest.raises(InputError, match=problem):
        list(read_rows(path))


def test_failure_among_the_rows_leaves_the_earlier_file(tmp_path: Path) -> None:
    def breaking() -> Iterator[Row]:
        yield {"n": 1}
        raise RuntimeError("broke off")

    path = tmp_path / "rows.jsonl"
    write_rows(path, [{"n": 0}])
    with pytest.raises(RuntimeError, match="broke off"):
        write_rows(path, breaking())
    assert read_row(path, 0) == {"n": 0}
    assert names(tmp_path) == ["rows.jsonl", "rows.offsets"]


def test_replacing_swaps_a_whole_folder(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "step-1"
    for content in ("old", "new"):
        with replacing(target) as folder:
            folder.mkdir()
            (folder / content).write_text(content)
    assert names(target) == ["new"]
    assert names(target.parent) == ["step-1"]


def fail_while_replacing(path: Path, error: Exception) -> None:
    with replacing(path) as folder:
        folder.mkdir()
        (folder / "half").write_text("half")
        raise error


def test_full_disk_is_one_sentence_and_loses_nothing(run: Run) -> None:
    run.checkpoint(1).mkdir()
    with pytest.raises(InputError) as caught:
        fail_while_replacing(run.checkpoint(2), OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    expected = f"{run.checkpoint(2)} cannot be written: the disk is full; free some space and try again"
    assert str(caught.value) == expected
    assert names(run.path / "checkpoints") == ["step-1"]


@pytest.mark.parametrize(
    ("fault", "sentence"), [(errno.ENOSPC, "the disk is full"), (errno.EFBIG, "larger than files")]
)
def test_failed_write_is_known_by_its_words_too(tmp_path: Path, fault: int, sentence: str) -> None:
    """Libraries that write for us raise errors of their own."""
    words = f"I/O error: {os.strerror(fault)} (os error {fault})"
    with pytest.raises(InputError, match=sentence):
        fail_while_replacing(tmp_path / "model", ValueError(words))


def test_full_disk_is_known_where_nobody_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """numpy raises an OSError without a number, torch a RuntimeError."""
    full = shutil.disk_usage(tmp_path)._replace(free=0)
    for error in (OSError("45556 requested and 45024 written"), RuntimeError("enforce fail")):
        with pytest.raises(type(error)):
            fail_while_replacing(tmp_path / "model", error)
        with monkeypatch.context() as disk:
            disk.setattr(shutil, "disk_usage", lambda _: full)
            with pytest.raises(InputError, match="the disk is full"):
                fail_while_replacing(tmp_path / "model", error)


def test_refused_write_of_metrics_is_one_sentence_and_the_half_line_is_dropped(run: Run) -> None:
    run.append_metrics(1, {})
    script = (
        "import pathlib, resource, sys\n"
        "from sleuth.runs.run import Run\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20))\n"
        "Run.open(pathlib.Path(sys.argv[1])).append_metrics(2, {'reward/mean': 0.5})\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(run.path)], capture_output=True, text=True, timeout=30)
    assert "InputError: " in ended.stderr
    assert "metrics.jsonl cannot be written: it is larger than files may be here" in ended.stderr
    assert (run.path / "metrics.jsonl").stat().st_size == 20
    assert list(run.metrics()) == [{"step": 1}]


def test_other_errors_pass_through_replacing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="mine"):
        fail_while_replacing(tmp_path / "folder", ValueError("mine"))
    assert names(tmp_path) == []


def test_killed_writer_leaves_nothing_under_the_final_name(run: Run) -> None:
    script = (
        "import os, signal, sys, pathlib, sleuth.runs.replacing as r\n"
        "with r.replacing(pathlib.Path(sys.argv[1])) as folder:\n"
        "    folder.mkdir(); (folder / 'half').write_text('half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(run.checkpoint(1))], check=False, timeout=30)
    [left] = names(run.path / "checkpoints")
    assert left.endswith(".tmp-step-1")
    with run.held():
        assert run.checkpoints() == []
    assert names(run.path / "checkpoints") == []


WRITING = """
import os, pathlib, signal, sys
from sleuth.runs.replacing import replacing
with replacing(pathlib.Path(sys.argv[1])) as folder:
    folder.mkdir()
    (folder / "mine").write_text(sys.argv[2])
    os.kill(os.getpid(), getattr(signal, sys.argv[3]))
"""


def writer(path: Path, words: str, ending: str) -> subprocess.Popen[str]:
    """A process that stops or dies before what it wrote gets its name."""
    command = [sys.executable, "-c", WRITING, str(path), words, ending]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def test_leftovers_of_the_dead_are_removed_by_the_next_and_those_of_the_living_are_not(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    writer(path, "dead", "SIGKILL").communicate(timeout=30)
    assert len(names(tmp_path)) == 1
    stopped = writer(path, "first", "SIGSTOP")
    os.waitpid(stopped.pid, os.WUNTRACED)
    assert [f"-{stopped.pid}-" in name for name in names(tmp_path)] == [True]
    with replacing(path) as folder:
        folder.mkdir()
        (folder / "mine").write_text("second")
    stopped.send_signal(signal.SIGCONT)
    _, said = stopped.communicate(timeout=30)
    assert f"InputError: another process wrote {path} meanwhile, which is left as it is; choose another name" in said
    assert (path / "mine").read_text() == "second"
    assert names(tmp_path) == ["folder"]


def write_twice(path: Path) -> None:
    with replacing(path) as outer:
        outer.write_text("second")
        with replacing(path) as inner:
            inner.write_text("first")
        assert path.read_text() == "first"


def test_a_file_that_another_wrote_meanwhile_is_left(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with pytest.raises(InputError, match="another process wrote"):
        write_twice(path)
    assert path.read_text() == "first"
    assert names(tmp_path) == ["rows.jsonl"]


def test_a_file_that_was_there_is_replaced_by_whoever_is_last(tmp_path: Path) -> None:
    path = tmp_path / "best.json"
    path.write_text("old")
    write_twice(path)
    assert path.read_text() == "second"
    assert names(tmp_path) == ["best.json"]


def test_temporaries_of_another_machine_are_not_judged_but_by_who_holds_the_folder(run: Run) -> None:
    foreign = run.path / ".00000000-999999999-abcdef.tmp-best.json"
    foreign.write_text("half")
    run.score(1, 0.5)
    assert foreign.exists()
    with run.held():
        assert not foreign.exists()


def test_fresh_path_follows_the_runs_there_are(tmp_path: Path) -> None:
    assert fresh(tmp_path / "runs", "quickstart") == tmp_path / "runs" / "quickstart-1"
    (tmp_path / "quickstart-1").mkdir()
    assert fresh(tmp_path, "quickstart") == tmp_path / "quickstart-2"


def test_step_of_refuses_other_names() -> None:
    with pytest.raises(InputError, match="is not named for a step"):
        step_of(Path("checkpoints/last"))


def test_fingerprint_of_a_file_is_its_sha256(tmp_path: Path) -> None:
    (tmp_path / "abc").write_text("abc")
    assert fingerprint(tmp_path / "abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_fingerprint_of_a_folder_follows_names_and_contents(tmp_path: Path) -> None:
    seen = set()
    for name, content in (("a", "1"), ("b", "1"), ("b", "2")):
        folder = tmp_path / f"{name}{content}"
        (folder / "inner").mkdir(parents=True)
        (folder / "inner" / name).write_text(content)
        assert fingerprint(folder) == fingerprint(folder)
        seen.add(fingerprint(folder))
    assert len(seen) == 3


def test_fingerprint_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        fingerprint(tmp_path / "missing")


def test_code_version_starts_with_the_package_version() -> None:
    version, _, commit = code_version().partition("+")
    assert version == __version__
    assert commit == "" or len(commit.removesuffix("-dirty")) == 12


def test_run_is_trained_by_one_process_at_a_time(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {})
    with run.held():
        with pytest.raises(InputError, match="another process is training in"), Run.open(run.path).held():
            pass
        assert next(iter(run.metrics()), None) is None
    with Run.open(run.path).held():
        run.append_metrics(1, {})
