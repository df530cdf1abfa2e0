"""Indexes as a user makes them: killed and continued, taken over from others, searched, measured, refused."""

import asyncio
import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from sleuth.records import Hit
from sleuth.retrieval.index import load

pytestmark = pytest.mark.e2e

KILLED = -signal.SIGKILL
ROWS = 4200  # more than are encoded at once, so that a build can be killed between two blocks

Ended = subprocess.CompletedProcess[str]
Contents = dict[str, bytes]
Nursery = Any
Moment = tuple[str, str, int]  # before the nth event of a kind on a path with this end


@dataclass(frozen=True, slots=True)
class Killing:
    """A build, the moments at which it is killed one after the other, and what is left to do after that."""

    source: str
    options: tuple[str, ...]
    moments: tuple[Moment, ...]
    left: tuple[str, ...] = field(default=())


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Corpora that take a moment, and a small encoder."""
    home = tmp_path_factory.mktemp("index")
    short = [f'"Town {row}"\nA river, {row * 7 % ROWS} bridges' for row in range(ROWS)]
    long = [
        f"{text} " + " ".join(f"w{(row * 7 + word * word) % 3000}" for word in range(180))
        for row, text in enumerate(short)
    ]
    (home / "short.jsonl").write_bytes(lines(*short))
    (home / "long.jsonl.gz").write_bytes(gzip.compress(lines(*long), 1))
    save_encoder(home / "encoder")
    return home


@pytest.fixture(scope="module")
def towns(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small corpus with indexes of words and of MiniLM's vectors, and the same vectors as others publish them."""
    import faiss

    home = tmp_path_factory.mktemp("towns")
    facts = ("is known for its cheese", "lies on a volcano", "has a famous orchestra", "exports steel", "floats")
    texts = [f'"Town {row}"\nTown {row} {facts[row % 5]} and has {row * 3} bridges.' for row in range(40)]
    (home / "corpus.jsonl").write_bytes(lines(*texts))
    for name, kind in (("words", "bm25"), ("dense", "dense"), ("ann", "ann")):
        succeeded(nursery.sleuth(home, "index", "build", "corpus.jsonl", "--out", name, "--kind", kind))
    vectors = np.load(home / "dense" / "vectors.npy").astype(np.float32)
    for name in ("Flat", "HNSW8"):
        index = faiss.index_factory(vectors.shape[1], name, faiss.METRIC_INNER_PRODUCT)
        index.add(vectors)
        faiss.write_index(index, str(home / f"{name}.faiss"))
    whole = (home / "Flat.faiss").read_bytes()
    (home / "pieces").mkdir()
    for name, piece in zip("abc", (whole[:1001], whole[1001:44444], whole[44444:]), strict=True):
        (home / "pieces" / f"part_a{name}").write_bytes(piece)
    return home


