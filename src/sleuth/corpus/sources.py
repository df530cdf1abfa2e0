"""Corpus sources: JSONL, Parquet or documents, converted to one uncompressed JSONL file with random access."""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sleuth.corpus.chunks import WORDS
from sleuth.corpus.document_rows import DocumentRows, Reuse, read_nothing
from sleuth.corpus.documents import READERS
from sleuth.corpus.files import PIECE, SourceFiles, list_files
from sleuth.corpus.jsonl import LONGEST_LINE, decompressed_batches, line_too_long
from sleuth.corpus.passages import parse_lines
from sleuth.corpus.progress import Progress, silent
from sleuth.corpus.source_code import SUFFIXES as CODE_SUFFIXES
from sleuth.corpus.survey import DocumentSurvey, read_survey
from sleuth.errors import InputError
from sleuth.records import Passage
from sleuth.runs.atomic import atomic_write
from sleuth.runs.json_files import read_json

CORPUS = "corpus.jsonl"
ORIGIN = "source.json"  # fingerprint of the source of corpus.jsonl, so that a resumed build can reuse it
SHOWN_SUFFIXES = [suffix for suffix in READERS if suffix not in CODE_SUFFIXES]
EXPECTED = (
    "JSONL (.jsonl, .jsonl.gz, pieces named part_*), Parquet (.parquet), or documents "
    f"({', '.join(SHOWN_SUFFIXES)}, source code), as a file, a folder or a pattern such as 'wiki/*.jsonl'"
)
PARQUET_COLUMNS = 'the columns "id" and "contents", or "id", "title" and "text"'
KINDS = {".jsonl": "rows", ".gz": "rows", ".parquet": "tables", **dict.fromkeys(READERS, "documents")}
REPORT_EVERY = 1024  # Parquet rows between progress reports
# Hashes of ids and contents, so that merging needs 24 bytes of memory per passage.
HASHES = np.dtype([("high", "<u8"), ("low", "<u8"), ("contents", "<u8")])


@dataclass(frozen=True, slots=True)
class CorpusFile:
    """An uncompressed JSONL corpus; `documents` is the survey of its documents, if it was made from documents."""

    path: Path
    documents: DocumentSurvey | None = None


