"""Reading trace files: the same in worker processes as in this one, in order, told as it goes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sleuth.errors import InputError
from sleuth.model.tokens import Tokens
from sleuth.sft import trace_reader as reading
from sleuth.sft.settings import SFTConfig
from sleuth.sft.traces import Reading
from sleuth.train.observer import SilentObserver


class Heard(SilentObserver):
    """Keeps the stages and how far they came."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, int]] = []
        self.advanced = 0

    def begin(self, stage: str, total: int) -> None:
        self.stages.append((stage, total))

    def advance(self, parts: int = 1) -> None:
        self.advanced += parts


@pytest.fixture(scope="module")
def source(tokens: Tokens, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder without a model."""
    folder = tmp_path_factory.mktemp("model")
    tokens.tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text("{}")
    return folder


def talk(number: int) -> dict[str, Any]:
    """A trace about a question of its own, every seventh too long, and every fifth with an observation to cut."""
    shown = f"<search> {number} </search>\n\n<information>{'Oslo ' * 30 * (number % 5 == 0)}</information>\n\n"
    said = "Ada " * 300 if number % 7 == 0 else f"{shown}<answer> {number} </answer>"
    return {"messages": [{"role": "user", "content": f"Who {number}?"}, {"role": "assistant", "content": said}]}


def told(found: Reading) -> list[tuple[str, list[int], list[float]]]:
    """Everything there is to know of the traces."""
    return [(each.question, each.ids_L.tolist(), each.weights_L.tolist()) for each in found.traces]


def test_workers_read_what_one_process_reads(source: Path, tmp_path: Path) -> None:
    files = [tmp_path / "first.jsonl", tmp_path / "second.jsonl"]
    for start, path in zip((0, 700), files, strict=True):
        lines = [json.dumps(talk(number)) + "\n" for number in range(start, start + 700)]
        path.write_text("\n".join(lines))
    settings = SFTConfig(row_tokens=200, observation_tokens=20, observation_weight=0.5)
    heard = Heard()
    alone, spread = (reading.read(source, files, settings, heard, workers=count) for count in (0, 2))
    assert told(alone) == told(spread)
    assert [each.question for each in spread.traces] == [f"Who {number}?" for number in range(1400) if number % 7]
    assert alone.sentence() == spread.sentence()
    assert spread.sentence() == "1,200 traces; left out: 200 longer than 200 tokens; cut: 240 observations"
    assert (heard.stages, heard.advanced) == ([("reading traces", 1400)] * 2, 2800)
    files[1].write_text("".join(lines[:300]) + '{"messages": []}\n' + "{\n")
    with pytest.raises(InputError, match="line 301: messages must be a list"):
        reading.read(source, files[1:], settings, heard, workers=1)


def test_what_is_read_at_once_needs_no_progress(source: Path, tmp_path: Path) -> None:
    (tmp_path / "few.jsonl").write_text(json.dumps(talk(1)) + "\n")
    heard = Heard()
    assert len(reading.read(source, [tmp_path / "few.jsonl"], SFTConfig(), heard).traces) == 1
    assert heard.stages == []


@pytest.mark.parametrize(
    ("total", "cores", "count"), [(40_000, 16, 12), (40_000, 4, 3), (40_000, 2, 0), (5_000, 16, 0), (10**6, 128, 12)]
)
def test_workers_are_taken_where_they_are_worth_it(total: int, cores: int, count: int) -> None:
    assert reading.worth(total, cores) == count


def test_worker_begins_without_torch() -> None:
    """It takes seconds to load, and there are many workers."""
    script = "import sys, sleuth.sft.trace_reader; raise SystemExit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
