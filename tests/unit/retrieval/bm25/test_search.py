"""BM25: results, building, resumption, and damaged files."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import bm25s
import numpy as np
import pytest

from sleuth.config.retrieval import BM25Settings
from sleuth.corpus.progress import silent
from sleuth.errors import InputError
from sleuth.retrieval.bm25 import inverted_index as inverted
from sleuth.retrieval.bm25.build import Blocks, build_index
from sleuth.retrieval.bm25.search import BM25

CONTENTS = ["red apples", "green apples and pears", "the quiet harbour", "", "the of and", "東京都"]

Write = Callable[[list[str] | list[tuple[str, str]]], Path]
BY_LANGUAGE = BM25Settings(stemmer="auto", analyzer=2)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a corpus, and offsets beside it; texts may be given by their language."""

    def written(contents: list[str] | list[tuple[str, str]]) -> Path:
        passages = [("", each) if isinstance(each, str) else each for each in contents]
        rows = [{"id": f"p{row}", "contents": text, "language": code} for row, (code, text) in enumerate(passages)]
        lines = [json.dumps(row).encode() + b"\n" for row in rows]
        (tmp_path / "corpus.jsonl").write_bytes(b"".join(lines))
        np.save(tmp_path / "offsets.npy", np.cumsum([0, *map(len, lines)], dtype=np.uint64))
        return tmp_path / "corpus.jsonl"

    return written


def built(corpus: Path, out: Path, settings: BM25Settings | None = None, workers: int = 1) -> dict[str, int]:
    offsets = corpus.with_name("offsets.npy")
    return build_index(corpus, offsets, out, settings or BM25Settings(), workers=workers, progress=silent)


def opened(out: Path, passages: int) -> BM25:
    return BM25(out, BM25Settings(), np.arange(passages, dtype=np.uint32))


@pytest.fixture
def ranker(write: Write, tmp_path: Path) -> BM25:
    built(write(CONTENTS), tmp_path / "index")
    return opened(tmp_path / "index", len(CONTENTS))


def rows(ranker: BM25, query: str, k: int = 10) -> list[int]:
    (ranked,) = ranker.rank([query], k)
    return [row for row, _ in ranked]


def test_other_forms_of_a_word_are_found(ranker: BM25) -> None:
    assert rows(ranker, "an apple") == [0, 1]


def test_passages_without_a_term_of_the_query_are_no_hits(ranker: BM25) -> None:
    assert rows(ranker, "harbours") == [2]


def test_part_of_a_text_without_spaces_is_found(ranker: BM25) -> None:
    assert rows(ranker, "京都") == [5]


LANGUAGES = [
    ("en", "The cities of the café"),
    ("de", "Die Städte am Fluss"),
    ("es", "La organización de los países"),
    ("th", "ประเทศไทยมีเมืองหลวงชื่อกรุงเทพ"),
    ("", "Painted harbours"),
    ("xx", "painted harbours"),
    ("und", "naïve résumés"),
]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("city cafe", [0]),
        ("CAFÉ", [0]),
        ("stadt", [1]),
        ("Stadte", [1]),
        ("organizaciones", [2]),
        ("organizacion", [2]),
        ("organización pais", [2]),
        ("เมืองหลวง", [3]),
        ("the", []),
        ("painting", [4]),
        ("painted", [4, 5]),
        ("resumes", [6]),
        ("résumé", [6]),
        ("naive", [6]),
    ],
)
def test_passages_are_analyzed_by_language(write: Write, tmp_path: Path, query: str, found: list[int]) -> None:
    built(write(LANGUAGES), tmp_path / "index", BY_LANGUAGE)
    ranker = BM25(tmp_path / "index", BY_LANGUAGE, np.arange(len(LANGUAGES), dtype=np.uint32))
    assert rows(ranker, query) == found


def test_english_in_ascii_gives_the_same_bytes_with_every_version(write: Write, tmp_path: Path) -> None:
    corpus = write(["red apples", "the quiet harbour's painting", "to be or not", "x_1 2 U.S."] * 50)
    for name, settings in {"one": BM25Settings(), "two": BY_LANGUAGE}.items():
        built(corpus, tmp_path / name, settings)
    stored = {
        name: {path.name: path.read_bytes() for path in (tmp_path / name).iterdir() if path.is_file()}
        for name in ("one", "two")
    }
    assert json.loads(stored["two"].pop("stemmers.json")) == ["english"]
    assert stored["one"].pop("finished.json") != stored["two"].pop("finished.json")
    assert stored["one"] == stored["two"]


def test_missing_stemmers_are_rejected(write: Write, tmp_path: Path) -> None:
    built(write(LANGUAGES), tmp_path / "index", BY_LANGUAGE)
    (tmp_path / "index" / "stemmers.json").unlink()
    with pytest.raises(InputError, match=r"stemmers\.json is missing"):
        BM25(tmp_path / "index", BY_LANGUAGE, np.arange(len(LANGUAGES), dtype=np.uint32))


