"""Public question sets, corpora and indexes: a catalogue by name, and download into the data folder."""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from shlex import quote
from typing import BinaryIO

from sleuth import hub
from sleuth.corpus.progress import Progress, silent
from sleuth.errors import InputError
from sleuth.runs.atomic import explain_write_errors
from sleuth.runs.lock import acquire

FLASHRAG = "RUC-NLPIR/FlashRAG_datasets"
ASEARCHER = "inclusionAI/ASearcher-Local-Knowledge"
FOLDER, FOLDER_VARIABLE = Path("data"), "SLEUTH_DATA"
PARTIAL = ".partial"
RESERVE = 1 << 30  # bytes of disk space to leave free
BLOCK = 1 << 20
IGNORED = (".gitattributes", "README.md")


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """A set of questions: the file of each part, and the part that Search-R1 evaluates on."""

    repo: str
    parts: dict[str, str]
    test_part: str


@dataclass(frozen=True, slots=True)
class Collection:
    """Files of a data set on the Hub, as patterns; `joined` is the file into which pieces are concatenated."""

    repo: str
    patterns: tuple[str, ...]
    joined: str | None = None


def _flashrag(name: str, *parts: str) -> QuestionSet:
    """Describe a FlashRAG set; the test part is dev if the test answers are not public."""
    test_part = "test" if "test" in parts else "dev"
    return QuestionSet(FLASHRAG, {part: f"{name}/{part}.jsonl" for part in parts}, test_part)


SETS: dict[str, QuestionSet] = {
    "nq": _flashrag("nq", "train", "dev", "test"),
    "triviaqa": _flashrag("triviaqa", "train", "dev", "test"),
    "popqa": _flashrag("popqa", "test"),
    "hotpotqa": _flashrag("hotpotqa", "train", "dev"),
    "2wikimultihopqa": _flashrag("2wikimultihopqa", "train", "dev"),
    "musique": _flashrag("musique", "train", "dev"),
    "bamboogle": _flashrag("bamboogle", "test"),
    "searchr1-train": QuestionSet(
        "PeterJinGo/nq_hotpotqa_train", {"train": "train.parquet", "test": "test.parquet"}, "test"
    ),
}

COLLECTIONS: dict[str, Collection] = {
    "wiki18": Collection("PeterJinGo/wiki-18-corpus", ("wiki-18.jsonl.gz",)),
    "wiki18-e5": Collection("PeterJinGo/wiki-18-e5-index", ("part_aa", "part_ab"), "e5_Flat.index"),
    "wiki18-hnsw": Collection("PeterJinGo/wiki-18-e5-index-HNSW64", ("part_*",), "e5_HNSW64.index"),
    "wiki18-bm25": Collection("PeterJinGo/wiki-18-bm25-index", ("*",)),
    "asearcher": Collection(ASEARCHER, ("wiki_corpus.jsonl", "wiki_webpages.jsonl")),
    "asearcher-e5": Collection(ASEARCHER, ("e5.index/e5_Flat.index",)),
    "rlinf": Collection("RLinf/Search-R1-Data", ("*.jsonl",)),
    "flashrag": Collection(
        FLASHRAG, tuple(path for each in SETS.values() if each.repo == FLASHRAG for path in each.parts.values())
    ),
    **{name: Collection(each.repo, tuple(each.parts.values())) for name, each in SETS.items()},
}


def part_of(name: str, split: str) -> str:
    """Return the part of a set for a split; `test` is the part that Search-R1 evaluates on."""
    known = SETS[name]
    part = known.test_part if split == "test" else split
    if part not in known.parts:
        raise InputError(f"{name} has no {split} part; choose one of {', '.join(known.parts)} with --split")
    return part


def find_collection(name: str) -> Collection:
    """Return the collection of that name; raise InputError if there is none."""
    if name not in COLLECTIONS:
        raise InputError(f"{name!r} is not a known download; expected one of {', '.join(COLLECTIONS)}")
    return COLLECTIONS[name]


def data_folder() -> Path:
    """Return the absolute folder of public files: SLEUTH_DATA, or the default."""
    return Path(os.environ.get(FOLDER_VARIABLE) or FOLDER).absolute()


def question_file(name: str, split: str, folder: Path = FOLDER, progress: Progress = silent) -> Path:
    """Return a file of a public set, from the data folder (plain or .gz) or downloaded."""
    path = SETS[name].parts[part_of(name, split)]
    return download(Collection(SETS[name].repo, (path,)), folder, progress)[0]


def download(wanted: Collection, folder: Path = FOLDER, progress: Progress = silent) -> list[Path]:
    """Return the files of a collection, in a subfolder named after its repository; download missing files.

    The Hub is not contacted if all files are present. Complete sets of pieces are joined.
    """
    present = _find_present(wanted, folder, progress)
    if present is not None:
        return present
    alternative = _alternative(wanted, folder)
    downloads = _plan(wanted, folder, hub.list_dataset(wanted.repo, alternative))
    missing = [each for each in downloads if not each.target.exists()]
    _require_space(wanted.repo, missing, folder)
    for each in missing:
        each.run(wanted.repo, progress, alternative)
    return [each.target for each in downloads]


