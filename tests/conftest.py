"""Tests whose need is not met on this machine are left out, counted and named at the end."""

import shutil
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

LEFT_OUT = pytest.StashKey[Counter[str]]()
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
SHARED = Path(__file__).parents[2] / "shared"


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _has_browser() -> bool:
    return any(shutil.which(browser) for browser in BROWSERS)


NEEDS: dict[str, Callable[[], bool]] = {
    "gpu": _has_gpu,
    "chromium": _has_browser,
    "vllm": lambda: find_spec("vllm") is not None,
    "shared": SHARED.is_dir,
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = {need for need in NEEDS for item in items if item.get_closest_marker(need)}
    unmet = {need for need in wanted if not NEEDS[need]()}
    reasons = [
        next((need for need in NEEDS if need in unmet and item.get_closest_marker(need)), None) for item in items
    ]
    left_out = [item for item, reason in zip(items, reasons, strict=True) if reason]
    config.stash[LEFT_OUT] = Counter(reason for reason in reasons if reason)
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item, reason in zip(items, reasons, strict=True) if not reason]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    counts = config.stash.get(LEFT_OUT, Counter())
    if counts:
        terminalreporter.write_line("not run here: " + ", ".join(f"{count} {need}" for need, count in counts.items()))
