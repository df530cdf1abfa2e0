"""sleuth try: real attempts with the quickstart's model on a small world, what is printed, and rejected options."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from sleuth.cli.main import main
from sleuth.cli.view import _api
from sleuth.view.api import RunParameters, TrajectoriesParameters

SMALL = (
    "world.passages=200",
    "world.questions=20",
    "evaluate.questions=5",
    "train.threads=1",
    "engine.slots=4",
    "engine.memory=0.01",
)
AGENT = """
import os
import sys

import httpx


def complete(base_url, key, question):
    body = {"model": "policy", "prompt": f"Question: {question}\\n", "max_tokens": 8}
    headers = {"Authorization": f"Bearer {key}"}
    reply = httpx.post(f"{base_url}/completions", json=body, headers=headers, timeout=60)
    reply.raise_for_status()


def run(task, llm):
    print("printed by the agent")
    complete(llm.base_url, llm.api_key, task.question.question)
    return float(task.group)


def plain(task, llm):
    complete(llm.base_url, llm.api_key, task.question.question)
    complete(llm.base_url, llm.api_key, "Another?")


def raises(task, llm):
    raise KeyError(task.question.id)


def silent(task, llm):
    return 1.0


def narrow(task):
    return 1.0


if __name__ == "__main__":
    complete(os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"], sys.stdin.read())
"""

Try = Callable[..., tuple[int, str, str]]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module of agents, in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "tried_agent.py"
    path.write_text(AGENT)
    monkeypatch.delitem(sys.modules, "tried_agent", raising=False)
    return path


@pytest.fixture
def try_agent(module: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Try:
    """Run the command; return its exit code, stdout and stderr."""

    def run(*words: str, settings: Sequence[str] = SMALL) -> tuple[int, str, str]:
        options = [word for setting in settings for word in ("--set", setting)]
        recipe = () if "--recipe" in words else ("--recipe", "quickstart")
        monkeypatch.setattr(sys, "argv", ["sleuth", "try", *words, *recipe, *options])
        with pytest.raises(SystemExit) as caught:
            main()
        printed = capfd.readouterr()
        return int(caught.value.code or 0), printed.out, printed.err

    return run


def test_report_transcript_and_folder(try_agent: Try, tmp_path: Path) -> None:
    code, out, _ = try_agent("import:tried_agent.plain", "--n", "3", "--show", "--out", "trial")
    assert code == 0
    transcript, _, report = out.partition("\n\n3 attempts of agent.run = import:tried_agent.plain")
    lines = {line[:13].strip(): line[13:] for line in report.splitlines()}
    assert "Question: " in transcript
    assert transcript.count("--- segment") == 2
    assert lines["calls"] == "6 (2.0 per attempt)"
    assert lines["segments"] == "6, forks 3"
    assert lines["failures"] == "0"
    assert "3 by the rubric; EM " in lines["rewards"]
    assert "hint: every attempt forks" in report
    api = _api([tmp_path / "trial"], None, tmp_path / "cache")
    (run,) = api.library.overview()["runs"]
    assert api.run(RunParameters(run=run["id"]))["trajectories"] == 3
    rows = api.trajectories(TrajectoriesParameters(run=run["id"]))["rows"]
    assert [row["forks"] for row in rows] == [1, 1, 1]


def parse(printed: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(printed)
    return report


def test_json_holds_the_report_only(try_agent: Try) -> None:
    code, out, err = try_agent("import:tried_agent.run", "--n", "3", "--json")
    report = parse(out)
    assert (code, "printed by the agent" in err) == (0, True)
    assert (report["calls"], report["segments"], report["forks"], report["failed"]) == (3, 3, 0, 0)
    assert report["rewards"] == {
        "count": 3, "mean": 1.0, "spread": 1.0, "low": 0.0, "high": 2.0, "by_rubric": 0, "by_agent": 3, "em": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    "words", [("import:tried_agent.run", "--workers", "2"), ("--command", f"{sys.executable} tried_agent.py")]
)
def test_worker_processes_and_programs(try_agent: Try, words: tuple[str, ...]) -> None:
    code, out, _ = try_agent(*words, "--n", "2", "--json")
    report = parse(out)
    assert (code, report["attempts"], report["calls"], report["failures"]) == (0, 2, 2, [])


@pytest.mark.parametrize(
    ("agent", "reason", "line"),
    [("raises", "KeyError", "raise KeyError"), ("silent", "did not call the policy", None)],
)
def test_exit_code_1_if_every_attempt_fails(
    try_agent: Try, module: Path, agent: str, reason: str, line: str | None
) -> None:
    code, out, _ = try_agent(f"import:tried_agent.{agent}", "--n", "3", "--json", "--out", "trial")
    report = parse(out)
    (failure,) = report["failures"]
    number = next((n for n, text in enumerate(AGENT.splitlines(), 1) if line and line in text), None)
    assert (code, report["failed"], failure["count"], report["rewards"]) == (1, 3, 3, None)
    assert reason in failure["reason"]
    assert failure["place"] == (f"{module}:{number}" if number else None)
    assert "llm.base_url" in report["hints"][0]


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        ((), "sleuth try import:mine.run"),
        (("import:no_such_module.run",), "no_such_module"),
        (("import:tried_agent.narrow",), "(task, llm)"),
        (("import:tried_agent.rnu",), "did you mean 'run'"),
        (("tried_agent.run",), "import:package.function"),
        (("import:tried_agent.run", "--command", "node agent.mjs"), "agent.run and agent.command"),
        (("--command", "no-such-program agent.js"), "no-such-program"),
        (("--command", "python agent.py", "--workers", "2"), "workers"),
        (("import:tried_agent.run", "--n", "0"), "--n"),
        (("import:tried_agent.run", "--recipe", "nowhere"), "nowhere"),
        (("import:tried_agent.run", "--model", "nowhere"), "nowhere"),
        (("import:tried_agent.run", "--json", "--show"), "--show"),
        (("import:tried_agent.run", "--set", "agent.searches=2"), "agent.searches"),
        (("import:tried_agent.run", "--set", "reward.answer=import:no_such_module.score"), "no_such_module"),
        (("import:tried_agent.run", "--out", "tried_agent.py"), "already exists"),
    ],
)
def test_errors_of_the_user(try_agent: Try, tmp_path: Path, words: tuple[str, ...], fact: str) -> None:
    out = () if "--out" in words else ("--out", "trial")
    code, printed, err = try_agent(*words, *out)
    assert (code, printed) == (2, "")
    assert fact in err
    assert "Traceback" not in err
    assert [path.name for path in tmp_path.iterdir() if path.name != "__pycache__"] == ["tried_agent.py"]
