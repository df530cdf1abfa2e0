"""An evaluation as a user sees it: the same again, killed and continued, scored offline, compared, and refused."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

Bench = Any
Nursery = Any
Ended = Any
KILLED = -9
QUESTIONS = 24
SMALL = ("agent.prompt=brief", "agent.turn_tokens=10", "agent.observation_tokens=40", "agent.context_tokens=160")
SETTINGS = [word for each in (*SMALL, "engine.slots=4", "retrieval.k=1") for word in ("--set", each)]
ASKED = ["--suite", "rivers.jsonl", "--suite", "towns.jsonl", "--index", "import:shelf.search"]
# It finds something for everyone, and while there is a file called `die`, the tenth search kills the process.
SHELF = """
import os, signal
from itertools import count

searches = count(1)

def search(queries, k):
    if os.path.exists("die") and next(searches) == 10:
        os.kill(os.getpid(), signal.SIGKILL)
    return [[{"id": "1", "contents": '"Lisbon"\\nLisbon lies by the sea.'}] for _ in queries]
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two sets of questions, half of them answered by Lisbon, and something to search."""
    folder = tmp_path_factory.mktemp("evaluated")
    (folder / "shelf.py").write_text(SHELF)
    for name in ("rivers", "towns"):
        rows = (
            {
                "id": str(n),
                "question": f"Which {name} are {n}?",
                "golden_answers": ["Lisbon" if n % 2 else "Oslo"],
            }
            for n in range(QUESTIONS // 2)
        )
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="module")
def ask(home: Path, bench: Bench, nursery: Nursery) -> Any:
    """Evaluates the small model that searches for years and answers Lisbon."""

    def run(*words: str) -> Ended:
        return nursery.sleuth(home, "evaluate", bench.path / "model", *ASKED, *SETTINGS, *words)

    return run


@pytest.fixture(scope="module")
def whole(home: Path, ask: Any) -> Path:
    ended = ask("--out", "whole")
    assert ended.returncode == 0, ended.stderr
    assert "asking 24 questions" in ended.stderr
    assert "| mean over the sets | 24 | 0." in ended.stdout
    return home / "whole"


def timeless(found: Any) -> Any:
    """Figures without the seconds, which no two evaluations share."""
    if not isinstance(found, dict):
        return found
    return {name: timeless(value) for name, value in found.items() if name not in ("seconds", "wall_seconds")}


def results(folder: Path) -> Any:
    return timeless(json.loads((folder / "results.json").read_text()))


def trajectories(folder: Path) -> list[Any]:
    rows = (timeless(json.loads(line)) for line in (folder / "trajectories.jsonl").read_text().splitlines())
    return sorted(rows, key=lambda row: int(row["group"]))


def test_every_question_is_asked_and_every_figure_written(whole: Path) -> None:
    found = results(whole)
    assert (found["questions"], found["unusable"], list(found["sets"])) == (24, 0, ["rivers", "towns"])
    assert found["searches"]["value"] > 0
    assert 0 < found["mean"]["em"]["low"] < found["mean"]["em"]["value"] < found["mean"]["em"]["high"] < 1
    assert {"model", "method", "protocol", "prompt", "limits", "search", "decoding", "questions", "code"} <= set(
        found["stamp"]
    )
    for name in ("results.md", "results.html", "marks.jsonl", "trajectories.offsets"):
        assert (whole / name).stat().st_size > 0


def test_repeated_it_gives_the_same_numbers(home: Path, whole: Path, ask: Any) -> None:
    assert ask("--out", "twin").returncode == 0
    assert results(home / "twin") == results(whole)
    assert trajectories(home / "twin") == trajectories(whole)


def test_killed_and_resumed_it_gives_the_same_numbers(home: Path, whole: Path, ask: Any, nursery: Nursery) -> None:
    (home / "die").touch()
    assert ask("--out", "part").returncode == KILLED
    (home / "die").unlink()
    there = len((home / "part" / "trajectories.jsonl").read_bytes().splitlines())
    assert 0 < there < QUESTIONS
    early = nursery.sleuth(home, "evaluate", "--rescore", "part")
    assert (early.returncode, len(early.stderr.splitlines())) == (2, 1)
    assert re.search(f"part .*{QUESTIONS - there} of 24 questions", early.stderr)
    assert not (home / "part" / "results.json").exists()
    ended = ask("--out", "part")
    assert ended.returncode == 0, ended.stderr
    assert re.search(f"{there} of 24 questions .* part\n", ended.stderr)
    assert results(home / "part") == results(whole)
    assert trajectories(home / "part") == trajectories(whole)


def test_what_is_finished_is_not_asked_again(whole: Path, ask: Any) -> None:
    before = (whole / "trajectories.jsonl").read_bytes()
    ended = ask("--out", "whole")
    assert "24 of 24 questions" in ended.stderr
    assert "asking" not in ended.stderr
    assert (whole / "trajectories.jsonl").read_bytes() == before


def test_scored_offline_it_is_the_same(home: Path, whole: Path, nursery: Nursery) -> None:
    before = json.loads((whole / "results.json").read_text())
    (whole / "results.json").unlink()
    ended = nursery.sleuth(home, "evaluate", "--rescore", "whole")
    assert ended.returncode == 0, ended.stderr
    assert json.loads((whole / "results.json").read_text()) == before


def test_a_sample_says_so_and_another_method_has_a_folder_of_its_own(
    home: Path, whole: Path, bench: Bench, nursery: Nursery
) -> None:
    asked = ["--suite", "rivers.jsonl", "--suite", "towns.jsonl", "--method", "direct", "--limit", "6"]
    asked += ["--set", "agent.context_tokens=160", "--set", "agent.turn_tokens=4"]
    ended = nursery.sleuth(home, "evaluate", bench.path / "model", *asked)
    assert ended.returncode == 0, ended.stderr
    assert "Sample: 6 of 24 questions" in ended.stdout
    (folder,) = (home / "evaluations").iterdir()
    assert folder.name.startswith("model-direct-")
    refused = nursery.sleuth(home, "compare", "whole", folder)
    assert refused.returncode == 2
    assert "questions" in refused.stderr
    compared = nursery.sleuth(home, "compare", "whole", folder, "--common")
    assert compared.returncode == 0, compared.stderr
    assert "| mean over the sets | 6 |" in compared.stdout
    assert "18 questions" in compared.stdout


def test_rag_sees_documents_it_never_searched_for(home: Path, whole: Path, ask: Any) -> None:
    settings = ("--method", "rag", "--set", "agent.prompt=rag-brief", "--out", "rag")
    ended = ask(*settings)
    assert ended.returncode == 0, ended.stderr
    found = results(home / "rag")
    assert (found["searches"]["value"], found["retrieval_hit"]["value"]) == (0.0, 0.5)


def test_figures_alone_leave_nothing_else(home: Path, whole: Path, ask: Any) -> None:
    ended = ask("--out", "alone.json", "--set", "agent.searches=1")
    assert ended.returncode == 0, ended.stderr
    assert json.loads((home / "alone.json").read_text())["questions"] == QUESTIONS
    assert not list(home.glob(".tmp-*"))


def test_a_context_that_no_prompt_fits_is_an_error(home: Path, ask: Any) -> None:
    ended = ask("--set", "agent.context_tokens=5", "--out", "tight")
    assert ended.returncode == 2
    assert "agent.context_tokens = 5" in ended.stderr.splitlines()[-1]
    assert not (home / "tight" / "results.json").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--set", "agent.searches=1", "--out", "whole"], "limits.searches (4 in the folder, 1 now)"),
        (["--suite", "nq"], "--suite nq "),
        (["--suite", "search-r1"], "data/search-r1/test "),
        (["--suite", "bad.jsonl"], "bad.jsonl, line 1: "),
        (["--method", "best"], "agent.method = 'best'"),
        (["--limit", "1"], "--limit 1 "),
        (["--out", "nodir/x.json"], "cannot write nodir/x.json"),
    ],
    ids=["stamp", "set", "suite", "answerless", "method", "limit", "place"],
)
def test_bad_input_is_one_sentence(home: Path, whole: Path, ask: Any, words: list[str], sentence: str) -> None:
    (home / "bad.jsonl").write_text('{"id": "1", "question": "Who?", "golden_answers": []}\n')
    ended = ask(*words)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"sleuth: {sentence}") or sentence in line
    assert "Traceback" not in ended.stderr


def test_a_model_that_cannot_be_loaded_leaves_no_folder(home: Path, bench: Bench, nursery: Nursery) -> None:
    shutil.copytree(bench.path / "model", home / "broken")
    (home / "broken" / "model.safetensors").write_bytes(b"no weights")
    ended = nursery.sleuth(home, "evaluate", "broken", *ASKED, "--out", "nothing")
    assert (ended.returncode, len(ended.stderr.splitlines())) == (2, 1)
    assert not (home / "nothing").exists()


def test_a_model_without_a_tokenizer_is_refused(home: Path, nursery: Nursery) -> None:
    (home / "bare").mkdir()
    (home / "bare" / "config.json").write_text("{}")
    ended = nursery.sleuth(home, "evaluate", "bare", *ASKED)
    assert (ended.returncode, len(ended.stderr.splitlines())) == (2, 1)
    assert "bare" in ended.stderr
    assert "tokenizer" in ended.stderr
