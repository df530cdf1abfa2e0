"""Corpus sources: JSONL, Parquet or documents, converted to one uncompressed JSONL file with random access."""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sleuth.corpus.chunks import WORDS, passages
from sleuth.corpus.documents import READERS, read_document
from sleuth.corpus.jsonl import LONGEST_LINE, decompressed_batches, line_too_long
from sleuth.corpus.passages import parse_lines
from sleuth.corpus.progress import Progress, silent
from sleuth.errors import InputError
from sleuth.records import Passage
from sleuth.runs.atomic import atomic_write
from sleuth.runs.json_files import read_json

CORPUS = "corpus.jsonl"
ORIGIN = "source.json"  # fingerprint of the source of corpus.jsonl, so that a resumed build can reuse it
EXPECTED = (
    f"JSONL (.jsonl, .jsonl.gz, pieces named part_*), Parquet (.parquet), or documents ({', '.join(READERS)}), "
    "as a file, a folder or a pattern such as 'wiki/*.jsonl'"
)
PARQUET_COLUMNS = 'the columns "id" and "contents", or "id", "title" and "text"'
PIECE = "part_"
KINDS = {".jsonl": "rows", ".gz": "rows", ".parquet": "tables", **dict.fromkeys(READERS, "documents")}
REPORT_EVERY = 1024  # Parquet rows between progress reports
# Hashes of ids and contents, so that merging needs 24 bytes of memory per passage.
HASHES = np.dtype([("high", "<u8"), ("low", "<u8"), ("contents", "<u8")])


@dataclass(frozen=True, slots=True)
class CorpusFile:
    """An uncompressed JSONL corpus; `skipped` names the documents that could not be read, and why."""

    path: Path
    skipped: tuple[str, ...] = ()


