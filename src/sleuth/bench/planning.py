"""Predicted against measured: memory and time of one real step with random weights, for several settings."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import get_context

import torch
from transformers import PretrainedConfig

from sleuth.bench.episodes import Plan, assembled_rig, generated_encyclopedia
from sleuth.bench.measurement import (
    Log,
    SynchronizedTimer,
    Table,
    default_device,
    release_memory,
    reset_peak_memory,
)
from sleuth.bench.models import load_tokens
from sleuth.bench.step import REST, measure_step
from sleuth.errors import ConfigError, InputError, UserError
from sleuth.model.memory import describe_out_of_memory
from sleuth.model.shapes import published_shape
from sleuth.train import accelerators
from sleuth.train.accelerators import GIB, Accelerator
from sleuth.train.footprint import ModelSize, Setup, default_pack_tokens, predict
from sleuth.train.step_time import Episodes, predict_seconds

SAMPLES = 8
BASE = Plan(samples=SAMPLES, update=256, kl=False, passages=2000)
SETTINGS: dict[str, tuple[str, Plan]] = {
    "135M, all weights": ("smollm2-135m", BASE),
    "0.5B, all weights": ("qwen2.5-0.5b", BASE),
    "0.5B, LoRA": ("qwen2.5-0.5b", replace(BASE, lora=32)),
    "1.5B, LoRA": ("qwen2.5-1.5b", replace(BASE, lora=32)),
    "1.5B, recomputed": ("qwen2.5-1.5b", replace(BASE, recompute=1.0)),
    "1.5B, KL, small packs": ("qwen2.5-1.5b", replace(BASE, kl=True, pack_tokens=4096)),
    "3B, half recomputed": ("qwen2.5-3b", replace(BASE, recompute=0.5)),
    "3B, adamw8bit": ("qwen2.5-3b", replace(BASE, optimiser="adamw8bit")),
    "3B, offload": ("qwen2.5-3b", replace(BASE, offload=True)),
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Predicted and measured GiB per phase, GiB of the whole device, and seconds per phase, of one setting."""

    name: str
    predicted_gib: dict[str, float] = field(default_factory=dict)
    measured_gib: dict[str, float] = field(default_factory=dict)
    predicted_device_gib: float | None = None
    measured_device_gib: float | None = None
    predicted_seconds: dict[str, float] = field(default_factory=dict)
    measured_seconds: dict[str, float] = field(default_factory=dict)
    failure: str = ""

    @property
    def line(self) -> str:
        """One line for the log."""
        predicted, measured = sum(self.predicted_seconds.values()), sum(self.measured_seconds.values())
        return f"{self.name}: {self.failure or f'{measured:.1f} s, predicted {predicted:.1f} s'}"


