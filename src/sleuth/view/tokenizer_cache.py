"""Tokenizers of runs, loaded with the tokenizers library alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer

from sleuth.errors import InputError
from sleuth.runs.run import STEP
from sleuth.view.folders import Root, ViewedFolder

TOKENIZER = "tokenizer.json"
CONTEXT = 4  # preceding tokens that may affect how a token decodes, such as by a leading space
MAX_PIECES = 8  # more tokens than a character has bytes
INCOMPLETE = "\ufffd"
CACHED = 3  # tokenizers of large models take tens of megabytes


@dataclass(frozen=True, slots=True)
class TokenizerCache:
    """Tokenizers by folder; `fallback` is for folders without one."""

    fallback: ViewedFolder | None = None

    def load(self, folder: ViewedFolder) -> Tokenizer | None:
        """Tokenizer of the newest checkpoint, or the fallback; None if missing or unreadable."""
        entries = folder.entries("checkpoints")
        steps = sorted((int(match[1]) for each in entries if (match := STEP.fullmatch(each.name))), reverse=True)
        paths = [folder.find(f"checkpoints/step-{step}/{TOKENIZER}") for step in steps]
        if self.fallback is not None:
            paths.append(self.fallback.find(TOKENIZER))
        path = next((path for path in paths if path is not None), None)
        if path is None:
            return None
        stat = path.stat()
        return _read_tokenizer(str(path), stat.st_ino, stat.st_mtime_ns)


@lru_cache(maxsize=CACHED)
def _read_tokenizer(path: str, inode: int, changed: int) -> Tokenizer | None:  # noqa: ARG001  cache key
    try:
        return Tokenizer.from_file(path)
    except Exception:  # the library raises plain exceptions
        return None


def tokenizer_folder(folder: Path) -> ViewedFolder:
    """Folder given with --tokenizer; raise InputError if its tokenizer is missing or unreadable."""
    if not (folder / TOKENIZER).is_file():
        raise InputError(f"{folder} has no {TOKENIZER}; give the folder of a model that has one with --tokenizer")
    try:
        Tokenizer.from_file(str(folder / TOKENIZER))
    except Exception as error:  # the library raises plain exceptions
        raise InputError(
            f"{folder / TOKENIZER} cannot be read ({error}); give another folder with --tokenizer"
        ) from error
    path = folder.resolve()
    return ViewedFolder(path.name, path, Root(path.name, path))


def decode(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Text with special tokens."""
    return str(tokenizer.decode(list(ids), skip_special_tokens=False))


def token_texts(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Text that each token adds; of tokens that share a character, the last one has it."""
    texts: list[str] = []
    first = 0
    for place in range(len(ids)):
        context = max(0, first - CONTEXT)
        before = decode(tokenizer, ids[context:first])
        added = decode(tokenizer, ids[context : place + 1])[len(before) :]
        if added.endswith(INCOMPLETE) and place - first < MAX_PIECES and place + 1 < len(ids):
            texts.append("")
            continue
        texts.append(added)
        first = place + 1
    return texts