def plain_corpus(source: Path, folder: Path, progress: Progress = silent, words: int = WORDS) -> CorpusFile:
    """Return the corpus of a source: an uncompressed JSONL file as it is, any other source converted into `folder`.

    Documents are cut into passages of `words` words. A corpus already made from the same files is reused.
    """
    files = files_of(source)
    kind = _kind(source, files)
    if kind == "rows" and len(files) == 1 and files[0].suffix.lower() == ".jsonl":
        return CorpusFile(files[0])
    digest = hashlib.sha256(f"{words}".encode())
    for path in files:
        status = path.stat()
        digest.update(os.fsencode(path.resolve()) + f"\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    origin = digest.hexdigest()
    finished = _find_finished(folder, origin)
    if finished is not None:
        return finished
    with atomic_write(folder / CORPUS) as corpus:
        skipped = _write(kind, source, files, corpus, progress, words)
        size = corpus.stat().st_size
    with atomic_write(folder / ORIGIN) as path:
        path.write_text(json.dumps({"origin": origin, "bytes": size, "skipped": skipped}), encoding="utf-8")
    return CorpusFile(folder / CORPUS, tuple(skipped))


def _find_finished(folder: Path, origin: str) -> CorpusFile | None:
    """Return the corpus that was already made from the same files, if it is unchanged."""
    corpus, record = folder / CORPUS, folder / ORIGIN
    if not corpus.is_file() or not record.is_file():
        return None
    try:
        made = read_json(record)
    except InputError:
        return None
    same = made.get("origin") == origin and made.get("bytes") == corpus.stat().st_size
    return CorpusFile(corpus, tuple(made["skipped"])) if same else None


def files_of(source: Path) -> list[Path]:
    """List the files of a source by name, without hidden files; raise InputError if there are none."""
    if source.is_dir():
        files = _require_inside(source, (path for path in _walk(source) if path.is_file()))
    elif source.is_file():
        files = [source]
    elif source.exists():
        raise InputError(f"{source} is neither a file nor a folder; give {EXPECTED}")
    else:
        files = _matching(source.parent, source.name)
    if not files:
        problem = "holds no files" if source.is_dir() else "does not exist"
        raise InputError(f"{source} {problem}; give {EXPECTED}")
    if files == [source] and source.name.startswith(PIECE):
        files = _matching(source.parent, f"{PIECE}*")
    return sorted(files, key=_sort_key)


def _matching(folder: Path, pattern: str) -> list[Path]:
    inside = folder.iterdir() if folder.is_dir() else ()
    named = (path for path in inside if fnmatchcase(path.name, pattern) and path.name[0] != "." and path.is_file())
    return _require_inside(folder, named)


def _require_inside(folder: Path, paths: Iterable[Path]) -> list[Path]:
    """Return the paths; raise InputError for a link to a file outside of the folder, whose contents could be served."""
    found = list(paths)
    root = folder.resolve()
    # Files of the Hub's cache are links to a sibling of their snapshot folder.
    blobs = [each.parent / "blobs" for each in (root, *root.parents) if each.name == "snapshots"]
    for path in found:
        target = path.resolve() if path.is_symlink() else root
        if not any(target.is_relative_to(each) for each in (root, *blobs)):
            raise InputError(f"{path} is a link to {target}, outside of {folder}; remove it, or copy the file there")
    return found


def _walk(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(parent, name) for name in names if not name.startswith("."))


def _sort_key(path: Path) -> tuple[str, int]:
    """Sort key: by name, with numbered pieces in numeric order."""
    number = path.name.removeprefix(PIECE)
    numbered = number != path.name and number.isdecimal()
    return (path.parent.as_posix(), int(number)) if numbered else (path.as_posix(), -1)


def _kind(source: Path, files: Sequence[Path]) -> str:
    """Return the kind of the files; raise InputError if they are unknown or do not belong together."""
    kinds = Counter(_file_kind(path) for path in files)
    if kinds["documents"] and kinds.keys() <= {"documents", "packed", ""}:
        return "documents"
    if kinds.keys() <= {"rows", "packed"}:
        return "rows"
    if kinds["pieces"] and len({path.parent for path in files}) > 1:
        raise InputError(f"{source} holds the pieces of several files; give the folder of one of them")
    if len(kinds) == 1 and not kinds[""]:
        return next(iter(kinds))
    found = Counter(f"{PIECE}*" if _file_kind(path) == "pieces" else path.suffix or "no suffix" for path in files)
    listed = ", ".join(f"{count} {suffix}" for suffix, count in sorted(found.items())[:8])
    raise InputError(f"{source} mixes files of different kinds ({listed}); give {EXPECTED}, of one kind only")


def _file_kind(path: Path) -> str:
    """Return the kind of a file by its name; "packed" for a .gz file whose name does not reveal the format."""
    if path.name.startswith(PIECE):
        return "pieces"
    packed = path.suffix.lower() == ".gz" and not path.stem.lower().endswith(".jsonl")
    return "packed" if packed else KINDS.get(path.suffix.lower(), "")


def _write(kind: str, source: Path, files: list[Path], corpus: Path, progress: Progress, words: int) -> list[str]:
    """Write the corpus; return the documents that were skipped."""
    skipped: list[str] = []
    match kind:
        case "rows" if len(files) > 1:
            _merge(files, corpus, progress)
            return skipped
        case "documents":
            base = source if source.is_dir() else source.parent
            content = _document_lines(files, base, skipped, progress, words)
        case "tables":
            content = _parquet_lines(files, progress)
        case _:
            total = sum(path.stat().st_size for path in files)
            batches = decompressed_batches(files, lambda done: progress("unpacking", done, total))
            content = (line for lines in batches for line in lines)
    with corpus.open("wb") as file:
        file.writelines(content)
    if kind == "documents" and not corpus.stat().st_size:
        raise InputError(f"no document in {source} can be read ({'; '.join(skipped[:3])}); give {EXPECTED}")
    return skipped


def _document_lines(
    files: Sequence[Path], base: Path, skipped: list[str], progress: Progress, words: int
) -> Iterator[bytes]:
    """Yield the passages of all documents as lines; unreadable documents are added to `skipped`."""
    others = Counter(path.suffix or "no suffix" for path in files if _file_kind(path) != "documents")
    skipped.extend(f"{count} {suffix}: not a supported kind of document" for suffix, count in sorted(others.items()))
    files = [path for path in files if _file_kind(path) == "documents"]
    for done, path in enumerate(files):
        progress("reading documents", done, len(files))
        # Escape bytes of a file name that are not valid UTF-8.
        name = os.fsencode(path.relative_to(base).as_posix()).decode("utf-8", "backslashreplace")
        try:
            document = read_document(path, name)
        except ValueError as error:
            skipped.append(f"{name}: {error}")
            continue
        for passage in passages(document, words):
            row = {"id": passage.id, "contents": passage.contents, **passage.extra}
            yield json.dumps(row, ensure_ascii=False).encode() + b"\n"
    progress("reading documents", len(files), len(files))


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
