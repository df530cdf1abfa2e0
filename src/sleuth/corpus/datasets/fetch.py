"""Public files in the data folder: those that lie there are used, the others are fetched from the hub."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import httpx

from sleuth.corpus.datasets import transfer
from sleuth.corpus.datasets.catalogue import SETS, Collection, part_of
from sleuth.corpus.datasets.hub import ENDPOINT, Hub, HubFile
from sleuth.corpus.datasets.pieces import join
from sleuth.corpus.progress import Progress, silent
from sleuth.errors import InputError

FOLDER = Path("data")
SPARE = 1 << 30  # bytes of disk that a download leaves free
ASIDE = (".gitattributes", "README.md")  # what belongs to the hub's page


@dataclass(frozen=True, slots=True)
class Delivery:
    """A file to write, and the files of the hub it is made of."""

    target: Path
    pieces: tuple[HubFile, ...]

    @property
    def size(self) -> int:
        return sum(piece.size for piece in self.pieces)

    @property
    def missing(self) -> int:
        """Bytes that are still to come."""
        partial = self.target.with_name(self.target.name + transfer.PARTIAL)
        return self.size - (min(partial.stat().st_size, self.size) if partial.exists() else 0)


def question_file(name: str, split: str, folder: Path = FOLDER, progress: Progress = silent) -> Path:
    """The file of a public set's part, brought by hand (plain or .gz) or fetched now."""
    path = SETS[name].parts[part_of(name, split)]
    there = _there(folder / SETS[name].hub, path)
    return there or download(Collection(SETS[name].hub, (path,)), folder, progress)[0]


def download(
    wanted: Collection, folder: Path = FOLDER, progress: Progress = silent, pause: float = transfer.PAUSE
) -> list[Path]:
    """The files of a collection in the data folder, under its hub id; nothing is asked of the hub for what is there.

    Pieces that are all there are put together.
    """
    known = _known(wanted, folder, progress)
    if known is not None:
        return known
    hub = Hub()
    try:
        deliveries = _deliveries(wanted, folder, hub.files(wanted.hub))
        ahead = [each for each in deliveries if not each.target.exists()]
        _require_space(wanted.hub, ahead, folder)
        for each in ahead:
            stage, size = f"downloading {each.target.name}", each.size
            transfer.bring(
                hub,
                wanted.hub,
                each.pieces,
                each.target,
                lambda done, stage=stage, size=size: progress(stage, done, size),  # type: ignore[misc]
                pause,
            )
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise InputError(_by_hand(wanted, folder, error)) from error
    finally:
        hub.close()
    return [each.target for each in deliveries]


def _known(wanted: Collection, folder: Path, progress: Progress) -> list[Path] | None:
    """The files of a collection where all are there; none where they must be listed."""
    home = folder / wanted.hub
    if wanted.joined is None:
        found = [path for name in wanted.patterns if (path := _there(home, name)) is not None]
        return found if len(found) == len(wanted.patterns) else None
    if (whole := _there(home, wanted.joined)) is not None:
        return [whole]
    brought = [home / name for name in wanted.patterns]
    if not all(path.is_file() for path in brought):
        return None
    return [join(brought, home / wanted.joined, SPARE, progress)]


def _there(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _deliveries(wanted: Collection, folder: Path, files: Sequence[HubFile]) -> list[Delivery]:
    home = folder / wanted.hub
    chosen = [each for each in files if each.path not in ASIDE and _matches(each.path, wanted.patterns)]
    absent = [name for name in wanted.patterns if not any(_matches(each.path, (name,)) for each in chosen)]
    if absent:
        raise InputError(f"{wanted.hub} has no file {absent[0]} (any more); it has {_listed(files)}")
    if wanted.joined is None:
        return [Delivery(home / each.path, (each,)) for each in chosen]
    # Shorter names first: part_9 comes before part_10.
    pieces = sorted(chosen, key=lambda each: (len(each.path), each.path))
    return [Delivery(home / wanted.joined, tuple(pieces))]


def _matches(path: str, patterns: Sequence[str]) -> bool:
    # What lies outside the folder is no file of a data set, whatever the server says.
    return ".." not in Path(path).parts and not Path(path).is_absolute() and any(fnmatchcase(path, p) for p in patterns)


def _listed(files: Sequence[HubFile], most: int = 5) -> str:
    names = ", ".join(each.path for each in files[:most])
    return (f"{names} and {len(files) - most} more" if len(files) > most else names) or "none"


def _require_space(repository: str, ahead: Sequence[Delivery], folder: Path) -> None:
    """Refuses to begin what the disk cannot hold: hours later is too late."""
    needed = sum(each.missing for each in ahead)
    there = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    free = shutil.disk_usage(there).free
    if needed and needed + SPARE > free:
        raise InputError(
            f"{repository} needs {needed / 1e9:,.1f} GB more and {SPARE / 1e9:,.1f} GB to spare, and {there} has "
            f"{free / 1e9:,.1f} GB free; free some space, or name a folder elsewhere by --folder or SLEUTH_DATA"
        )


def _by_hand(wanted: Collection, folder: Path, error: httpx.HTTPError | httpx.InvalidURL) -> str:
    """What to do where the hub cannot be asked: which file from which id, and where it is looked for."""
    home = folder / wanted.hub
    names = " and ".join(wanted.patterns)
    if wanted.joined:
        place = f"the pieces together (cat part_* > {wanted.joined}) at {home / wanted.joined}"
    else:
        place = "it at " + " and ".join(str(home / name) for name in wanted.patterns)
    closed = isinstance(error, httpx.HTTPStatusError) and error.response.status_code in (401, 403)
    return (
        f"{names} of the data set {wanted.hub} cannot be fetched ({transfer.reason(error)}); get it from "
        f"{ENDPOINT}/datasets/{wanted.hub} and put {place}"
        + (", or set HF_TOKEN to a token that may read it" if closed else "")
    )