@pytest.mark.parametrize("query", ["", "the of and", "unheard", "?!"])
def test_nothing_found_is_an_answer(ranker: BM25, query: str) -> None:
    assert ranker.rank([query], 3) == [[]]


def test_repeated_query_word_counts_twice(ranker: BM25) -> None:
    (once,), (twice,) = ranker.rank(["harbour", "harbour harbours"], 1)
    assert twice == (once[0], 2 * once[1])


def test_order_of_the_words_changes_nothing(ranker: BM25) -> None:
    one, other = ranker.rank(["green red apples pears", "pears apples red green"], 10)
    assert one == other


def test_k_is_at_least_one(ranker: BM25) -> None:
    with pytest.raises(ValueError, match="k is 0, expected at least 1"):
        ranker.rank(["apples"], 0)


def test_very_long_query(ranker: BM25) -> None:
    """Sums that are no longer exact give the same order, and leave nothing behind."""
    before = ranker.rank(["apples pears"], 5)
    (ranked,) = ranker.rank(["apples pears " * 100_000], 5)
    assert [row for row, _ in ranked] == [1, 0]
    assert ranker.rank(["apples pears"], 5) == before


def test_counts_of_terms_and_postings(write: Write, tmp_path: Path) -> None:
    assert built(write(["red apples, red pears", "red"]), tmp_path / "index") == {"terms": 3, "postings": 4}


@pytest.mark.parametrize("contents", [["", "the of and"], ["?!"]])
def test_corpus_without_a_word(write: Write, tmp_path: Path, contents: list[str]) -> None:
    with pytest.raises(InputError, match=r"corpus\.jsonl has no words"):
        built(write(contents), tmp_path / "index")


@pytest.mark.parametrize("line", [b'{"id": "p1"}', b"broken", b"[1]"])
def test_passage_that_cannot_be_read(write: Write, tmp_path: Path, line: bytes) -> None:
    corpus = write(["red apples", "green apples and pears"])
    first, second = corpus.read_bytes().splitlines(keepends=True)
    corpus.write_bytes(first + line.ljust(len(second) - 1) + b"\n")
    with pytest.raises(InputError, match=r"corpus\.jsonl, passage 2 is unreadable .* expected a JSON object"):
        built(corpus, tmp_path / "index")


@pytest.mark.parametrize("name", [inverted.SCORES, inverted.ROWS, inverted.STARTS, inverted.MAXIMA])
def test_array_cut_short(write: Write, tmp_path: Path, name: str) -> None:
    built(write(CONTENTS), tmp_path / "index")
    path = tmp_path / "index" / name
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(InputError, match=f"{name} is damaged or truncated .* build the index again"):
        opened(tmp_path / "index", len(CONTENTS))


def test_array_that_is_gone(write: Write, tmp_path: Path) -> None:
    built(write(CONTENTS), tmp_path / "index")
    (tmp_path / "index" / inverted.ROWS).unlink()
    with pytest.raises(InputError, match="does not exist; build the index again"):
        opened(tmp_path / "index", len(CONTENTS))


def test_index_of_another_corpus(write: Write, tmp_path: Path) -> None:
    built(write(CONTENTS), tmp_path / "index")
    with pytest.raises(InputError, match=r"6 passages, .* 7"):
        opened(tmp_path / "index", 7)


