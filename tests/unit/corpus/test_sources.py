"""Every kind of source is converted to one JSONL corpus; others are one-line errors."""

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from sleuth.corpus.passages import stream
from sleuth.corpus.sources import CorpusFile, plain_corpus, survey_documents
from sleuth.corpus.survey import read_survey
from sleuth.errors import InputError
from sleuth.records import Passage

ROWS = [{"id": str(number), "contents": f'"T{number}"\ntext', "url": f"u{number}"} for number in range(50)]
PASSAGES = [Passage(f"{number}", f'"T{number}"\ntext', {"url": f"u{number}"}) for number in range(50)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def read(source: Path, folder: Path) -> list[Passage]:
    return list(stream(plain_corpus(source, folder / "out").path))


def test_uncompressed_jsonl_is_used_directly(tmp_path: Path) -> None:
    corpus = tmp_path / "in" / "wiki.jsonl"
    corpus.parent.mkdir()
    corpus.write_bytes(LINES)
    assert plain_corpus(corpus, tmp_path / "out") == plain_corpus(corpus.parent, tmp_path / "out") == CorpusFile(corpus)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["wiki.jsonl.gz", "wiki.json.gz", "wiki.gz"])
def test_compressed_corpus_is_decompressed(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(gzip.compress(LINES[:500]) + gzip.compress(LINES[500:]))
    heard: list[tuple[str, int, int]] = []
    found = plain_corpus(tmp_path / name, tmp_path / "out", lambda *report: heard.append(report))
    assert found == CorpusFile(tmp_path / "out" / "corpus.jsonl")
    assert found.path.read_bytes() == LINES
    size = (tmp_path / name).stat().st_size
    assert heard[-1] == ("unpacking", size, size)


@pytest.mark.parametrize("names", [["part_aa", "part_ab", "part_ac"], ["part_2", "part_9", "part_10"]])
@pytest.mark.parametrize("packed", [bytes, gzip.compress], ids=["plain", "compressed"])
@pytest.mark.parametrize("given", ["", "part_*", "FIRST"])
def test_pieces_are_joined(tmp_path: Path, names: list[str], packed: Callable[[bytes], bytes], given: str) -> None:
    whole, folder = packed(LINES), tmp_path / "pieces"
    folder.mkdir()
    for place, name in enumerate(names):
        (folder / name).write_bytes(whole[place * 97 : (place + 1) * 97 if name != names[-1] else None])
    assert plain_corpus(folder / given.replace("FIRST", names[0]), tmp_path / "out").path.read_bytes() == LINES


def test_several_files_are_merged_by_id(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    (folder / "more").mkdir(parents=True)
    (folder / "b.jsonl.GZ").write_bytes(gzip.compress(LINES))
    (folder / "a.jsonl").write_bytes(b'{"id": "x", "contents": "First"}\n\n{"id": "7", "contents": "\\"t7\\"\\n Text"}')
    (folder / "more" / "c.jsonl").write_bytes(LINES + b'{"id": "x", "contents": "FIRST "}\r\n')
    first = [Passage("x", "First"), Passage("7", '"t7"\n Text')]
    assert read(folder, tmp_path) == first + [passage for passage in PASSAGES if passage.id != "7"]
    assert read(folder / "[ab].jsonl*", tmp_path / "again") == first + [each for each in PASSAGES if each.id != "7"]


def test_same_id_with_different_contents_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(LINES)
    (folder / "b.jsonl").write_bytes(b'{"id": "new", "contents": "x"}\n\n{"id": "7", "contents": "other"}\n')
    expected = r"passage 8 of .*a\.jsonl and passage 2 of .*b\.jsonl have the same id"
    with pytest.raises(InputError, match=expected):
        plain_corpus(folder, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_parquet_columns_are_kept(tmp_path: Path) -> None:
    table = pa.table(
        {
            "id": pa.array([1, 2]),
            "contents": ['"A"\ntext', "none"],
            "tags": [["x"], None],
            "score": [0.5, float("nan")],
            "day": pa.array([0, 1], pa.date32()),
            "vector": [[0.1, 0.2], [0.3, 0.4]],
            "raw": [b"x", b"y"],
        }
    )
    parquet.write_table(table, tmp_path / "wiki.parquet", row_group_size=1)
    assert read(tmp_path / "wiki.parquet", tmp_path) == [
        Passage("1", '"A"\ntext', {"tags": ["x"], "score": 0.5, "day": "1970-01-01"}),
        Passage("2", "none", {"tags": None, "score": None, "day": "1970-01-02"}),
    ]


def test_title_and_text_become_contents(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(2):
        rows = {
            "id": [f"{number}-{row}" for row in range(1500)],
            "title": ["A\n title"] * 1500,
            "text": ["é\nb"] * 1500,
        }
        parquet.write_table(pa.table(rows), folder / f"part-{number}.parquet")
    found = read(folder, tmp_path)
    assert [passage.id for passage in found] == [f"{number}-{row}" for number in range(2) for row in range(1500)]
    assert {(passage.title, passage.text) for passage in found} == {("A title", "é\nb")}


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"name": ["a"], "contents": ["b"]}, "has the columns name, contents; expected"),
        ({"id": ["a"], "text": ["b"]}, "has the columns id, text; expected"),
        ({"id": ["a", None], "contents": ["b", "c"]}, 'row 2: "id" is None'),
        ({"id": ["a", "c"], "contents": ["b", None]}, 'row 2: "contents" is None'),
        ({"id": [1.5], "contents": ["b"]}, 'row 1: "id" is 1.5'),
        ({"id": [b"a"], "contents": ["b"]}, "has the columns id, contents; expected"),
        ({"id": ["a"], "title": [b"t"], "text": ["b"]}, "has the columns id, title, text; expected"),
    ],
)
def test_bad_parquet_is_refused(tmp_path: Path, columns: dict[str, list[object]], problem: str) -> None:
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=rf'a\.parquet,? {problem}.* the columns "id" and "contents"'):
        plain_corpus(tmp_path / "a.parquet", tmp_path / "out")