def plain_corpus(
    source: Path, folder: Path, progress: Progress = silent, words: int = WORDS, reuse: Reuse = read_nothing
) -> CorpusFile:
    """Return the corpus of a source: an uncompressed JSONL file as it is, any other source converted into `folder`.

    Documents are cut into passages of `words` words, unless `reuse` returns their rows. A corpus already made from the
    same files is reused.
    """
    listed = list_files(source, EXPECTED)
    kind = _kind(listed)
    if kind == "rows" and len(listed.files) == 1 and listed.files[0].suffix.lower() == ".jsonl":
        return CorpusFile(listed.files[0])
    digest = hashlib.sha256(f"{words}".encode())
    for path in listed.files:
        status = path.stat()
        digest.update(os.fsencode(path.resolve()) + f"\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    origin = digest.hexdigest()
    finished = _find_finished(folder, origin)
    if finished is not None:
        return finished
    with atomic_write(folder / CORPUS) as corpus:
        if kind == "documents":
            documents = _write_documents(DocumentRows(listed, words, progress, reuse), source, corpus)
            documents.write(folder)
        else:
            documents = None
            _write_rows(kind, listed.files, corpus, progress)
        size = corpus.stat().st_size
    with atomic_write(folder / ORIGIN) as path:
        path.write_text(json.dumps({"origin": origin, "bytes": size}), encoding="utf-8")
    return CorpusFile(folder / CORPUS, documents)


def survey_documents(source: Path, progress: Progress = silent) -> DocumentSurvey:
    """Read all documents of a source and describe them; raise InputError if it holds none.

    A source that will be indexed need not be surveyed: `survey.read_survey` returns the survey of the index.
    """
    listed = list_files(source, EXPECTED)
    if _kind(listed) != "documents":
        raise InputError(f"{source} holds rows of a corpus; give documents ({', '.join(SHOWN_SUFFIXES)}, source code)")
    rows = DocumentRows(listed, progress=progress)
    for _ in rows:
        continue
    return rows.survey


def _find_finished(folder: Path, origin: str) -> CorpusFile | None:
    """Return the corpus that was already made from the same files, if it is unchanged."""
    corpus, record = folder / CORPUS, folder / ORIGIN
    if not corpus.is_file() or not record.is_file():
        return None
    try:
        made = read_json(record)
        same = made.get("origin") == origin and made.get("bytes") == corpus.stat().st_size
        return CorpusFile(corpus, read_survey(folder)) if same else None
    except InputError:
        return None


def files_of(source: Path) -> tuple[Path, ...]:
    """List the files of a source by name, without hidden files; raise InputError if there are none."""
    return list_files(source, EXPECTED).files


def require_source(source: Path) -> None:
    """Raise InputError if a source has no files, or none that can be read; their contents are not looked at."""
    _kind(list_files(source, EXPECTED))


def _kind(listed: SourceFiles) -> str:
    """Return the kind of the files; raise InputError if they are unknown or do not belong together."""
    source, files = listed.source, listed.files
    kinds = Counter(_file_kind(path) for path in files)
    others = sum(kinds[kind] for kind in ("rows", "tables", "pieces"))
    # A folder of documents may hold a few files of rows, but a data set with a README is not a folder of documents.
    if kinds["documents"] > others:
        return "documents"
    if outside := [file for file in listed.skipped if "outside" in file.reason]:
        link = f"{listed.base / outside[0].path} is {outside[0].reason}"
        raise InputError(f"{link} {listed.base}; remove it, or copy the file there")
    if kinds.keys() <= {"rows", "packed"}:
        return "rows"
    if kinds["pieces"] and len({path.parent for path in files}) > 1:
        raise InputError(f"{source} holds the pieces of several files; give the folder of one of them")
    if len(kinds) == 1 and not kinds[""]:
        return next(iter(kinds))
    found = Counter(f"{PIECE}*" if _file_kind(path) == "pieces" else path.suffix or "no suffix" for path in files)
    listed_kinds = ", ".join(f"{count} {suffix}" for suffix, count in sorted(found.items())[:8])
    if kinds.keys() == {""}:
        raise InputError(f"{source} holds no file of a supported kind ({listed_kinds}); give {EXPECTED}")
    raise InputError(f"{source} mixes files of different kinds ({listed_kinds}); give {EXPECTED}, of one kind only")


def _file_kind(path: Path) -> str:
    """Return the kind of a file by its name; "packed" for a .gz file whose name does not reveal the format."""
    if path.name.startswith(PIECE):
        return "pieces"
    packed = path.suffix.lower() == ".gz" and not path.stem.lower().endswith(".jsonl")
    return "packed" if packed else KINDS.get(path.suffix.lower(), "")


def _write_documents(rows: DocumentRows, source: Path, corpus: Path) -> DocumentSurvey:
    with corpus.open("wb") as file:
        file.writelines(rows)
    if not corpus.stat().st_size:
        reasons = "; ".join(f"{file.path}: {file.reason}" for file in rows.survey.skipped[:3])
        raise InputError(f"no document in {source} can be read ({reasons}); give {EXPECTED}")
    return rows.survey


def _write_rows(kind: str, files: Sequence[Path], corpus: Path, progress: Progress) -> None:
    if kind == "rows" and len(files) > 1:
        _merge(files, corpus, progress)
        return
    if kind == "tables":
        content = _parquet_lines(files, progress)
    else:
        total = sum(path.stat().st_size for path in files)
        batches = decompressed_batches(files, lambda done: progress("unpacking", done, total))
        content = (line for lines in batches for line in lines)
    with corpus.open("wb") as file:
        file.writelines(content)


def _parquet_lines(files: Sequence[Path], progress: Progress) -> Iterator[bytes]:
    """Yield the rows of Parquet files as lines, without vectors and raw bytes."""
    from sleuth.corpus import parquet

    total = sum(parquet.count(path) for path in files)
    done = 0
    for path in files:
        schema = parquet.schema(path)
        columns = parquet.text_columns(schema)
        if "id" not in columns or not ("contents" in columns or {"title", "text"} <= set(columns)):
            raise InputError(f"{path} has the columns {', '.join(schema.names)}; expected {PARQUET_COLUMNS}")
        for number, row in enumerate(parquet.rows(path, columns), 1):
            try:
                line = _parquet_line(row)
            except ValueError as error:
                raise InputError(f"{path}, row {number}: {error}; expected {PARQUET_COLUMNS}") from error
            if len(line) > LONGEST_LINE:
                raise line_too_long(path, number)
            yield line
            done += 1
            if done % REPORT_EVERY == 0 or done == total:
                progress("reading tables", done, total)


def _parquet_line(row: dict[str, Any]) -> bytes:
    """Encode a row as a line; missing contents are made from title and text, and NaN becomes null."""
    name = row.pop("id")
    if not isinstance(name, str | int) or isinstance(name, bool) or name == "":
        raise ValueError(f'"id" is {name!r}')
    if "contents" not in row:
        title, text = row["title"], row.pop("text")
        both = isinstance(title, str) and isinstance(text, str)
        row["contents"] = f'"{" ".join(title.split())}"\n{text}' if both else text
    contents = row.pop("contents")
    if not isinstance(contents, str):
        raise ValueError(f'"contents" is {contents!r}')
    row = {"id": str(name), "contents": contents, **row}
    try:
        return json.dumps(row, ensure_ascii=False, allow_nan=False, default=str).encode() + b"\n"
    except ValueError:
        finite = json.loads(json.dumps(row, default=str), parse_constant=lambda _: None)
        return json.dumps(finite, ensure_ascii=False).encode() + b"\n"


def _merge(files: Sequence[Path], out: Path, progress: Progress) -> None:
    """Merge JSONL files, keeping the first row of each id; raise InputError if rows with the same id differ."""
    hashes = bytearray()
    ends: list[int] = []
    sizes = [path.stat().st_size for path in files]
    with out.open("wb") as file:
        for path, before in zip(files, accumulate(sizes, initial=0), strict=False):

            def report(done: int, before: int = before) -> None:
                progress("merging", before + done, sum(sizes))

            lines = (line for batch in decompressed_batches([path], report) for line in batch)
            for line, passage in parse_lines(path, lines):
                file.write(line.rstrip(b"\r\n") + b"\n")
                hashes += _hash(passage)
            ends.append(len(hashes) // HASHES.itemsize)
    repeated = _repeated_rows(np.frombuffer(hashes, HASHES), files, ends)
    if repeated:
        with atomic_write(out) as shorter, out.open("rb") as rows, shorter.open("wb") as file:
            file.writelines(line for row, line in enumerate(rows) if row not in repeated)


def _hash(passage: Passage) -> bytes:
    folded = " ".join(passage.contents.casefold().split())
    name = hashlib.blake2b(passage.id.encode(), digest_size=16)
    return name.digest() + hashlib.blake2b(folded.encode(), digest_size=8).digest()


def _repeated_rows(hashes: NDArray[np.void], files: Sequence[Path], ends: list[int]) -> set[int]:
    """Return the rows whose id occurs in an earlier row; raise InputError if their contents differ."""

    def describe(row: int) -> str:
        number = int(np.searchsorted(ends, row, "right"))
        return f"passage {row - (ends[number - 1] if number else 0) + 1} of {files[number]}"

    order = np.lexsort((hashes["low"], hashes["high"]))
    ordered = hashes[order]
    earlier, later = ordered[:-1], ordered[1:]
    same = (earlier["high"] == later["high"]) & (earlier["low"] == later["low"])
    different = same & (earlier["contents"] != later["contents"])
    if different.any():
        place = int(np.argmax(different))
        first, second = (describe(int(order[each])) for each in (place, place + 1))
        raise InputError(
            f"{first} and {second} have the same id and different contents; give every passage a unique id"
        )
    return set(order[1:][same].tolist())