def test_bm25s_opens_the_folder(write: Write, tmp_path: Path) -> None:
    built(write(CONTENTS), tmp_path / "index", BM25Settings(k1=1.2, b=0.75))
    theirs = bm25s.BM25.load(tmp_path / "index")
    reference = bm25s.BM25(k1=1.2, b=0.75, method="lucene")
    reference.index([["red", "appl"], ["green", "appl", "pear"], ["quiet", "harbour"], [], [], ["東京", "京都"]])
    for query in (["appl", "pear"], ["quiet", "red"], ["京都"]):
        assert theirs.get_scores(query) == pytest.approx(reference.get_scores(query), rel=1e-6)
    ours = opened(tmp_path / "index", len(CONTENTS))
    (ranked,) = ours.rank(["apples pears"], 10)
    scores = theirs.get_scores(["appl", "pear"])
    assert [score for _, score in ranked] == pytest.approx([scores[row] for row, _ in ranked], rel=1e-6)
    assert len(ranked) == np.count_nonzero(scores)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of five blocks, and an index of it that was built without a pause."""
    folder = tmp_path_factory.mktemp("large")
    random = np.random.default_rng(0)
    draws = (random.zipf(1.3, (2000, 700)) % 3000).tolist()
    lines = [
        json.dumps(
            {"id": row, "contents": " ".join(f"wörd{n}" if n % 7 == 0 else f"word{n}" for n in numbers)}
        ).encode()
        + b"\n"
        for row, numbers in enumerate(draws)
    ]
    (folder / "corpus.jsonl").write_bytes(b"".join(lines))
    np.save(folder / "offsets.npy", np.cumsum([0, *map(len, lines)], dtype=np.uint64))
    built(folder / "corpus.jsonl", folder / "index")
    return folder


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_two_workers_build_what_one_builds(large: Path, tmp_path: Path) -> None:
    built(large / "corpus.jsonl", tmp_path / "index", workers=2)
    assert files(tmp_path / "index") == files(large / "index")


@pytest.mark.parametrize("interpreter", ["/bin/false", "/bin/cat"])
def test_failed_workers_do_not_fail_the_build(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interpreter: str
) -> None:
    monkeypatch.setattr(sys, "executable", interpreter)
    built(large / "corpus.jsonl", tmp_path / "index", workers=3)
    assert files(tmp_path / "index") == files(large / "index")


def test_ctrl_c_does_not_reach_workers(large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter, group = tmp_path / "interpreter", tmp_path / "group"
    interpreter.write_text(f"#!/bin/sh\ncut -d ' ' -f 5 /proc/self/stat > '{group}'\n")
    interpreter.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(interpreter))
    built(large / "corpus.jsonl", tmp_path / "index", workers=2)
    assert int(group.read_text()) != os.getpgrp()


def test_worker_indexes_requested_blocks(large: Path, tmp_path: Path) -> None:
    arguments = [str(large / "corpus.jsonl"), str(large / "offsets.npy"), str(tmp_path), "english", "1"]
    command = [sys.executable, "-m", "sleuth.retrieval.bm25.build", *arguments]
    ended = subprocess.run(command, input="3\n1\n", capture_output=True, text=True, check=True)
    assert ended.stdout == "3\n1\n"
    here = Blocks.of(large / "corpus.jsonl", large / "offsets.npy", tmp_path / "here", "english")
    for number in (1, 3):
        here.write(number)
        assert (tmp_path / f"00000{number}.npy").read_bytes() == here.path(number).read_bytes()


KILLED = """
import os, signal, sys
from pathlib import Path
from sleuth.retrieval.bm25.build import build_index
from sleuth.config.retrieval import BM25Settings

reports = []

def killed(stage, done, total):
    reports.append(done)
    if len(reports) == 2:
        os.kill(os.getpid(), signal.SIGKILL)

corpus, out = map(Path, sys.argv[1:])
build_index(corpus, corpus.with_name("offsets.npy"), out, BM25Settings(), workers=1, progress=killed)
"""


def test_killed_build_resumes(large: Path, tmp_path: Path) -> None:
    corpus, out = large / "corpus.jsonl", tmp_path / "index"
    ended = subprocess.run([sys.executable, "-c", KILLED, str(corpus), str(out)], check=False)
    assert ended.returncode == -9
    left = sorted((out / "blocks").glob("*.npy"))
    assert len(left) == 2
    left[1].write_bytes(left[1].read_bytes()[:-1] + b"?")  # a block that did not reach the disk whole
    stages: list[tuple[str, int, int]] = []
    offsets = corpus.with_name("offsets.npy")
    build_index(corpus, offsets, out, BM25Settings(), workers=1, progress=lambda *stage: stages.append(stage))
    assert [stage for stage, _, _ in stages].count("indexing words") == 4 + 1
    assert stages[-1][0] == "merging the index"
    assert stages[-1][1] == stages[-1][2]
    assert files(out) == files(large / "index")


def test_blocks_of_other_settings_are_not_used(large: Path, tmp_path: Path) -> None:
    out = tmp_path / "index"
    (out / "blocks").mkdir(parents=True)
    (out / "blocks" / "stamp.json").write_text("{}")
    (out / "blocks" / "000000.npy").write_bytes(b"of another corpus")
    built(large / "corpus.jsonl", out)
    assert files(out) == files(large / "index")


def test_finished_build_is_not_done_again(write: Write, tmp_path: Path) -> None:
    corpus, out = write(["red apples"]), tmp_path / "index"
    counts = built(corpus, out)
    before = (out / inverted.ROWS).stat().st_mtime_ns
    assert built(corpus, out) == counts
    assert (out / inverted.ROWS).stat().st_mtime_ns == before


@pytest.mark.parametrize("settings", [BM25Settings(), BM25Settings(k1=2.0), BM25Settings(stemmer="none")])
def test_build_of_something_else_is_done_again(write: Write, tmp_path: Path, settings: BM25Settings) -> None:
    built(write(["red apples"]), tmp_path / "index")
    corpus = write(["red apples", "green apples"])
    built(corpus, tmp_path / "index", settings)
    built(corpus, tmp_path / "other", settings)
    assert files(tmp_path / "index") == files(tmp_path / "other")
