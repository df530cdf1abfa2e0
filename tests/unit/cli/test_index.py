"""The commands that build, describe and search an index."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from sleuth.cli.index import app as index_app
from sleuth.cli.search import search
from sleuth.errors import InputError


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    contents = ['"Oslo"\nOslo is the [bold]capital[/bold] of Norway.', '"Bergen"\nBergen lies by the sea.']
    path.write_text("".join(json.dumps({"id": f"p{n}", "contents": text}) + "\n" for n, text in enumerate(contents)))
    return path


def run(*words: str | Path) -> str:
    app = typer.Typer()
    app.add_typer(index_app, name="index")
    app.command()(search)
    outcome = CliRunner().invoke(app, [str(word) for word in words])
    if outcome.exception is not None and not isinstance(outcome.exception, SystemExit):
        raise outcome.exception
    return outcome.stdout


def test_build_says_what_it_built(corpus: Path, tmp_path: Path) -> None:
    assert run("index", "build", corpus, "--out", tmp_path / "index") == (
        f"{tmp_path / 'index'}: bm25, 2 passages, 7 terms, 7 postings\n"
    )


def test_build_takes_its_settings(corpus: Path, tmp_path: Path) -> None:
    run("index", "build", corpus, "--out", tmp_path / "index", "--k1", "1.5", "--b", "0.75")
    described = dict(line.split(maxsplit=1) for line in run("index", "info", tmp_path / "index").splitlines())
    assert described["k1"].strip() == "1.5"
    assert described["b"].strip() == "0.75"
    assert described["passages"].strip() == "2"
    assert described["corpus"].startswith("../corpus.jsonl (")


def test_search_prints_passages_as_they_are(corpus: Path, tmp_path: Path) -> None:
    run("index", "build", corpus, "--out", tmp_path / "index")
    printed = run("search", tmp_path / "index", "capital of Norway")
    assert printed.startswith("1. Oslo  ")
    assert "Oslo is the [bold]capital[/bold] of Norway." in printed
    assert "Bergen" not in printed


def test_search_obeys_k(corpus: Path, tmp_path: Path) -> None:
    run("index", "build", corpus, "--out", tmp_path / "index")
    assert run("search", tmp_path / "index", "Oslo Bergen sea", "--k", "1").startswith("1. Bergen")
    assert "2. " not in run("search", tmp_path / "index", "Oslo Bergen", "--k", "1")


def test_search_says_when_there_is_nothing(corpus: Path, tmp_path: Path) -> None:
    run("index", "build", corpus, "--out", tmp_path / "index")
    assert run("search", tmp_path / "index", "plums") == "nothing found\n"


def test_a_corpus_changed_far_from_both_ends_is_refused(tmp_path: Path) -> None:
    corpus, questions = tmp_path / "corpus.jsonl", tmp_path / "questions.jsonl"
    rows = [json.dumps({"id": f"p{n}", "contents": f"town {n:03d} " + "x" * 10_000}) + "\n" for n in range(300)]
    corpus.write_text("".join(rows))
    questions.write_text('{"id": "q", "question": "town 150", "golden_answers": ["150"]}\n')
    run("index", "build", corpus, "--out", tmp_path / "index")
    corpus.write_text("".join(rows).replace("town 150", "city 150"))
    with pytest.raises(InputError, match="changed after"):
        run("search", tmp_path / "index", "town 001")
    with pytest.raises(InputError, match="changed after"):
        run("index", "check", tmp_path / "index", "--questions", questions)


def test_user_errors_reach_the_command_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not an index folder"):
        run("search", tmp_path, "anything")
