"""Readers for JSON lines of bounded length, from plain, gzip and split files."""

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import BufferedReader, BytesIO, RawIOBase
from itertools import count
from pathlib import Path
from reprlib import repr as shorten
from typing import IO, Any, BinaryIO, cast

from sleuth.errors import InputError

LONGEST_LINE = 32 * 2**20  # bytes or characters; a small compressed file can hold a line that fills the memory
BLOCK = 1 << 20
GZIP = b"\x1f\x8b"
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # JSON escape of half a surrogate pair
SURROGATE_BYTES = re.compile(SURROGATE.pattern.encode())


def line_batches(file: BinaryIO, path: Path, size: int = BLOCK) -> Iterator[list[bytes]]:
    """Yield the lines of a file in batches of about `size` bytes; raise InputError for a line that is too long."""
    number = 1
    while block := file.read(size):
        if not block.endswith(b"\n"):
            block += file.readline(LONGEST_LINE + 1)
        lines = BytesIO(block).readlines()
        for place, line in enumerate(lines):
            if len(line) > LONGEST_LINE:
                raise line_too_long(path, number + place)
        number += len(lines)
        yield lines


def line_too_long(path: Path, number: int) -> InputError:
    return InputError(f"{path}, line {number} is longer than the limit of {LONGEST_LINE >> 20} MiB; split it")


@contextmanager
def _explain_read_errors(name: str, remedy: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"{name} does not exist; {remedy}") from None
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise InputError(f"{name} cannot be read ({error}); {remedy}") from error


def corpus_batches(path: Path, name: Path | None = None, size: int = BLOCK) -> Iterator[list[bytes]]:
    """Yield the lines of a corpus, plain or .gz, in batches; error messages call the corpus `name`."""
    called = name or path
    opener = gzip.open if path.suffix == ".gz" else open
    with _explain_read_errors(f"the corpus {called}", "give a JSONL file of passages"), opener(path, "rb") as file:
        yield from line_batches(cast(BinaryIO, file), called, size)


def open_text(path: Path, mode: str) -> IO[str]:
    """Open a UTF-8 text file, through gzip if its name ends in .gz; a byte order mark is skipped."""
    encoding = "utf-8-sig" if mode == "r" else "utf-8"
    if path.suffix == ".gz":
        return gzip.open(path, f"{mode}t", encoding=encoding)  # type: ignore[return-value]
    return path.open(mode, encoding=encoding)


def text_lines(path: Path, noun: str) -> Iterator[str]:
    """Yield the lines of a text file, plain or .gz, with bounded length; error messages call the file `noun`."""
    with _explain_read_errors(f"the {noun} {path}", "give a JSONL file in UTF-8"), open_text(path, "r") as file:
        for number in count(1):
            line = file.readline(LONGEST_LINE + 1)
            if not line:
                return
            if len(line) > LONGEST_LINE:
                raise line_too_long(path, number)
            yield line


def parse_question_line(text: str) -> dict[str, Any]:
    """Parse a JSON object, replacing lone surrogates with question marks; raise ValueError for anything else."""
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"not JSON: {text.strip()[:60]!r}") from None
    if not isinstance(row, dict):
        raise ValueError(f"expected a JSON object, found {text.strip()[:60]!r}")
    if not SURROGATE.search(text):
        return row
    cleaned: dict[str, Any] = _replace_surrogates(row)
    return cleaned


def replace_surrogates(text: str) -> str:
    return text.encode(errors="replace").decode()


def _replace_surrogates(value: Any) -> Any:
    match value:
        case str():
            return replace_surrogates(value)
        case list():
            return [_replace_surrogates(inner) for inner in value]
        case dict():
            return {replace_surrogates(key): _replace_surrogates(inner) for key, inner in value.items()}
        case _:
            return value


def parse_corpus_line(line: bytes) -> dict[str, Any]:
    """Parse a JSON object without lone surrogates; raise ValueError for anything else."""
    try:
        row = _parse_json(line)
    except RecursionError as error:
        raise ValueError(f"it is nested too deep ({error})") from error
    if not isinstance(row, dict):
        raise ValueError(f"it holds {shorten(row)}")
    # A lone surrogate is valid JSON but not valid text: tokenizers would reject it later, when it is hard to find.
    if SURROGATE_BYTES.search(line):
        json.dumps(row, ensure_ascii=False).encode()
    return row


def _parse_json(line: bytes) -> Any:
    """Parse UTF-8 JSON twice as fast as `json.loads`, which spends half its time detecting the encoding."""
    try:
        text = line.decode()
        value, end = DECODER.raw_decode(text)
    except ValueError:
        return json.loads(line.strip(), parse_constant=_null)
    # Blank lines belong to the row before them and may contain form feeds, which JSON does not allow as whitespace.
    return value if text[end:] in ("", "\n") else json.loads(line.strip(), parse_constant=_null)


def _null(_: str) -> None:
    """Replace NaN and infinities with null: they are not valid JSON, so a server could not return them."""


DECODER = json.JSONDecoder(parse_constant=_null)


class ConcatenatedFiles(RawIOBase):
    """Files read as one, as `cat` does; `done` is the number of bytes read."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.done = 0
        self._paths = list(reversed(paths))
        self._file: RawIOBase | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while self._file or self._paths:
            if self._file is None:
                self._file = cast(RawIOBase, self._paths.pop().open("rb", buffering=0))
            if size := self._file.readinto(buffer):
                self.done += size
                return size
            self._file.close()
            self._file = None
        return 0

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        super().close()


def decompressed_batches(paths: Sequence[Path], report: Callable[[int], object]) -> Iterator[list[bytes]]:
    """Yield the lines of a file or its pieces in batches; `report` receives the number of bytes read so far."""
    first, last = paths[0], paths[-1]
    name = f"{first}" if len(paths) == 1 else f"{first.parent} ({first.name} to {last.name})"
    errors = _explain_read_errors(name, "get it again, with every piece")
    with errors, ConcatenatedFiles(paths) as files, BufferedReader(files, BLOCK) as buffered:
        # Detected by content: pieces have no .gz suffix.
        packed = first.suffix.lower() == ".gz" or (first.suffix == "" and buffered.peek(2)[:2] == GZIP)
        file = gzip.GzipFile(fileobj=buffered) if packed else buffered
        for lines in line_batches(cast(BinaryIO, file), first):
            yield lines
            report(files.done)
