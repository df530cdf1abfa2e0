"""What a measurement prints: a table in Markdown, and the code and machine it was made with."""

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from sleuth.runs.checksums import code_version


@dataclass(frozen=True, slots=True)
class Table:
    """Figures under a title."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[Sequence[object]]

    def markdown(self) -> str:
        """The table with its title above it, columns of figures to the right."""
        rule = ["---", *["---:"] * (len(self.header) - 1)]
        lines = [self.header, rule, *([_shown(cell) for cell in row] for row in self.rows)]
        return f"**{self.title}**\n\n" + "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def machine() -> str:
    """Code, processor, cores and GPU of a measurement, in one line."""
    cores = len(os.sched_getaffinity(0))
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return f"sleuth {code_version()}, torch {torch.__version__}, {_processor()}, {cores} cores{gpu}"


def _shown(cell: object) -> str:
    if not isinstance(cell, float):
        return f"{cell:,}" if isinstance(cell, int) else str(cell)
    return f"{cell:,.0f}" if abs(cell) >= 100 else f"{cell:.3g}"


def _processor() -> str:
    described = Path("/proc/cpuinfo")
    names = described.read_text().splitlines() if described.exists() else []
    model = next((line.partition(":")[2].strip() for line in names if line.startswith("model name")), "")
    return model or platform.processor() or platform.machine()
