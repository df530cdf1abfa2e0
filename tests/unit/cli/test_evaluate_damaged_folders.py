"""Every JSON document of a run and of an evaluation, damaged: commands exit with one sentence, the viewer answers."""

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from transformers import PreTrainedModel

from sleuth.cli.evaluate import compare, evaluate
from sleuth.cli.export import export
from sleuth.cli.train import train
from sleuth.errors import UserError
from sleuth.evaluate.comparison import compare_folders
from sleuth.evaluate.results import COUNTS, MEASURES
from sleuth.model.policy import Policy
from sleuth.model.tokens import Tokens
from sleuth.runs.run import Run
from sleuth.view.api import Api, ComparisonCache
from sleuth.view.library import Library, make_roots
from sleuth.view.server import application
from sleuth.view.trajectory import TokenizerCache

RECIPE = """
name = "own"
data = { corpus = "corpus.jsonl", train = "questions.jsonl", test = "questions.jsonl" }
model = { policy = "model" }
agent = { prompt = "brief", turn_tokens = 4, context_tokens = 128, searches = 1 }
train = { steps = 1, questions = 2, samples = 2, keep_best = true }
evaluate = { every = 1 }
"""
QUESTIONS = [
    {"id": f"q{n}", "question": "Where?", "golden_answers": ["Oslo"], "data_source": "s", "hops": n} for n in (1, 2)
]
EVENT = {"step": 1, "guard": "kl", "action": "warn", "value": 0.5, "limit": 0.1, "sentence": "KL is high"}

OTHERS: tuple[Any, ...] = ("x", [[1]], {}, -1)
MOST = 8  # changes of a document that are tried, over all of it

RUN = (
    "manifest.json",
    "summary.json",
    "best.json",
    "parity.json",
    "metrics.jsonl",
    "events.jsonl",
    "trajectories/step-1.jsonl",
    "trajectories/step-1.learned.jsonl",
    "index/manifest.json",
)
EVALUATION = (
    "manifest.json",
    "questions.jsonl",
    "trajectories.jsonl",
    "marks.jsonl",
    "results.json",
    "time.json",
)
OF_RUN = [
    ("/api/run", {}),
    ("/api/metrics", {}),
    ("/api/trajectories", {}),
    ("/api/trajectories", {"text": "where"}),
    ("/api/trajectory", {"at": "1.0", "tokens": "true"}),
    ("/api/group", {"step": "1", "group": "0"}),
    ("/api/questions", {}),
]
OF_EVALUATION = [
    ("/api/evaluation", {}),
    ("/api/trajectories", {}),
    ("/api/trajectory", {"at": "0.0"}),
    ("/api/questions", {}),
]


@pytest.fixture(scope="module")
def whole(
    tmp_path_factory: pytest.TempPathFactory, tiny: Callable[..., PreTrainedModel], tokens: Tokens
) -> Iterator[Path]:
    """A finished run of one step with an event, and two evaluations of it."""
    home = tmp_path_factory.mktemp("damaged")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        Policy(tiny(), tokens).save(home / "model")
        Path("own.toml").write_text(RECIPE)
        Path("corpus.jsonl").write_text(json.dumps({"id": "p1", "contents": '"Oslo"\nOslo lies in Norway.'}) + "\n")
        Path("questions.jsonl").write_text("".join(json.dumps(each) + "\n" for each in QUESTIONS))
        train("own.toml", out=Path("whole/run"))
        Run.open(Path("whole/run")).append_event(1, {name: EVENT[name] for name in EVENT if name != "step"})
        for name in ("first", "second"):
            evaluate("whole/run", out=Path("whole") / name)
        yield home / "whole"


def damages(text: str, rows: bool) -> Iterator[tuple[str, str]]:
    """What somebody may have made of a document, or of the last row of several."""
    *before, last = text.splitlines() if rows else [text]
    found: dict[str, Any] = json.loads(last)
    yield "an empty file", ""
    yield "half of it", text[: len(text) // 2]
    for other in ("[]", "{}", "null"):
        yield other, "\n".join([*before, other]) + "\n"
    every = list(changes(found))
    for place, changed in every[:: len(every) // MOST + 1]:
        yield place, "\n".join([*before, json.dumps(changed)]) + "\n"


def changes(tree: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The tree with one value missing or of another type, in itself and in the tables in it."""
    for key, value in tree.items():
        yield f"no {key}", {name: tree[name] for name in tree if name != key}
        for other in OTHERS:
            if type(other) is not type(value):
                yield f"{key} = {other!r}", {**tree, key: other}
        if isinstance(value, dict):
            for place, changed in changes(value):
                yield f"{key}: {place}", {**tree, key: changed}


def viewer(folder: Path) -> Callable[[], None]:
    """Asks the viewer for everything; whatever is wrong with a file, it says so."""
    comparisons = ComparisonCache(compare_folders, MEASURES, [name for name in MEASURES if name in COUNTS])
    app = application(Api(Library(make_roots([folder])), comparisons, TokenizerCache(None), None))
    asked: list[tuple[str, dict[str, str]]] = [("/api/library", {})]
    asked += [(path, {"run": f"{folder.name}/run", **more}) for path, more in OF_RUN]
    asked += [(path, {"evaluation": f"{folder.name}/first", **more}) for path, more in OF_EVALUATION]
    asked.append(("/api/compare", {"first": f"{folder.name}/first", "second": f"{folder.name}/second"}))

    async def ask() -> list[httpx.Response]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            return [await client.get(path, params=parameters) for path, parameters in asked]

    def view() -> None:
        assert {each.status_code for each in asyncio.run(ask())} <= {200, 400, 404, 503}

    return view


def commands(work: Path, kind: str) -> list[Callable[[], None]]:
    run, first, second = work / "run", work / "first", work / "second"
    if kind == "run":
        return [lambda: train(resume=run), lambda: export(run, work / "exported", best=True)]
    return [
        lambda: compare(first, second),
        lambda: evaluate(rescore=first),
        lambda: evaluate(str(run), out=first),
    ]


@pytest.mark.parametrize("name", [*(f"run/{each}" for each in RUN), *(f"first/{each}" for each in EVALUATION)])
def test_damage_is_a_sentence(name: str, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(whole.parent)
    text, work = (whole / name).read_text(), tmp_path / "work"
    shutil.copytree(whole, work)
    steps = [viewer(work), *commands(work, name.partition("/")[0])]
    for place, damaged in damages(text, name.endswith(".jsonl")):
        shutil.rmtree(work)
        shutil.copytree(whole, work)
        (work / name).write_text(damaged)
        for step in steps:
            try:
                step()
            except UserError:
                continue
            except Exception as error:
                raise AssertionError(f"{name} with {place}: {error!r}") from error