def lines(*texts: str, **more: object) -> bytes:
    rows = ({"id": f"p{number}", "contents": text, **more} for number, text in enumerate(texts))
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def save_encoder(folder: Path) -> None:
    """A BERT so small that it encodes thousands of passages a second, with the tokenizer of MiniLM."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertModel

    from sleuth.retrieval.dense.encoder_config import model_folder

    tokenizer = AutoTokenizer.from_pretrained(model_folder("minilm"))
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def contents(folder: Path) -> Contents:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def succeeded(ended: Ended) -> str:
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def refused(ended: Ended, sentence: str) -> None:
    """One line says what is wrong, after the stages that were reached."""
    *stages, last = ended.stderr.splitlines()
    assert last.startswith("sleuth: ")
    assert sentence in last
    assert not [stage for stage in stages if not re.fullmatch("[a-z ]+", stage)]
    assert (ended.returncode, ended.stdout) == (2, "")


def found(printed: str) -> list[str]:
    """The ids of the hits that `sleuth search` printed."""
    return re.findall(r"^\d+\. .*  (\S+)$", printed, re.MULTILINE)


VECTORS = ("--encoder", "encoder", "--pooling", "mean", "--passage-tokens", "16")
KILLINGS = {
    "bm25": Killing(
        "long.jsonl.gz",
        (),
        (
            ("os.rename", ".tmp-corpus.jsonl", 1),
            ("os.rename", ".tmp-order.npy", 1),
            ("os.rename", ".tmp-000001.npy", 1),
            ("open", "bm25/indptr.csc.index.npy", 1),
            ("os.rename", ".building-killed-bm25", 1),
        ),
        # It was whole and had lost the note of what it was to be: it is not trusted.
        ("unpacking", "reading", "indexing words", "merging the index"),
    ),
    "dense": Killing(
        "short.jsonl",
        VECTORS,
        (
            ("os.rename", ".tmp-survey.json", 1),
            ("open", "vectors.journal", 3),
            ("os.rename", "vectors.part", 1),
        ),
    ),
    "hybrid": Killing(
        "short.jsonl",
        VECTORS,
        (("os.rename", ".tmp-000000.npy", 1), ("open", "vectors.journal", 2)),
        ("encoding",),
    ),
    "ann": Killing(
        "short.jsonl",
        (*VECTORS, "--links", "8"),
        (("open", "vectors.journal", 3), ("os.rename", ".tmp-ann.faiss", 1)),
        ("linking vectors",),
    ),
}


@pytest.mark.parametrize("kind", KILLINGS)
def test_a_build_killed_again_and_again_gives_the_same_index(kind: str, nursery: Nursery, home: Path) -> None:
    killing, out = KILLINGS[kind], f"killed-{kind}"
    build = ("index", "build", killing.source, "--kind", kind, *killing.options)
    succeeded(nursery.sleuth(home, *build, "--out", f"whole-{kind}"))
    for moment in killing.moments:
        assert nursery.sleuth(home, *build, "--out", out, moment=moment).returncode == KILLED, moment
        assert not (home / out).exists()
        assert (home / f".building-{out}").is_dir()
    ended = nursery.sleuth(home, *build, "--out", out)
    assert succeeded(ended).startswith(f"{out}: {kind}, 4,200 passages")
    # What was finished is not done again, except words, which are quickly merged.
    said = set(ended.stderr.splitlines()) - {"indexing words", "merging the index", "resuming an unfinished build"}
    assert said <= set(killing.left)
    assert set(killing.left) <= set(ended.stderr.splitlines())
    whole, killed = contents(home / f"whole-{kind}"), contents(home / out)
    assert sorted(whole) == sorted(killed)
    assert [name for name in whole if whole[name] != killed[name]] == []
    assert not (home / f".building-{out}").exists()


CHANGED: dict[str, tuple[str, str]] = {
    "a file": ("rows.jsonl", "rows.jsonl"),
    "a piece that stands for all": ("pieces/part_aa", "pieces/part_ab"),
    "a pattern": ("many/*.jsonl", "many/b.jsonl"),
    "a folder": ("many", "many/b.jsonl"),
}


@pytest.mark.parametrize(("source", "changed"), CHANGED.values(), ids=CHANGED)
def test_a_build_is_not_continued_with_another_source(
    source: str, changed: str, nursery: Nursery, tmp_path: Path
) -> None:
    rows = lines("red", "green")
    for path in ("rows.jsonl", "pieces/part_aa", "pieces/part_ab", "many/a.jsonl", "many/b.jsonl"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(rows.replace(b'"p', f'"{path} '.encode()))
    build = ("index", "build", source, "--out", "index")
    killed = nursery.sleuth(tmp_path, *build, moment=("os.rename", ".tmp-survey.json", 1))
    assert killed.returncode == KILLED, killed.stderr
    before = contents(tmp_path / ".building-index")
    refused(nursery.sleuth(tmp_path, *build, "--k1", "2"), "unfinished build with another source")
    with (tmp_path / changed).open("ab") as file:
        file.write(b'{"id": "new", "contents": "blue"}\n')
    refused(nursery.sleuth(tmp_path, *build), ".building-index holds an unfinished build")
    assert contents(tmp_path / ".building-index") == before
    assert not (tmp_path / "index").exists()


def test_two_builds_of_one_folder_do_not_meet(nursery: Nursery, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(lines("red", "green"))
    build = ("index", "build", "rows.jsonl", "--out", "index")
    stopped = nursery.sleuth(tmp_path, *build, moment=("os.rename", ".tmp-survey.json", 1), by=signal.SIGSTOP)
    refused(nursery.sleuth(tmp_path, *build), "another process is building in .building-index")
    assert nursery.go_on(int(stopped.args)) == 0
    assert names(tmp_path)[:1] == ["index"]
    assert found(succeeded(nursery.sleuth(tmp_path, "search", "index", "green"))) == ["p1"]


SENTENCE = "The lighthouse keeper of Skagen counted every ship that passed in 1874."
ROW = {"id": "s1", "contents": f'"Skagen"\n{SENTENCE}', "title": "Skagen", "url": "https://skagen.example/", "n": 3}


def pieces(home: Path, packed: bytes) -> Path:
    for number, start in enumerate(range(0, len(packed), 50)):
        (home / f"part_{number}").write_bytes(packed[start : start + 50])
    return home / "part_0"


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def parquet(path: Path) -> Path:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([ROW]), path)
    return path


JSONL = json.dumps(ROW).encode() + b"\n"
ROW_SOURCES: dict[str, Callable[[Path], Path]] = {
    "jsonl": lambda home: written(home / "corpus.jsonl", JSONL),
    "packed": lambda home: written(home / "corpus.jsonl.gz", gzip.compress(JSONL)),
    "pieces": lambda home: pieces(home, JSONL),
    "pieces of a packed file": lambda home: pieces(home, gzip.compress(JSONL)),
    "a folder of files": lambda home: written(home / "corpus.jsonl", JSONL).parent,
    "parquet": lambda home: parquet(home / "corpus.parquet"),
}


@pytest.mark.parametrize("source", ROW_SOURCES.values(), ids=ROW_SOURCES)
def test_rows_of_every_form_are_indexed_as_they_are(
    source: Callable[[Path], Path], nursery: Nursery, tmp_path: Path
) -> None:
    (tmp_path / "source").mkdir()
    succeeded(nursery.sleuth(tmp_path, "index", "build", source(tmp_path / "source"), "--out", "index"))
    printed = succeeded(nursery.sleuth(tmp_path, "search", "index", "lighthouse keepers"))
    assert "lighthouse keeper of Skagen" in printed
    assert found(printed) == ["s1"]
    hit = first(tmp_path / "index", SENTENCE)
    assert (hit.passage.id, hit.passage.contents) == ("s1", ROW["contents"])
    assert hit.passage.extra == {"title": "Skagen", "url": "https://skagen.example/", "n": 3}


def pdf(text: str) -> bytes:
    """A page with a line of text."""
    stream = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET"
    parts = (
        "<< /Type /Catalog /Pages 2 0 R >>",
        "<< /Type /Pages /Kids [4 0 R] /Count 1 >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] /Contents 5 0 R /Resources << /Font << /F1 3 0 R >> >> >>",
        f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream",
    )
    content, starts = b"%PDF-1.4\n", []
    for number, part in enumerate(parts, 1):
        starts.append(len(content))
        content += f"{number} 0 obj\n{part}\nendobj\n".encode()
    table = "".join(f"{start:010} 00000 n \n" for start in starts)
    trailer = f"trailer\n<< /Size 6 /Root 1 0 R >>\nstartxref\n{len(content)}\n%%EOF"
    return content + f"xref\n0 6\n0000000000 65535 f \n{table}{trailer}".encode()


DOCUMENTS = {
    "skagen.txt": (SENTENCE.encode(), "Skagen"),
    "notes.md": (f"# The keeper\n\n{SENTENCE}\n".encode(), "The keeper"),
    "page.html": (f"<title>A page</title><body><p>{SENTENCE} It rained.</p></body>".encode(), "A page"),
    "scan.pdf": (pdf(SENTENCE), "Scan"),
}


def test_documents_are_cut_into_passages_that_say_where_they_come_from(nursery: Nursery, tmp_path: Path) -> None:
    inner = tmp_path / "documents" / "inner"
    inner.mkdir(parents=True)
    filler = "".join(f"Day {day} was like the day before, and nothing came in. " for day in range(40))
    for name, (content, _) in DOCUMENTS.items():
        (inner / name).write_bytes(content)
    (inner / "long.txt").write_text(f"{filler}\n\nA stork landed on the roof.")
    (inner / "broken.pdf").write_bytes(b"%PDF-1.4 and nothing more")
    (inner / "photo.jpeg").write_bytes(b"\xff\xd8")
    ended = nursery.sleuth(tmp_path, "index", "build", "documents", "--out", "index")
    assert succeeded(ended).startswith("index: bm25, ")
    told = [line for line in ended.stderr.splitlines() if line.startswith("not indexed: ")]
    assert [re.sub(r": [^:]*$", "", line) for line in told] == [
        "not indexed: inner/broken.pdf",
        "not indexed: inner/photo.jpeg",
    ]
    assert re.search(r"^skipped +2$", succeeded(nursery.sleuth(tmp_path, "index", "info", "index")), re.MULTILINE)
    printed = succeeded(nursery.sleuth(tmp_path, "search", "index", "lighthouse keeper", "--k", "9"))
    assert sorted(found(printed)) == sorted(f"inner/{name}#0" for name in DOCUMENTS)
    for name, (_, title) in DOCUMENTS.items():
        hit = first(tmp_path / "index", "lighthouse keeper Skagen", f"inner/{name}#0")
        assert SENTENCE in hit.passage.contents
        assert (hit.passage.title, hit.passage.extra["title"], hit.passage.extra["position"]) == (title, title, 0)
        assert (hit.passage.extra["source"], str(hit.passage.extra["url"])[-len(name) :]) == (f"inner/{name}", name)
    last = first(tmp_path / "index", "a stork on the roof")
    assert last.passage.extra["position"] > 2  # type: ignore[operator]


def first(folder: Path, query: str, name: str | None = None) -> Hit:
    """The best hit, or the one of that name."""
    (hits,) = asyncio.run(load(folder).search([query], 10))
    assert isinstance(hits, list)
    return next(hit for hit in hits if name in (None, hit.passage.id))


QUERIES = ("a town with a volcano", "music", "how many bridges has town 17?")


@pytest.fixture(scope="module")
def built(nursery: Nursery, towns: Path) -> dict[str, Ended]:
    """What the index that was built here finds for each of the queries."""
    return {query: nursery.sleuth(towns, "search", "dense", query, "--k", "5") for query in QUERIES}


@pytest.mark.parametrize(
    ("faiss", "kind"),
    [("Flat.faiss", "dense"), ("pieces", "dense"), ("HNSW8.faiss", "ann")],
)
def test_a_published_index_finds_what_one_built_here_finds(
    faiss: str, kind: str, nursery: Nursery, towns: Path, built: dict[str, Ended], tmp_path: Path
) -> None:
    out = tmp_path / "taken"
    words = ("index", "import", "--faiss", faiss, "--corpus", "corpus.jsonl", "--encoder", "minilm", "--out", out)
    assert succeeded(nursery.sleuth(towns, *words)) == f"{out}: {kind}, 40 passages, 384 dimensions\n"
    for query in QUERIES:
        taken = nursery.sleuth(towns, "search", out, query, "--k", "5")
        assert found(succeeded(taken)) == found(succeeded(built[query])) != []
        assert taken.stderr == built[query].stderr == ""
    if kind == "dense":
        assert (out / "vectors.npy").read_bytes() == (towns / "dense" / "vectors.npy").read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


STRANGERS = {
    "another order": (("--corpus", "reversed.jsonl"), "were not made by the encoder minilm"),
    "fewer passages": (("--corpus", "fewer.jsonl"), "40 vectors, fewer.jsonl has 39 passages"),
    "another size": (("--encoder", "encoder", "--pooling", "mean"), "384 dimensions, the encoder"),
    "another pooling": (("--pooling", "cls"), "were not made by the encoder minilm"),
    "no corpus": (("--corpus", "nothing.jsonl"), "nothing.jsonl does not exist"),
    "no index": (("--faiss", "corpus.jsonl"), "starts with b'{\"id'"),
    "cut short": (("--faiss", "cut.faiss"), "download it again, with every piece"),
}


@pytest.mark.parametrize("faiss", ["Flat.faiss", "HNSW8.faiss"])
@pytest.mark.parametrize(("options", "sentence"), STRANGERS.values(), ids=STRANGERS)
def test_an_index_of_another_corpus_or_encoder_is_not_taken(
    options: tuple[str, ...], sentence: str, faiss: str, nursery: Nursery, towns: Path, home: Path, tmp_path: Path
) -> None:
    rows = (towns / "corpus.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "corpus.jsonl").write_bytes(b"".join(rows))
    (tmp_path / "reversed.jsonl").write_bytes(b"".join(reversed(rows)))
    (tmp_path / "fewer.jsonl").write_bytes(b"".join(rows[1:]))
    (tmp_path / "cut.faiss").write_bytes((towns / faiss).read_bytes()[:-100])
    (tmp_path / "encoder").symlink_to(home / "encoder")
    before = names(tmp_path)
    given = {"--faiss": str(towns / faiss), "--corpus": "corpus.jsonl", "--encoder": "minilm"}
    given |= dict(zip(options[::2], options[1::2], strict=True))
    words = [word for pair in given.items() for word in pair]
    refused(nursery.sleuth(tmp_path, "index", "import", *words, "--out", "taken"), sentence)
    assert names(tmp_path) == before


BAD_BUILDS = {
    "no source": (("nothing.jsonl", "--out", "deep/new"), "nothing.jsonl"),
    "bad row": (("bad.jsonl", "--out", "deep/new"), 'bad.jsonl, line 2: "contents"'),
    "bad packing": (("bad.jsonl.gz", "--out", "new"), "bad.jsonl.gz"),
    "words for vectors": (("--out", "new", "--kind", "dense", "--k1", "2"), "k1 has no effect with kind = dense"),
    "vectors for words": (("--out", "new", "--pooling", "cls"), "pooling has no effect with kind = bm25; remove it"),
    "device for words": (("--out", "new", "--device", "cpu"), "device has no effect with kind = bm25; remove it"),
    "lists for a graph": (
        ("--out", "new", "--kind", "ann", "--lists", "2"),
        "lists has no effect with method = hnsw; remove it",
    ),
    "endless k1": (("--out", "new", "--k1", "inf"), "k1 = inf"),
    "unknown stemmer": (("--out", "new", "--stemmer", "klingon"), "'klingon'"),
    "unknown device": (("--out", "new", "--kind", "dense", "--device", "tpu"), "device = 'tpu'"),
    "no encoder folder": (
        ("--out", "new", "--kind", "dense", "--encoder", "./nowhere"),
        "nowhere",
    ),
    "no model in the folder": (
        ("--out", "new", "--kind", "dense", "--encoder", "folder", "--pooling", "mean"),
        "folder",
    ),
    "pooling not known": (
        ("--out", "new", "--kind", "dense", "--encoder", "encoder"),
        "1_Pooling/config.json",
    ),
    "too many tokens": (
        ("--out", "new", "--kind", "dense", "--passage-tokens", "9999"),
        "passage_tokens is 9999",
    ),
    "in the way": (("--out", "folder"), "folder already exists"),
    "below a file": (("--out", "bad.jsonl/new"), "bad.jsonl/new"),
    "where nothing can be": (("--out", "/proc/new"), "No such file or directory"),
}


@pytest.mark.parametrize(("words", "sentence"), BAD_BUILDS.values(), ids=BAD_BUILDS)
def test_a_build_that_cannot_be_leaves_nothing(
    words: tuple[str, ...], sentence: str, nursery: Nursery, home: Path, tmp_path: Path
) -> None:
    (tmp_path / "good.jsonl").write_bytes(lines("red", "green"))
    (tmp_path / "bad.jsonl").write_bytes(lines("red") + b'{"id": "x"}\n')
    (tmp_path / "bad.jsonl.gz").write_bytes(b"\x1f\x8b\x08\x00 no more of this")
    (tmp_path / "folder").mkdir()
    (tmp_path / "encoder").symlink_to(home / "encoder")
    before = names(tmp_path)
    source = () if words[0].startswith(("nothing", "bad")) else ("good.jsonl",)
    refused(nursery.sleuth(tmp_path, "index", "build", *source, *words), sentence)
    assert names(tmp_path) == before


COMMANDS: dict[str, tuple[str, ...]] = {
    "info": ("index", "info", "INDEX"),
    "search": ("search", "INDEX", "cheese"),
    "serve": ("serve", "retriever", "INDEX", "--port", "0"),
    "check": ("index", "check", "INDEX", "--questions", "questions.jsonl", "--out", "checked"),
}
QUESTION = {"id": "q1", "question": "Which town floats?", "golden_answers": ["Town 4"], "supporting_ids": ["p4"]}


def cut(path: Path, by: int) -> None:
    path.write_bytes(path.read_bytes()[:-by])


Harm = Callable[[Path], object]
SEARCHING = ("search", "serve", "check")
HARMS: dict[str, tuple[str, Harm, str, tuple[str, ...]]] = {
    "no folder": ("words", lambda home: shutil.rmtree(home / "words"), "words is not an index folder", tuple(COMMANDS)),
    "no manifest": (
        "words",
        lambda home: (home / "words" / "manifest.json").unlink(),
        "words is not an index folder",
        tuple(COMMANDS),
    ),
    "manifest cut short": (
        "words",
        lambda home: cut(home / "words" / "manifest.json", 3),
        "manifest.json is damaged",
        tuple(COMMANDS),
    ),
    "words cut short": (
        "words",
        lambda home: cut(home / "words" / "bm25" / "data.csc.index.npy", 1),
        "words/bm25/data.csc.index.npy of the index words is damaged",
        SEARCHING,
    ),
    "vectors cut short": (
        "dense",
        lambda home: cut(home / "dense" / "vectors.npy", 1),
        "dense/vectors.npy of the index dense is damaged",
        SEARCHING,
    ),
    "graph cut short": (
        "ann",
        lambda home: cut(home / "ann" / "ann.faiss", 1),
        "ann.faiss of the index ann is damaged",
        SEARCHING,
    ),
    "corpus changed": (
        "words",
        lambda home: (home / "corpus.jsonl").write_bytes(lines("other towns")),
        "corpus.jsonl changed after words was built from it; build the index again",
        SEARCHING,
    ),
    "corpus lost": (
        "words",
        lambda home: (home / "corpus.jsonl").unlink(),
        "corpus.jsonl of the index words does not exist",
        SEARCHING,
    ),
}


@pytest.mark.parametrize(("index", "harm", "sentence", "commands"), HARMS.values(), ids=HARMS)
def test_an_index_that_is_not_whole_is_refused_by_every_command(
    index: str,
    harm: Harm,
    sentence: str,
    commands: tuple[str, ...],
    nursery: Nursery,
    towns: Path,
    tmp_path: Path,
) -> None:
    here = shutil.copytree(towns, tmp_path / "here")
    (here / "questions.jsonl").write_text(json.dumps(QUESTION) + "\n")
    harm(here)
    before = names(here)
    for command in commands:
        words = [index if word == "INDEX" else word for word in COMMANDS[command]]
        refused(nursery.sleuth(here, *words), sentence)
    assert names(here) == before


BAD_QUESTIONS = {
    "missing": (None, "the question file questions.jsonl does not exist"),
    "no questions": (b"\n", "questions.jsonl holds no questions"),
    "no JSON": (b"{\n", "questions.jsonl, line 1"),
    "no answer": (b'{"id": "q", "question": "Who?", "golden_answers": []}\n', "line 1: the question has no answer"),
}


@pytest.mark.parametrize(("content", "sentence"), BAD_QUESTIONS.values(), ids=BAD_QUESTIONS)
def test_a_check_with_bad_questions_is_refused(
    content: bytes | None, sentence: str, nursery: Nursery, towns: Path, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "questions.jsonl").write_bytes(content)
    before = names(tmp_path)
    words = ("index", "check", towns / "words", "--questions", "questions.jsonl", "--out", "checked")
    refused(nursery.sleuth(tmp_path, *words), sentence)
    assert names(tmp_path) == before


def test_an_index_is_checked(nursery: Nursery, towns: Path, tmp_path: Path) -> None:
    unknown = {"id": "q2", "question": "Where is Atlantis?", "golden_answers": ["Nowhere"]}
    hidden = {"id": "q3", "question": "What glows?", "golden_answers": ["Town 7"], "supporting_ids": ["p7"]}
    questions = "".join(json.dumps(row) + "\n" for row in (QUESTION, unknown, hidden))
    (tmp_path / "questions.jsonl").write_text(questions)
    check = ("index", "check", towns / "words", "--questions", "questions.jsonl", "--out", "checked")
    printed = succeeded(nursery.sleuth(tmp_path, *check))
    assert printed.startswith(f"# {towns / 'words'}: bm25, 40 passages\n")
    assert "| all | 3 | 0.67 [" in printed
    assert names(tmp_path / "checked") == ["check.json", "report.html"]
    measured = json.loads((tmp_path / "checked" / "check.json").read_text())
    assert [question["question"] for question in measured["worst"]] == ["What glows?"]
    page = (tmp_path / "checked" / "report.html").read_text()
    assert str(towns / "words") in page
    assert "What glows?" in page
    refused(nursery.sleuth(tmp_path, *check), "checked already exists")
    again = (*check[:-2], "--questions", "questions.jsonl")
    refused(nursery.sleuth(tmp_path, *again), "3 questions")


BAD_NAMES = {
    "unknown provider": (("web:bing",), "'bing'; expected one of serper"),
    "no key": (("web:serper",), "SERPER_API_KEY"),
    "no token": (("http://127.0.0.1:9", "--token-env", "NOT_SET_ANYWHERE"), "NOT_SET_ANYWHERE"),
    "no address": (("http://",), "http://"),
    "no module": (("import:nowhere.search",), "'nowhere'"),
    "no function": (("import:json.search",), "'search'"),
    "a function of other arguments": (("import:json.dumps",), "import:json.dumps"),
    "a function that fails": (("import:math.pow",), "'import:math.pow' raised TypeError: "),
    "token for a folder": (
        ("words", "--token-env", "HOME"),
        "token_env has no effect with words",
    ),
    "device for a server": (
        ("http://127.0.0.1:9", "--device", "cpu"),
        "device has no effect with http://127.0.0.1:9",
    ),
}


@pytest.mark.parametrize(("words", "sentence"), BAD_NAMES.values(), ids=BAD_NAMES)
def test_a_search_that_cannot_be_is_one_line(
    words: tuple[str, ...], sentence: str, nursery: Nursery, towns: Path
) -> None:
    before = names(towns)
    name, *options = words
    refused(nursery.sleuth(towns, "search", name, "cheese", *options), sentence)
    assert names(towns) == before


def test_the_command_itself_builds_describes_and_searches(tmp_path: Path) -> None:
    """Not a child of the nursery: the program as it is installed."""
    (tmp_path / "corpus.jsonl").write_bytes(lines('"Oslo"\nOslo lies on a fjord.', '"Bergen"\nIt rains in Bergen.'))
    program = Path(sys.executable).with_name("sleuth")

    def run(*words: str) -> Ended:
        environment = {**os.environ, "COLUMNS": "80"}
        return subprocess.run([program, *words], cwd=tmp_path, env=environment, capture_output=True, text=True)

    built = run("index", "build", "corpus.jsonl", "--out", "index")
    assert succeeded(built) == "index: bm25, 2 passages, 5 terms, 5 postings\n"
    assert set(built.stderr.splitlines()) <= {"reading", "indexing words", "merging the index"}
    assert "corpus       ../corpus.jsonl (" in succeeded(run("index", "info", "index"))
    assert succeeded(run("search", "index", "fjords")).splitlines()[0].startswith("1. Oslo  ")
    refused(run("search", "nowhere", "fjords"), "nowhere is not an index folder")