@pytest.mark.parametrize("kind", [pa.timestamp("ns"), pa.duration("ns"), pa.time64("ns"), pa.timestamp("ns", "UTC")])
@pytest.mark.parametrize("nested", ["plain", "list", "struct"])
def test_nanoseconds_are_refused_unless_they_are_whole_microseconds(tmp_path: Path, kind: Any, nested: str) -> None:
    """Also if pandas is installed, with which pyarrow returns other objects."""
    types = {"plain": kind, "list": pa.list_(kind), "struct": pa.struct({"at": kind})}

    def write(time: int) -> None:
        value = {"plain": time, "list": [time], "struct": {"at": time}}[nested]
        times = pa.array([value], types[nested])
        parquet.write_table(pa.table({"id": ["a"], "contents": ["b"], "time": times}), tmp_path / "a.parquet")

    write(1)
    with pytest.raises(InputError, match=r"'time' of .*a\.parquet has times finer.*1"):
        plain_corpus(tmp_path / "a.parquet", tmp_path / "out")
    write(1_001_000)
    (found,) = stream(plain_corpus(tmp_path / "a.parquet", tmp_path / "out").path)
    assert "0:00:00.001001" in str(found.extra["time"])


def test_documents_are_cut_into_passages(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    (folder / "b" / "deep").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / ".git" / "x.txt").write_text("hidden")
    (folder / "b" / "deep" / "two.md").write_text("# Two\nOne two three. Four five.\n\nSix.")
    (folder / "a.txt").write_text("Words.")
    (folder / "c.pdf").write_text("broken")
    (folder / "d.html").write_text("<p>")
    (folder / "e.png").write_bytes(b"\x89PNG")
    (folder / "f.png").write_bytes(b"\x89PNG")
    (folder / "g.txt.gz").write_bytes(b"")
    (folder / "h.jsonl").write_bytes(LINES)
    heard: list[tuple[str, int, int]] = []
    found = plain_corpus(folder, tmp_path / "out", lambda *report: heard.append(report), words=4)
    assert [(each.id, each.contents, each.extra["position"], each.extra["url"]) for each in stream(found.path)] == [
        ("a.txt#0", '"A"\nWords.', 0, "a.txt"),
        ("b/deep/two.md#0", '"Two"\nTwo\nOne two three.', 0, "b/deep/two.md"),
        ("b/deep/two.md#1", '"Two"\nFour five.\nSix.', 1, "b/deep/two.md"),
    ]
    assert found.documents is not None
    assert {file.path: file.reason for file in found.documents.skipped} == {
        "c.pdf": "not a readable PDF (Stream has ended unexpectedly)",
        "d.html": "it holds no text",
        "e.png": "not a supported kind of document",
        "f.png": "not a supported kind of document",
        "g.txt.gz": "not a supported kind of document",
        "h.jsonl": "rows of a corpus, not a document; index it separately",
    }
    assert [(each.path, each.bytes, each.passages, each.title) for each in found.documents.documents] == [
        ("a.txt", 6, 1, "A"),
        ("b/deep/two.md", 37, 2, "Two"),
    ]
    assert read_survey(tmp_path / "out") == found.documents
    assert heard[-1] == ("reading documents", 8, 8)