@dataclass(frozen=True, slots=True)
class _Download:
    """A file to write, and the Hub files to concatenate into it."""

    target: Path
    pieces: tuple[hub.HubFile, ...]

    @property
    def missing_bytes(self) -> int:
        size = sum(piece.size for piece in self.pieces)
        partial = _partial(self.target)
        return size - (min(partial.stat().st_size, size) if partial.exists() else 0)

    def run(self, repo: str, progress: Progress, alternative: str) -> None:
        """Download the pieces one after the other into the target, resuming an interrupted download."""
        self.target.parent.mkdir(parents=True, exist_ok=True)
        total, start = sum(piece.size for piece in self.pieces), 0
        with _complete_atomically(self.target, total) as file:
            for piece in self.pieces:

                def report(stage: str, done: int, start: int = start) -> None:
                    progress(f"{stage} {self.target.name}", start + done, total)

                hub.download_file(repo, piece, file, start, report, alternative)
                start += piece.size


def _partial(target: Path) -> Path:
    return target.with_name(target.name + PARTIAL)


@contextmanager
def _complete_atomically(target: Path, size: int) -> Iterator[BinaryIO]:
    """Yield the locked partial file of `target`, and rename it when `size` bytes are complete; keep it on errors."""
    partial = _partial(target)

    def keep_content(path: str, _: int) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)

    with explain_write_errors(target), open(partial, "r+b", opener=keep_content) as file:
        acquire(file, f"another process is downloading {target}; wait for it, or end it first")
        yield file
        file.truncate(size)
        file.flush()
        os.fsync(file.fileno())
        partial.replace(target)


def _find_present(wanted: Collection, folder: Path, progress: Progress) -> list[Path] | None:
    """Return the files of a collection if all are in the data folder, joining pieces; None if any may be missing."""
    home = folder / wanted.repo

    def find(name: str) -> Path | None:
        return next((path for path in (home / name, home / f"{name}.gz") if path.is_file()), None)

    if wanted.joined is None:
        found = [path for name in wanted.patterns if (path := find(name)) is not None]
        return found if len(found) == len(wanted.patterns) else None
    if (whole := find(wanted.joined)) is not None:
        return [whole]
    pieces = [home / name for name in wanted.patterns]
    return [_join(pieces, home / wanted.joined, progress)] if all(path.is_file() for path in pieces) else None


def _join(pieces: Sequence[Path], target: Path, progress: Progress) -> Path:
    """Concatenate pieces that the user put into the data folder, keeping the pieces."""
    size = sum(piece.stat().st_size for piece in pieces)
    needed = size - (_partial(target).stat().st_size if _partial(target).exists() else 0)
    free = shutil.disk_usage(target.parent).free
    if needed + RESERVE > free:
        first, *others = (quote(piece.name) for piece in pieces)
        steps = [f"cat {each} >> {first} && rm {each}" for each in others]
        command = " && ".join([f"cd {quote(str(target.parent))}", *steps, f"mv {first} {quote(target.name)}"])
        raise InputError(
            f"{target} cannot be joined from its pieces: that needs {needed / 1e9:,.1f} GB plus {RESERVE / 1e9:,.1f} "
            f"GB in reserve, and {free / 1e9:,.1f} GB are free; free some space, or append them in place: {command}"
        )
    with _complete_atomically(target, size) as file:
        for piece in pieces:
            with piece.open("rb") as source:
                while block := source.read(BLOCK):
                    file.write(block)
                    progress(f"joining {target.name}", file.tell(), size)
    return target


def _plan(wanted: Collection, folder: Path, files: Sequence[hub.HubFile]) -> list[_Download]:
    """Match files on the Hub with the patterns of a collection; raise InputError if a pattern matches none."""
    home = folder / wanted.repo
    matches = {name: [file for file in files if _is_match(file.path, name)] for name in wanted.patterns}
    if absent := next((name for name, found in matches.items() if not found), None):
        listed = ", ".join(file.path for file in files[:5]) or "nothing"
        more = f" and {len(files) - 5} more" if len(files) > 5 else ""
        raise InputError(f"{wanted.repo} no longer has a file {absent}; it has {listed}{more}")
    chosen = [file for file in files if any(file in found for found in matches.values())]
    if wanted.joined is None:
        return [_Download(home / file.path, (file,)) for file in chosen]
    # Shorter names first: part_9 comes before part_10.
    return [_Download(home / wanted.joined, tuple(sorted(chosen, key=lambda file: (len(file.path), file.path))))]


def _is_match(path: str, pattern: str) -> bool:
    # Refuse a path outside of the folder: the server's file names are not trusted.
    inside = ".." not in Path(path).parts and not Path(path).is_absolute()
    return inside and path not in IGNORED and fnmatchcase(path, pattern)


def _require_space(repo: str, missing: Sequence[_Download], folder: Path) -> None:
    """Raise InputError before a download that the disk cannot hold."""
    needed = sum(each.missing_bytes for each in missing)
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if needed and needed + RESERVE > free:
        raise InputError(
            f"{repo} needs {needed / 1e9:,.1f} GB plus {RESERVE / 1e9:,.1f} GB in reserve, and {existing} has "
            f"{free / 1e9:,.1f} GB free; free some space, or choose another folder with --folder or {FOLDER_VARIABLE}"
        )


def _alternative(wanted: Collection, folder: Path) -> str:
    """Explain how to provide the files manually: the repository to copy from, and the path to copy to."""
    home = folder / wanted.repo
    names = " and ".join(wanted.patterns)
    if wanted.joined:
        place = f"the joined pieces (cat part_* > {wanted.joined}) at {home / wanted.joined}"
    else:
        place = "it at " + " and ".join(str(home / name) for name in wanted.patterns)
    address = f"https://huggingface.co/datasets/{wanted.repo}"
    return f"run the command again to resume, or get {names} from {address} and put {place}"
