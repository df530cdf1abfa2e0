"""The library: which runs and evaluations there are, found anew whenever it is asked for."""

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Literal

from sleuth import __version__
from sleuth.credentials import redact_tree
from sleuth.errors import InputError
from sleuth.http.responses import HttpProblem
from sleuth.runs.json_files import parse_object
from sleuth.runs.trajectory import InvalidRow
from sleuth.view.line import read, shallow
from sleuth.view.roots import MANIFEST, Root, Shown

Kind = Literal["run", "evaluation"]
Tree = dict[str, Any]

FORMAT = 1
STEP_FILE = re.compile(r"step-(\d{1,12})\.jsonl")
TAIL = 1 << 16  # bytes at the end of a metrics file that hold its last line
DONE: dict[Kind, str] = {"run": "summary.json", "evaluation": "results.json"}
WRITTEN: dict[Kind, str] = {"run": "metrics.jsonl", "evaluation": "trajectories.jsonl"}
HEADLINES = ("reward/mean", "episode/em", "evaluate/em", "loss")


@dataclass(slots=True)
class Library:
    """The runs and evaluations of the roots; what a client names is looked up here and nowhere else."""

    roots: Sequence[Root]
    _known: dict[Kind, dict[str, Shown]] = field(default_factory=lambda: {"run": {}, "evaluation": {}})
    _lock: Lock = field(default_factory=Lock)

    def find(self, kind: Kind, name: str) -> Shown:
        """The run or evaluation of that name; one that appeared since the last look is found too."""
        if name not in self._known[kind]:
            self.look()
        shown = self._known[kind].get(name)
        if shown is None:
            raise HttpProblem(404, f"there is no {kind} {name[:200]!r} here; /api/library lists those there are")
        return shown

    def look(self) -> list[Tree]:
        """Looks through the roots; returns what is there and cannot be shown, each with a sentence."""
        with self._lock:
            known: dict[Kind, dict[str, Shown]] = {"run": {}, "evaluation": {}}
            broken: list[Tree] = []
            for root in self.roots:
                for name, path in root.folders():
                    shown = Shown(name, path, root)
                    try:
                        kind = _kind(shown)
                    except (InputError, OSError, HttpProblem) as error:
                        broken.append({"id": name, "detail": str(error)})
                    else:
                        if kind is not None:
                            known[kind][name] = shown
            self._known = known
            return broken

    def counts(self) -> tuple[int, int]:
        """How many runs and evaluations were there at the last look."""
        return len(self._known["run"]), len(self._known["evaluation"])

    def overview(self) -> Tree:
        """Everything there is, with the little that a list shows of it."""
        broken = self.look()
        return {
            "version": __version__,
            "folders": [root.name for root in self.roots],
            "runs": list(self._described("run", _run, broken)),
            "evaluations": list(self._described("evaluation", _evaluation, broken)),
            "broken": broken,
        }

    def _described(self, kind: Kind, describe: Callable[[Shown], Tree], broken: list[Tree]) -> Iterator[Tree]:
        """What a list shows of each; one that cannot be read joins the `broken`, whatever is wrong with it."""
        for shown in list(self._known[kind].values()):
            try:
                yield describe(shown)
            except Exception as error:
                broken.append({"id": shown.id, "detail": f"{shown.id} cannot be read ({error}); look at its files"})


def document(shown: Shown, name: str) -> Tree | None:
    """A JSON document of a folder; None where it is not there."""
    text = shown.read(name)
    if text is None:
        return None
    try:
        found: Tree = redact_tree(shallow(parse_object(text, f"{name} of {shown.id}")))
    except ValueError as error:
        raise InputError(f"{name} of {shown.id} cannot be shown: {error}") from error
    return found


def standing(shown: Shown, kind: Kind) -> Tree:
    """Whether it is finished, and when it was last written."""
    done = shown.there(DONE[kind])
    last = done or shown.there(WRITTEN[kind]) or shown.there(MANIFEST)
    written = last.stat().st_mtime if last is not None else None
    return {
        "id": shown.id,
        "name": shown.path.name,
        "state": "finished" if done is not None else "open",
        "written": written,
        "age_seconds": None if written is None else max(0.0, round(time.time() - written, 3)),
    }


def _kind(shown: Shown) -> Kind | None:
    """What a folder holds; None for manifests of other things, such as an index."""
    if not shown.root.holds(shown.path):
        raise InputError(f"{shown.id} is a link out of the folder that is shown; give what it leads to as well")
    manifest = document(shown, MANIFEST)
    if manifest is None:
        raise InputError(f"{MANIFEST} of {shown.id} is no plain file, or a link out of the folder that is shown")
    kind = manifest.get("kind")
    if not isinstance(kind, str) or kind not in DONE:
        return None
    if manifest.get("format") != FORMAT:
        raise InputError(f"{shown.id} has format {manifest.get('format')!r}, and this version reads format {FORMAT}")
    return "run" if kind == "run" else "evaluation"


def _run(shown: Shown) -> Tree:
    config = (document(shown, MANIFEST) or {}).get("config") or {}
    last = _last(shown)
    return {
        **standing(shown, "run"),
        "steps": (last or {}).get("step"),
        "steps_planned": _within(config, "train", "steps"),
        "model": _within(config, "model", "policy"),
        "algorithm": _within(config, "algorithm", "advantage"),
        "trajectory_files": sum(STEP_FILE.fullmatch(each.name) is not None for each in shown.names("trajectories")),
        "last": None if last is None else {name: last[name] for name in ("step", *HEADLINES) if name in last},
    }


def _evaluation(shown: Shown) -> Tree:
    manifest, found = document(shown, MANIFEST) or {}, _results(shown) or {}
    questions = _within(manifest, "stamp", "questions", "count")
    return {
        **standing(shown, "evaluation"),
        "title": manifest.get("title"),
        "questions": found.get("questions", questions),
        "sets": list(found.get("sets") or ()),
        "em": found.get("em"),
    }


def _results(shown: Shown) -> Tree | None:
    try:
        return document(shown, DONE["evaluation"])
    except (
        InputError,
        HttpProblem,
    ):  # told where the evaluation is opened; a list must not fail for one of its entries
        return None


def _last(shown: Shown) -> Tree | None:
    """The newest whole line of the metrics."""
    if shown.there(WRITTEN["run"]) is None:
        return None
    with shown.open(WRITTEN["run"]) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL))
        whole, _, _ = file.read(TAIL).rpartition(b"\n")
    try:
        row = read(whole.rpartition(b"\n")[2])
    except InvalidRow:  # no line is whole yet, or one is longer than any of ours
        return None
    return row if isinstance(row, dict) else None


def _within(tree: Mapping[str, Any], *names: str) -> Any:
    """A value of nested tables; None where one of them is missing."""
    for name in names:
        tree = tree.get(name, {}) if isinstance(tree, Mapping) else {}
    return tree if not isinstance(tree, Mapping) else None
