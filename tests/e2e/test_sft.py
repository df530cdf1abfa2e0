"""A cold start as a user does it: gold traces, a model that learns them, its own successes, and learning from those."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from sleuth.model.policy import Policy
from sleuth.model.tokens import Tokens
from sleuth.sft.quickstart_policy import build_tokenizer

pytestmark = pytest.mark.e2e

Ended = Any
Nursery = Any
BOOKS = {"Sand": "Ada", "Rain": "Oslo", "Sea": "Lisbon", "Ink": "Rome"}
LEARNED = ("--epochs", "60", "--batch-rows", "4", "--learning-rate", "0.01", "--held-out", "0", "--seed", "1")
SMALL = ("agent.prompt=brief", "agent.context_tokens=200", "agent.turn_tokens=60", "retrieval.k=1", "engine.slots=4")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, nursery: Nursery) -> Path:
    """A folder with questions, an index, gold traces of them, and a model that knows nothing."""
    folder = tmp_path_factory.mktemp("cold")
    asked = [
        {"id": title, "question": f"Who wrote {title}?", "golden_answers": [author], "supporting_ids": [title]}
        for title, author in BOOKS.items()
    ]
    passages = [{"id": title, "contents": f'"{title}"\n{title} is by {author}.'} for title, author in BOOKS.items()]
    for name, rows in (("questions.jsonl", asked), ("corpus.jsonl", passages)):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    well(nursery.sleuth(folder, "index", "build", "corpus.jsonl", "--out", "index"))
    words = ("--prompt", "brief", "--k", "1")
    gold = ("traces", "gold", "--questions", "questions.jsonl", "--index", "index", "--out", "gold.jsonl", *words)
    assert "4 demonstrations with 4 searches" in well(nursery.sleuth(folder, *gold)).stderr
    _model(folder / "gold.jsonl").save(folder / "model")
    return folder


def _model(traces: Path) -> Policy:
    rows = [json.loads(line) for line in traces.read_text().splitlines()]
    tokens = Tokens(build_tokenizer(message["content"] for row in rows for message in row["messages"]))
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokens.tokenizer),
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=None,
        eos_token_id=tokens.eos_id,
    )
    return Policy(LlamaForCausalLM(config), tokens)


def well(ended: Ended) -> Ended:
    assert ended.returncode == 0, ended.stderr
    return ended


@pytest.fixture(scope="module")
def learned(home: Path, nursery: Nursery) -> Ended:
    """The model `cold`, which has learned the gold traces."""
    return well(nursery.sleuth(home, "sft", "--model", "model", "--traces", "gold.jsonl", "--out", "cold", *LEARNED))


def test_cold_start_learns_the_traces(home: Path, learned: Ended) -> None:
    record = json.loads((home / "cold" / "sft.json").read_text())
    losses = [update["loss"] for update in record["losses"]]
    assert len(losses) == 60
    assert losses[-1] < losses[0] / 20
    assert record["settings"]["learning_rate"] == 0.01
    assert record["settings"]["row_tokens"] == 256
    assert len(record["traces"][0]["sha256"]) == 64
    assert "wrote cold: 60 updates on 4 traces, loss " in learned.stderr
    assert learned.stdout == ""


def test_cold_start_then_rejection_sampling(home: Path, learned: Ended, nursery: Nursery) -> None:
    settings = [word for setting in SMALL for word in ("--set", setting)]
    words = ("--questions", "questions.jsonl", "--index", "index", "--samples", "2", "--temperature", "0.1")
    ended = well(nursery.sleuth(home, "traces", "sample", "cold", "--out", "own.jsonl", *words, *settings))
    assert ended.stderr.splitlines()[-2] == "wrote own.jsonl: 4 traces"
    rows = [json.loads(line) for line in (home / "own.jsonl").read_text().splitlines()]
    assert {row["question_id"]: row["turns"][-1]["answer"] for row in rows} == BOOKS
    assert all(row["turns"][0]["action"] == "search" for row in rows)

    again = ("--traces", "gold.jsonl", "--traces", "own.jsonl", "--out", "again", "--min-reward", "1")
    well(nursery.sleuth(home, "sft", "--model", "cold", *again, "--steps", "2", "--held-out", "0.3"))
    record = json.loads((home / "again" / "sft.json").read_text())
    assert record["rows"] == 8
    assert record["held_out"][0]["loss"] < 0.5


def test_same_seed_same_model(home: Path, learned: Ended, nursery: Nursery) -> None:
    well(nursery.sleuth(home, "sft", "--model", "model", "--traces", "gold.jsonl", "--out", "twin", *LEARNED))
    assert (home / "twin" / "model.safetensors").read_bytes() == (home / "cold" / "model.safetensors").read_bytes()


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGKILL])
def test_resumed_cold_start_equals_an_uninterrupted_one(
    by: signal.Signals, home: Path, learned: Ended, nursery: Nursery
) -> None:
    out = f"broken-{by.name}"
    words = ("sft", "--model", "model", "--traces", "gold.jsonl", "--out", out, *LEARNED)
    moment = ("os.mkdir", ".tmp-step-9/trainer", 1)
    before = sorted(path.name for path in home.iterdir())
    ended = nursery.sleuth(home, *words, "--save-minutes", "0", moment=moment, by=by)
    assert ended.returncode == {signal.SIGTERM: 143, signal.SIGKILL: -9}[by]
    assert sorted(path.name for path in home.iterdir()) == sorted([*before, f".building-{out}"])
    again = well(nursery.sleuth(home, *words))
    assert f"after update {9 if by is signal.SIGTERM else 8}\n" in again.stderr
    assert (home / out / "model.safetensors").read_bytes() == (home / "cold" / "model.safetensors").read_bytes()
    assert sorted(path.name for path in (home / out).iterdir()) == sorted(
        path.name for path in (home / "cold").iterdir()
    )


@pytest.mark.parametrize(
    ("traces", "fact"),
    [
        ("", "bad.jsonl"),
        ('{"text": "Ada"}\n', "text"),
        ('{"messages": [{"role": "bot", "content": "Ada"}]}\n', "'bot'"),
        ('{"messages": [{"role": "user", "content": "Who?"}]}\n', "assistant"),
    ],
)
def test_invalid_traces_print_one_line(traces: str, fact: str, home: Path, nursery: Nursery, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text(traces)
    ended = nursery.sleuth(home, "sft", "--model", "model", "--traces", tmp_path / "bad.jsonl", "--out", "bad")
    assert ended.returncode == 2
    assert fact in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    assert not (home / "bad").exists()