class PeakTimer(SynchronizedTimer):
    """Timer that also records the peak memory of each part."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.peaks: dict[str, float] = {}

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        reset_peak_memory(self._device)
        with super().time(name):
            yield
        if self._device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(self._device) / GIB
            self.peaks[name] = max(peak, self.peaks.get(name, 0.0))


def choose_settings(names: Sequence[str] | None, questions: int) -> dict[str, tuple[str, Plan]]:
    """Return the settings of these names, or all, with a warm-up as large as the measured step."""
    if unknown := [name for name in names or () if name not in SETTINGS]:
        raise ConfigError(f"unknown setting {unknown[0]!r}; expected one of: {'; '.join(SETTINGS)}")
    return {
        name: (shape, replace(plan, questions=questions, warmup=questions, slots=questions * SAMPLES))
        for name, (shape, plan) in SETTINGS.items()
        if not names or name in names
    }


def predict_step(shape: PretrainedConfig, plan: Plan, device: Accelerator) -> tuple[Setup, Episodes]:
    """Translate a benchmark step to what the planner predicts."""
    turns, count = plan.searches + 1, plan.questions * plan.samples
    updates = plan.updates(count)
    lengths = plan.prompt_tokens, plan.turn_tokens, plan.observation_tokens
    episodes = Episodes(count, plan.samples, updates, turns, *lengths)
    pack = plan.pack_tokens or default_pack_tokens(shape, device.memory if device.is_gpu else 0)
    rows = min(max(1, pack // episodes.tokens), max(1, count // updates))
    setup = Setup(
        policy=ModelSize.of(shape),
        device=device,
        pack=rows * episodes.tokens,
        scored=rows * episodes.sampled,
        context=episodes.tokens,
        slots=plan.slots,
        share=plan.engine_memory,
        half=device.is_gpu,
        rank=plan.lora,
        optimiser=plan.optimiser,
        offload=plan.offload,
        recompute=plan.recompute,
        reference=plan.kl,
    )
    return setup, episodes


def measure(name: str, shape_name: str, plan: Plan, log: Log) -> Comparison:
    """Predict a step, then run it after a warm-up of the same size; a failure is recorded."""
    shape, device = published_shape(shape_name), default_device()
    sheet = accelerators.identify(device)
    if sheet is None:
        raise InputError(f"{torch.cuda.get_device_name(device)} is not in the table of train/accelerators.py; add it")
    setup, episodes = predict_step(shape, plan, sheet)
    footprint, seconds = predict(setup), predict_seconds(setup, episodes)
    compared = Comparison(
        name,
        predicted_gib={phase: size / GIB for phase, size in footprint.phases.items()},
        predicted_device_gib=footprint.needed / GIB,
        predicted_seconds=asdict(seconds),
    )
    try:
        compared = _run(compared, shape, plan, device)
    except (UserError, torch.OutOfMemoryError) as error:
        compared = replace(compared, failure=describe_out_of_memory(error) or str(error))
    finally:
        release_memory(device)
    log(compared.line)
    return compared


def measure_each(settings: Mapping[str, tuple[str, Plan]], log: Log) -> list[Comparison]:
    """Measure each setting in a process of its own: a process does not return all of its memory to the device."""
    rows = []
    for name, (shape, plan) in settings.items():
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            rows.append(process.submit(measure, name, shape, plan, _silent).result())
        log(rows[-1].line)
    return rows


def _silent(_: str) -> None:
    """Discard a log line; the process that measures has no terminal."""


def _run(compared: Comparison, shape: PretrainedConfig, plan: Plan, device: torch.device) -> Comparison:
    timer, tokens = PeakTimer(device), load_tokens(shape, None)
    with (
        generated_encyclopedia(plan) as encyclopedia,
        assembled_rig(shape, tokens, plan, encyclopedia, device, timer) as rig,
    ):
        measure_step(rig, encyclopedia.questions[: plan.warmup], 0)
        timer.peaks.clear()
        found = measure_step(rig, encyclopedia.questions[plan.warmup :], 1)
        used = None
        if device.type == "cuda":
            free, total = torch.cuda.mem_get_info(device)
            used = (total - free) / GIB
    parts = {part: seconds for part, seconds in found.seconds.items() if part not in ("publish", REST)}
    parts["train"] += found.seconds["publish"] + found.seconds[REST]
    return replace(compared, measured_gib=dict(timer.peaks), measured_device_gib=used, measured_seconds=parts)


def markdown(rows: Sequence[Comparison]) -> str:
    """Format a table of peaks and seconds, and one of the phases."""
    whole: list[tuple[object, ...]] = []
    phases: list[tuple[object, ...]] = []
    for row in rows:
        if row.failure:
            whole.append((row.name, max(row.predicted_gib.values()), row.failure, *["-"] * 7))
            continue
        measured = max(row.measured_gib.values()) if row.measured_gib else None
        seconds = sum(row.predicted_seconds.values()), sum(row.measured_seconds.values())
        device = row.predicted_device_gib, row.measured_device_gib
        whole.append((row.name, *_pair(max(row.predicted_gib.values()), measured), *_pair(*device), *_pair(*seconds)))
        for phase, took in row.predicted_seconds.items():
            sizes = _pair(row.predicted_gib.get(phase), row.measured_gib.get(phase))
            phases.append((f"{row.name}: {phase}", *sizes, *_pair(took, row.measured_seconds.get(phase))))
    peaks, device_memory, times = (
        (f"{name}, predicted", "measured", "error") for name in ("peak GiB", "device GiB", "seconds")
    )
    title = "Peak of tensors, memory of the device, and seconds of a step"
    tables = [Table(title, ("", *peaks, *device_memory, *times), whole), Table("Phases", ("", *peaks, *times), phases)]
    return "\n\n".join(table.markdown() for table in tables if table.rows)


def _pair(predicted: float | None, measured: float | None) -> tuple[object, object, object]:
    """Cells of a predicted and a measured value, and their relative difference."""
    if not predicted or not measured:
        return ("-" if predicted is None else predicted), ("-" if measured is None else measured), "-"
    return predicted, measured, f"{predicted / measured - 1:+.0%}"
