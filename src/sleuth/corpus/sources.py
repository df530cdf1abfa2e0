"""Where a corpus comes from: any source becomes one plain JSONL file, whose rows can be read in any order."""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from sleuth.corpus.chunks import WORDS, passages
from sleuth.corpus.documents import READERS, read_document
from sleuth.corpus.merging import merge
from sleuth.corpus.pieces import unpacked
from sleuth.corpus.progress import Progress, silent
from sleuth.errors import InputError
from sleuth.runs.atomic import atomic_write
from sleuth.runs.json_files import read_json

CORPUS = "corpus.jsonl"
ORIGIN = "source.json"  # what corpus.jsonl was made of, so that a build that was stopped does not make it again
EXPECTED = (
    f"JSONL (.jsonl, .jsonl.gz, pieces named part_*), Parquet (.parquet), or documents ({', '.join(READERS)}), "
    "as a file, a folder or a pattern such as 'wiki/*.jsonl'"
)
PIECE = "part_"
KINDS = {".jsonl": "rows", ".gz": "rows", ".parquet": "tables", **dict.fromkeys(READERS, "documents")}


@dataclass(frozen=True, slots=True)
class Plain:
    """A corpus with random access; `skipped` names what could not be read of a folder of documents, and why."""

    corpus: Path
    skipped: tuple[str, ...] = ()


def plain(source: Path, folder: Path, progress: Progress = silent, words: int = WORDS) -> Plain:
    """The corpus of any source: a plain JSONL file as it is, anything else written to corpus.jsonl in `folder`.

    Documents are cut into passages of `words` words. The file appears when it is whole; made before from the same
    files, it is used again.
    """
    files = files_of(source)
    kind = _kind(source, files)
    if kind == "rows" and len(files) == 1 and files[0].suffix.lower() == ".jsonl":
        return Plain(files[0])
    origin = _origin(files, words)
    finished = _finished(folder, origin)
    if finished is not None:
        return finished
    with atomic_write(folder / CORPUS) as corpus:
        skipped = _write(kind, source, files, corpus, progress, words)
        size = corpus.stat().st_size
    with atomic_write(folder / ORIGIN) as path:
        path.write_text(json.dumps({"origin": origin, "bytes": size, "skipped": skipped}), encoding="utf-8")
    return Plain(folder / CORPUS, tuple(skipped))


def files_of(source: Path) -> list[Path]:
    """The files of a source in the order of their names; hidden ones are none of its."""
    if source.is_dir():
        files = _inside(source, (path for path in _walk(source) if path.is_file()))
    elif source.is_file():
        files = [source]
    elif source.exists():
        raise InputError(f"{source} is neither a file nor a folder; give {EXPECTED}")
    else:
        files = _matching(source.parent, source.name)
    if not files:
        fault = "holds no files" if source.is_dir() else "does not exist"
        raise InputError(f"{source} {fault}; give {EXPECTED}")
    if files == [source] and source.name.startswith(PIECE):
        files = _matching(source.parent, f"{PIECE}*")
    return sorted(files, key=_place)


def _matching(folder: Path, pattern: str) -> list[Path]:
    inside = folder.iterdir() if folder.is_dir() else ()
    named = (path for path in inside if fnmatchcase(path.name, pattern) and path.name[0] != "." and path.is_file())
    return _inside(folder, named)


def _inside(folder: Path, paths: Iterable[Path]) -> list[Path]:
    """The paths, none of which may be a link that leads out of the folder: what it holds may be served to others."""
    found = list(paths)
    root = folder.resolve()
    # Files of the hub's cache are links into a folder beside their snapshot.
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


def _place(path: Path) -> tuple[str, int]:
    """Where a file comes among others: by name, and numbered pieces by their number."""
    number = path.name.removeprefix(PIECE)
    numbered = number != path.name and number.isdecimal()
    return (path.parent.as_posix(), int(number)) if numbered else (path.as_posix(), -1)


def _kind(source: Path, files: Sequence[Path]) -> str:
    """What the files are; those that do not go together, and unknown ones, are an InputError."""
    kinds = Counter(_kind_of(path) for path in files)
    if kinds["documents"] and kinds.keys() <= {"documents", "packed", ""}:
        return "documents"
    if kinds.keys() <= {"rows", "packed"}:
        return "rows"
    if kinds["pieces"] and len({path.parent for path in files}) > 1:
        raise InputError(f"{source} holds the pieces of several files; give the folder of one of them")
    if len(kinds) == 1 and not kinds[""]:
        return next(iter(kinds))
    found = Counter(f"{PIECE}*" if _kind_of(path) == "pieces" else path.suffix or "no ending" for path in files)
    listed = ", ".join(f"{count} {ending}" for ending, count in sorted(found.items())[:8])
    raise InputError(f"{source} holds files that make no corpus together ({listed}); give {EXPECTED}, of one kind only")


def _kind_of(path: Path) -> str:
    """What a file is by its name; a .gz that does not say what is in it may be anything."""
    if path.name.startswith(PIECE):
        return "pieces"
    packed = path.suffix.lower() == ".gz" and not path.stem.lower().endswith(".jsonl")
    return "packed" if packed else KINDS.get(path.suffix.lower(), "")


def _write(kind: str, source: Path, files: list[Path], corpus: Path, progress: Progress, words: int) -> list[str]:
    """Writes the corpus; returns what was skipped."""
    skipped: list[str] = []
    match kind:
        case "rows" if len(files) > 1:
            merge(files, corpus, progress)
            return skipped
        case "documents":
            base = source if source.is_dir() else source.parent
            content = _documents(files, base, skipped, progress, words)
        case "tables":
            from sleuth.corpus.parquet import parquet_lines

            content = parquet_lines(files, progress)
        case _:
            content = unpacked(files, progress)
    with corpus.open("wb") as file:
        file.writelines(content)
    if kind == "documents" and not corpus.stat().st_size:
        raise InputError(f"nothing in {source} can be read ({'; '.join(skipped[:3])}); give {EXPECTED}")
    return skipped


def _documents(
    files: Sequence[Path], base: Path, skipped: list[str], progress: Progress, words: int
) -> Iterator[bytes]:
    """The passages of every document as lines; what cannot be read is named in `skipped`."""
    others = Counter(path.suffix or "no ending" for path in files if _kind_of(path) != "documents")
    skipped.extend(f"{count} {ending}: not a kind of document that is read" for ending, count in sorted(others.items()))
    files = [path for path in files if _kind_of(path) == "documents"]
    for done, path in enumerate(files):
        progress("reading documents", done, len(files))
        # A name that is not UTF-8 has its odd bytes spelled out.
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


def _origin(files: Sequence[Path], words: int) -> str:
    """What names these files in their present state."""
    digest = hashlib.sha256(f"{words}".encode())
    for path in files:
        status = path.stat()
        digest.update(os.fsencode(path.resolve()) + f"\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return digest.hexdigest()


def _finished(folder: Path, origin: str) -> Plain | None:
    """The corpus made from the same files before, if it is still there."""
    corpus, record = folder / CORPUS, folder / ORIGIN
    if not corpus.is_file() or not record.is_file():
        return None
    try:
        made = read_json(record)
    except InputError:  # it is made again
        return None
    same = made.get("origin") == origin and made.get("bytes") == corpus.stat().st_size
    return Plain(corpus, tuple(made["skipped"])) if same else None
