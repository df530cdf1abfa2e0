"""One run searched in many ways: by an index of its own, its recording, that index by name, a server, a function."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from sleuth.model.policy import Policy
from sleuth.model.tokens import Tokens

pytestmark = pytest.mark.e2e

Bench = Any
Ended = Any
Nursery = Any
Moment = tuple[str, str, int]
Train = Callable[..., Ended]

WORDS = ("Ada", "Lovelace", "Oslo", "author", "book", "wrote", "read")
RECIPE = """
name = "own"
model.policy = "model"
data = {{ {corpus} train = "questions.jsonl", test = "questions.jsonl" }}
retrieval = {{ {index} k = 2 }}
agent = {{ prompt = "brief", searches = 2, turn_tokens = 10, observation_tokens = 40, context_tokens = 160 }}
engine.slots = 8
reward.answer = "import:judge.variety"
train = {{ steps = 2, questions = 2, samples = 4, learning_rate = 0.001, save_every = 1, keep = 3, threads = 1 }}
evaluate.questions = 3
"""
FUNCTION = """
from pathlib import Path
from sleuth.retrieval.index import load

INDEX = load(Path(__file__).with_name("recorded") / "index")

async def search(queries, k):
    return await INDEX.search(queries, k)
"""
COMMAND = "from sleuth.cli.main import main; main()"
OTHER_SEED = "train.seed=1"


@pytest.fixture(scope="module")
def place(
    bench: Bench, tokens: Tokens, reciter: Callable[..., PreTrainedModel], tmp_path_factory: pytest.TempPathFactory
) -> Bench:
    """A folder with a corpus, questions, recipes, and a policy that searches for words in any order."""
    folder = tmp_path_factory.mktemp("replay")
    texts = [
        f'"{" ".join(words)}"\n{" and ".join(words)} in {number}' for number, words in enumerate(permutations(WORDS, 2))
    ]
    rows = [{"id": str(number), "contents": text} for number, text in enumerate(texts)]
    questions = [
        {"id": f"q{number}", "question": f"Who {word}?", "golden_answers": ["Lisbon"]}
        for number, word in enumerate(WORDS)
    ]
    for name, content in (("corpus", rows), ("questions", questions)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content))
    (folder / "built.toml").write_text(RECIPE.format(corpus='corpus = "corpus.jsonl",', index=""))
    (folder / "named.toml").write_text(RECIPE.format(corpus="", index='index = "recorded/index",'))
    (folder / "own_search.py").write_text(FUNCTION)
    (folder / "judge.py").write_text((bench.path / "judge.py").read_text())
    searcher(tokens, reciter).save(folder / "model")
    return replace(bench, path=folder)


@pytest.fixture(scope="module")
def recorded(train: Train, place: Bench) -> Path:
    """The recording of a run."""
    succeeded(train("built.toml", "recorded", "retrieval.record=true"))
    recording: Path = place.path / "recorded" / "searches.jsonl"
    return recording


@pytest.fixture(scope="module")
def address(place: Bench, recorded: Path) -> Iterator[str]:
    """A server of the run's index."""
    command = [sys.executable, "-c", COMMAND, "serve", "retriever", "recorded/index", "--port", "0"]
    with subprocess.Popen(command, cwd=place.path, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        line = server.stdout.readline()
        match = re.search(r"http://[\d.:]+(?= \()", line)
        assert match, line
        yield match.group()
        server.terminate()


def searcher(tokens: Tokens, reciter: Callable[..., PreTrainedModel]) -> Policy:
    """After a question it searches for some of the words, after hits it answers or searches again."""
    opening, closing = "<search>", " </search>"
    after_words = [(f" {word}", said) for word in WORDS for said in (closing, *(f" {other}" for other in WORDS))]
    first_words = [(opening, f" {word}") for word in WORDS]
    spoken = [("?\n", opening), (">\n\n", opening), (">\n\n", "<answer> Lisbon </answer>"), *first_words, *after_words]
    lines = [[tokens.encode(heard)[-1], *tokens.encode(said)] for heard, said in spoken]
    model = reciter(tokens, [tokens.tokenizer.convert_ids_to_tokens(line) for line in lines])
    with torch.no_grad():
        model.get_parameter("model.norm.weight").mul_(0.1)
    return Policy(model, tokens)


@pytest.fixture(scope="module")
def train(nursery: Nursery, place: Bench) -> Train:
    """Trains by a recipe, until an end or a moment."""

    def train(recipe: str, out: str, *settings: str, moment: Moment | None = None) -> Ended:
        given = [word for setting in settings for word in ("--set", setting)]
        return nursery.sleuth(place.path, "train", recipe, "--out", out, *given, moment=moment)

    return train


def succeeded(ended: Ended) -> None:
    assert ended.returncode == 0, ended.stderr


def refused(ended: Ended, sentence: str) -> None:
    *_, last = ended.stderr.splitlines()
    assert last.startswith("sleuth: ")
    assert sentence in last
    assert (ended.returncode, "Traceback" in ended.stderr) == (2, False)


def queries(place: Bench, run: str) -> set[str]:
    """What the trajectories of a run searched for and found."""
    rows = (path.read_text().splitlines() for path in (place.path / run / "trajectories").glob("step-?.jsonl"))
    turns = (turn for lines in rows for line in lines for turn in json.loads(line)["turns"])
    return {turn["query"] for turn in turns if turn["outcome"] == "found"}


def test_a_recording_names_its_index_and_holds_every_search(place: Bench, recorded: Path) -> None:
    header, *rows = map(json.loads, recorded.read_text().splitlines())
    assert (header["kind"], len(header["index"])) == ("searches", 64)
    assert len(queries(place, "recorded")) > 8
    assert queries(place, "recorded") <= {row["query"] for row in rows}
    assert {row["k"] for row in rows} == {2}
    assert any(len(row["hits"]) == 2 for row in rows)


def test_a_replayed_run_is_the_run_and_needs_no_index(train: Train, place: Bench, recorded: Path) -> None:
    succeeded(train("built.toml", "replayed", "retrieval.replay=recorded/searches.jsonl"))
    assert place.metrics("replayed") == place.metrics("recorded")
    assert place.weights("replayed") == place.weights("recorded")
    assert not (place.path / "replayed" / "index").exists()
    assert not (place.path / "replayed" / "searches.jsonl").exists()


def test_a_run_with_other_samples_is_stopped_where_it_strays(train: Train, place: Bench, recorded: Path) -> None:
    ended = train("built.toml", "strayed", "retrieval.replay=recorded/searches.jsonl", OTHER_SEED)
    refused(ended, str(recorded))
    assert not (place.path / "strayed" / "summary.json").exists()


def test_a_recording_of_another_index_is_refused(nursery: Nursery, train: Train, place: Bench, recorded: Path) -> None:
    succeeded(nursery.sleuth(place.path, "index", "build", "corpus.jsonl", "--out", "other", "--k1", "2"))
    ended = train("named.toml", "mixed", "retrieval.index=other", f"retrieval.replay={recorded}")
    refused(ended, str(recorded))
    assert not (place.path / "mixed").exists()


def test_a_run_that_is_continued_goes_on_recording(
    nursery: Nursery, train: Train, place: Bench, recorded: Path
) -> None:
    moment = ("open", ".tmp-step-2.jsonl", 1)
    assert train("built.toml", "broken", "retrieval.record=true", moment=moment).returncode == -9
    succeeded(nursery.sleuth(place.path, "train", "--resume", "broken"))
    assert place.metrics("broken") == place.metrics("recorded")
    assert (place.path / "broken" / "searches.jsonl").read_bytes() == recorded.read_bytes()


@pytest.mark.parametrize("index", ["recorded/index", "import:own_search.search"])
def test_the_same_index_by_another_name_gives_the_same_run(
    index: str, train: Train, place: Bench, recorded: Path
) -> None:
    out = re.sub(r"\W", "-", index)
    succeeded(train("named.toml", out, f"retrieval.index={index}"))
    assert place.metrics(out) == place.metrics("recorded")


def test_the_same_index_on_a_server_gives_the_same_run(
    nursery: Nursery, train: Train, place: Bench, recorded: Path, address: str
) -> None:
    succeeded(train("named.toml", "served", f"retrieval.index={address}", "retrieval.cache=100", "engine.lockstep=on"))
    assert place.metrics("served") == place.metrics("recorded")
    ended = nursery.sleuth(place.path, "ask", "served", "Who wrote the book?")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("Question: Who wrote the book?\n")
