"""The command that searches: what it takes, what it prints, what it refuses."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from sleuth.cli.search import search
from sleuth.errors import ConfigError, InputError, UserError
from sleuth.retrieval.index import build

MODULE = """
from sleuth.errors import SearchUnavailable
from sleuth.records import Hit, Passage

def search(queries, k):
    return [[Hit(Passage("7", '"A [title]"\\nsome [red]text[/red]', {"url": "x"}), 0.25)][:k] for _ in queries]

def untitled(queries, k):
    return [[{"contents": "only a line"}] for _ in queries]

def hostile(queries, k):
    return [[{"id": "\\x9b2J", "contents": '"\\x1b]0;owned\\x07"\\nsafe\\u202etext'}] for _ in queries]

def nothing(queries, k):
    return [[] for _ in queries]

def failing(queries, k):
    return [SearchUnavailable(query, "the line\\nis dead") for query in queries]
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / f"{tmp_path.name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    return f"import:{tmp_path.name}"


def run(*words: str | Path) -> str:
    app = typer.Typer()
    app.command()(search)
    outcome = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "60"})
    if outcome.exception is not None and not isinstance(outcome.exception, SystemExit):
        raise outcome.exception
    assert outcome.exit_code == 0
    return outcome.stdout


def test_hits_are_printed_as_they_are(module: str) -> None:
    assert [line.rstrip() for line in run(f"{module}.search", "query").splitlines()] == [
        "1. A [title]  0.250  7",
        "   some [red]text[/red]",
    ]


def test_a_hit_without_a_text_is_its_title(module: str) -> None:
    (line,) = run(f"{module}.untitled", "query").splitlines()
    assert line.startswith("1. only a line  1.000  ")


def test_no_hits_are_an_answer(module: str) -> None:
    assert run(f"{module}.nothing", "query") == "nothing found\n"


def test_a_failed_search_is_a_user_error(module: str) -> None:
    with pytest.raises(UserError, match="search failed for the query 'query': the line\nis dead"):
        run(f"{module}.failing", "query")


@pytest.mark.parametrize("query", ["", "  \n"])
def test_a_blank_query_is_refused_before_anything_is_opened(query: str) -> None:
    with pytest.raises(InputError, match="query is empty"):
        run("nowhere", query)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("web:serper", "q", "--token-env", "T"), r"token_env .*web:serper"),
        (("index", "q", "--token-env", "T"), r"token_env .*index"),
        (("http://x", "q", "--device", "cpu"), r"device .*http://x"),
        (("web:serper", "q", "--device", "cpu"), r"device .*web:serper"),
        (("http://x", "q", "--token-env", "NOT_SET_ANYWHERE"), "NOT_SET_ANYWHERE"),
        (("web:bing", "q"), r"'bing'.*serper"),
    ],
)
def test_options_without_effect_and_unknown_names_are_refused(words: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        run(*words)


def test_a_folder_is_searched_on_a_device(tmp_path: Path) -> None:
    rows = [{"id": name, "contents": f"{name} is a city"} for name in ("Oslo", "Bergen")]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    build(tmp_path / "corpus.jsonl", tmp_path / "index")
    assert run(tmp_path / "index", "which city", "--device", "cpu", "--k", "1").startswith("1. Bergen is a city  ")


def test_escapes_of_a_document_do_not_reach_the_terminal(module: str) -> None:
    printed = run(f"{module}.hostile", "query")
    assert not {"\x1b", "\x9b", "\u202e", "\x07"} & set(printed)
    assert "\ufffd]0;owned" in printed
    assert "safe\ufffdtext" in printed