def test_documents_are_surveyed_without_an_index(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.md").write_text("# One\nWords.")
    (tmp_path / "in" / "b.png").write_text("")
    found = survey_documents(tmp_path / "in")
    assert found == plain_corpus(tmp_path / "in", tmp_path / "out").documents
    assert (found.kinds, [file.path for file in found.skipped]) == ({".md": 1}, ["b.png"])
    (tmp_path / "a.jsonl").write_bytes(LINES)
    with pytest.raises(InputError, match=r"a\.jsonl holds rows of a corpus; give documents \(\.txt"):
        survey_documents(tmp_path / "a.jsonl")


def test_single_document_is_a_source(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Words.")
    (tmp_path / "b.txt").write_text("Others.")
    assert [passage.id for passage in read(tmp_path / "a.txt", tmp_path)] == ["a.txt#0"]


def test_name_that_is_not_utf8_is_escaped(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    Path(os.fsdecode(os.fsencode(folder) + b"/a\xff.txt")).write_text("Words.")
    assert [passage.id for passage in read(folder, tmp_path)] == ["a\\xff.txt#0"]


def test_unreadable_documents_are_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.pdf").write_text("broken")
    with pytest.raises(InputError, match=r"in can be read \(a\.pdf: "):
        plain_corpus(tmp_path / "in", tmp_path / "out")


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["a.jsonl", "b.parquet"], r"1 \.jsonl, 1 \.parquet"),
        (["a.jsonl", "README.md"], r"1 \.jsonl, 1 \.md"),
        (["part_aa", "b.txt"], r"1 \.txt, 1 part_\*"),
        (["a.jsonl", "manifest.json", "b.json"], r"2 \.json, 1 \.jsonl"),
        (["a.odt"], r"no file of a supported kind \(1 \.odt"),
        (["LICENSE", "gz"], r"no file of a supported kind \(2 no suffix"),
    ],
)
def test_mixed_and_unknown_kinds_are_refused(tmp_path: Path, names: list[str], found: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in names:
        (folder / name).write_bytes(LINES)
    with pytest.raises(InputError, match=rf"{found}\); give JSONL "):
        plain_corpus(folder, tmp_path / "out")


def test_pieces_of_two_files_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "in" / name).mkdir(parents=True)
        (tmp_path / "in" / name / "part_aa").write_bytes(LINES)
    with pytest.raises(InputError, match="pieces of several files"):
        plain_corpus(tmp_path / "in", tmp_path / "out")


@pytest.mark.parametrize("name", ["nothing.jsonl", "nothing", "*.jsonl", "nowhere/*", "a**", ".hidden*"])
def test_missing_source_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"does not exist; give JSONL \(\.jsonl"):
        plain_corpus(tmp_path / name, tmp_path / "out")


def test_empty_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with pytest.raises(InputError, match=r"in holds no files; give JSONL"):
        plain_corpus(tmp_path / "in", tmp_path / "out")


