"""The words of token ids: the tokenizer in the folder of a run, read without the model or a library for models."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from tokenizers import Tokenizer

from sleuth.errors import InputError
from sleuth.runs.run import STEP
from sleuth.view.roots import Root, Shown

TOKENIZER = "tokenizer.json"
LOOKBACK = 4  # tokens before one that decide how it reads: whether a space stands before it, say
PIECES = 8  # more tokens than any character has bytes
BROKEN = "\ufffd"
HELD = 3  # tokenizers in memory; one of a large model takes tens of megabytes

Key = tuple[str, int, int]


@dataclass(slots=True)
class Vocabularies:
    """The tokenizers used last; `otherwise` is the one for folders that hold none."""

    otherwise: Shown | None = None
    _held: "OrderedDict[Key, Tokenizer]" = field(default_factory=OrderedDict)
    _lock: Lock = field(default_factory=Lock)

    def of(self, shown: Shown) -> Tokenizer | None:
        """The tokenizer of a run's newest checkpoint; None where there is none, or none that can be read."""
        for folder, name in self._places(shown):
            path = folder.there(name)
            if path is not None:
                stat = path.stat()
                return self._read((str(path), stat.st_ino, stat.st_mtime_ns))
        return None

    def _places(self, shown: Shown) -> list[tuple[Shown, str]]:
        steps = sorted(int(match[1]) for each in shown.names("checkpoints") if (match := STEP.fullmatch(each.name)))
        places = [(shown, f"checkpoints/step-{step}/{TOKENIZER}") for step in reversed(steps)]
        return [*places, *([] if self.otherwise is None else [(self.otherwise, TOKENIZER)])]

    def _read(self, key: Key) -> Tokenizer | None:
        with self._lock:
            if key not in self._held:
                try:
                    self._held[key] = Tokenizer.from_file(key[0])
                # The library raises plain exceptions for a file that it cannot read.
                except Exception:
                    return None
                while len(self._held) > HELD:
                    self._held.popitem(last=False)
            self._held.move_to_end(key)
            return self._held[key]


def named(folder: Path) -> Shown:
    """A folder with a tokenizer that whoever started the viewer names."""
    if not (folder / TOKENIZER).is_file():
        raise InputError(f"{folder} holds no {TOKENIZER}; give the folder of a model that has one with --tokenizer")
    try:
        Tokenizer.from_file(str(folder / TOKENIZER))
    except Exception as error:  # the library raises plain ones
        raise InputError(
            f"{folder / TOKENIZER} cannot be read ({error}); give another folder with --tokenizer"
        ) from error
    path = folder.resolve()
    return Shown(path.name, path, Root(path.name, path))


def decoded(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """The text of ids with special tokens shown, as the model read it."""
    return str(tokenizer.decode(list(ids), skip_special_tokens=False))


def pieces(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """What each token adds to the text; of tokens that share a character the last has it, the others are empty."""
    texts: list[str] = []
    first = 0
    for place in range(len(ids)):
        context = max(0, first - LOOKBACK)
        before = decoded(tokenizer, ids[context:first])
        added = decoded(tokenizer, ids[context : place + 1])[len(before) :]
        if added.endswith(BROKEN) and place - first < PIECES and place + 1 < len(ids):
            texts.append("")
            continue
        texts.append(added)
        first = place + 1
    return texts