def test_special_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(InputError, match=r"pipe\.jsonl is neither a file nor a folder"):
        plain_corpus(tmp_path / "pipe.jsonl", tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl.gz", gzip.compress(LINES)[:-20]),
        ("a.jsonl.gz", LINES),
        ("part_aa", gzip.compress(LINES)[:100]),
        ("a.parquet", b"PAR1 no table PAR1"),
        ("a.parquet", b""),
    ],
    ids=["cut off", "not compressed", "part cut off", "no table", "empty"],
)
def test_damaged_source_leaves_nothing_behind(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=rf"{name} cannot be read \("):
        plain_corpus(tmp_path / name, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_bad_line_of_a_merged_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_bytes(LINES)
    (tmp_path / "in" / "b.jsonl").write_bytes(b'\n{"id": "x"}\n')
    with pytest.raises(InputError, match=r'b\.jsonl, line 2: "contents" is missing'):
        plain_corpus(tmp_path / "in", tmp_path / "out")


def test_finished_corpus_is_reused_until_the_source_changes(tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    (source / "a.txt").write_text("Words.")
    (source / "b.png").write_text("")
    first = plain_corpus(source, out)
    stamp = first.path.stat().st_mtime_ns
    assert plain_corpus(source, out) == first
    assert first.path.stat().st_mtime_ns == stamp
    (source / "a.txt").write_text("Other words.")
    assert [passage.text for passage in stream(plain_corpus(source, out).path)] == ["Other words."]
    assert [passage.text for passage in stream(plain_corpus(source, out, words=1).path)] == ["Other", "words."]
    first.path.write_bytes(b"cut")
    assert len(read(source, tmp_path)) == 1
    (out / "source.json").write_text("{")
    assert len(read(source, tmp_path)) == 1


@pytest.mark.parametrize("named", ["folder", "pattern"])
def test_links_out_of_a_folder_are_skipped(tmp_path: Path, named: str) -> None:
    """A downloaded folder must not put a private file into an index that may be served."""
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "a.txt").write_text("public")
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "b.txt").symlink_to(tmp_path / "secret.txt")
    source = folder if named == "folder" else folder / "*.txt"
    found = plain_corpus(source, tmp_path / "made")
    assert found.documents is not None
    assert [(file.path, file.reason) for file in found.documents.skipped] == [
        ("b.txt", f"a link to {tmp_path / 'secret.txt'}, outside of the folder")
    ]
    assert "secret" not in found.path.read_text()
    # One inside, and one that the user names, are followed.
    (folder / "b.txt").unlink()
    (folder / "b.txt").symlink_to(folder / "a.txt")
    assert len(plain_corpus(source, tmp_path / "made").path.read_text().splitlines()) == 2
    (tmp_path / "link.txt").symlink_to(tmp_path / "secret.txt")
    assert "secret" in plain_corpus(tmp_path / "link.txt", tmp_path / "other").path.read_text()


def test_link_out_of_a_folder_of_rows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_bytes(LINES)
    (tmp_path / "secret.jsonl").write_bytes(LINES)
    (tmp_path / "in" / "b.jsonl").symlink_to(tmp_path / "secret.jsonl")
    with pytest.raises(
        InputError, match=r"b\.jsonl is a link to .*secret\.jsonl, outside of the folder .*in; remove it"
    ):
        plain_corpus(tmp_path / "in", tmp_path / "made")


def test_odd_entries_of_a_folder_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.txt").write_text("Words.")
    (folder / "loop").symlink_to(folder)
    (folder / "round.txt").symlink_to(folder / "round.txt")
    (folder / "gone.md").symlink_to(folder / "nothing")
    os.mkfifo(folder / "sub" / "pipe.txt")
    Path(os.fsdecode(os.fsencode(folder) + b"/b\xff.txt")).write_text("One.")
    (folder / "b\\xff.txt").write_text("Two.")
    found = plain_corpus(folder, tmp_path / "out")
    assert found.documents is not None
    assert {file.path: file.reason for file in found.documents.skipped} == {
        "b\\xff.txt": "its name is the escaped name of another file; rename it",
        "gone.md": "a link that leads nowhere",
        "loop": "a link to a folder, which is not followed",
        "round.txt": "a link that leads nowhere",
        "sub/pipe.txt": "not a regular file",
    }


def test_links_of_the_hub_cache_are_followed(tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "datasets--a--b" / "snapshots" / "0123" / "data", tmp_path / "datasets--a--b" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "abc").write_text("public")
    (snapshot / "a.txt").symlink_to(blobs / "abc")
    assert "public" in plain_corpus(snapshot.parent, tmp_path / "made").path.read_text()
