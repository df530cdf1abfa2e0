"""Compares learning methods with plain GRPO on the harder quickstart world, on CPUs.

    python benchmarks/methods/screen.py --out runs/screen --seeds 5 --parallel 2

All methods train with the same seeds, questions and number of episodes. EM is greedy, on held-out questions. "equal
seconds" is EM of the last evaluation within the time that the fastest run of that seed needed for all of its steps.
Runs that are complete in the output folder are not repeated.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean, stdev

RECIPE = "quickstart-hard"
TWO = ("train.updates=2",)  # with one update per step, the likelihood penalties have no effect
METHODS: Mapping[str, Sequence[str]] = {
    "plain": (),
    "two-updates": TWO,
    "llds": (*TWO, "algorithm.likelihood.penalty=llds", "algorithm.likelihood.threshold=0.99"),
    "sapo": (*TWO, "algorithm.likelihood.penalty=sapo", "algorithm.likelihood.threshold=0.99"),
    "tree": ("algorithm.advantage=tree_grpo", "train.tree.trees=2", "train.tree.branches=3"),
    "information-gain": ("algorithm.information_gain.coefficient=0.2",),
    "step-groups": ("algorithm.step_groups=0.5",),
    "useless-searches": ("reward.useless_search=0.1",),
}
BASELINES = {"llds": "two-updates", "sapo": "two-updates"}  # others: plain
# Two-sided 95% quantiles of Student's t by degrees of freedom.
QUANTILES = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}


def train(folder: Path, settings: Sequence[str], seed: int, threads: int) -> None:
    """Train in a process of its own, unless the run is complete; output goes to FOLDER.log."""
    if (folder / "summary.json").exists():
        return
    command = [sys.executable, "-c", "from sleuth.cli.main import main; main()", "train", RECIPE, "--out", str(folder)]
    every = [*settings, f"train.seed={seed}", f"train.threads={threads}"]
    command += [word for setting in every for word in ("--set", setting)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "CUDA_VISIBLE_DEVICES": ""}
    with folder.with_suffix(".log").open("w") as log:
        done = subprocess.run(command, env=environment, stdout=log, stderr=subprocess.STDOUT, check=False)  # noqa: S603
    if done.returncode:
        raise SystemExit(f"{folder.name} failed with exit code {done.returncode}; see {log.name}")


def curve(folder: Path) -> list[tuple[float, float]]:
    """Return held-out EM over the seconds of training; evaluations do not count."""
    points, seconds = [], 0.0
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        seconds += row.get("time/step", 0.0)
        if "evaluate/em" in row:
            points.append((seconds, row["evaluate/em"]))
    after = json.loads((folder / "summary.json").read_text())["em_after"]["value"]
    return [*points, (seconds, after)]


def rows(out: Path, methods: Sequence[str], seeds: int) -> Iterator[str]:
    """Yield the lines of the table."""
    curves = {name: [curve(out / f"{name}-{seed}") for seed in range(seeds)] for name in methods}
    limits = [min(curves[name][seed][-1][0] for name in methods) for seed in range(seeds)]
    final = {name: [points[-1][1] for points in curves[name]] for name in methods}
    yield "| method | EM, equal samples | difference | from | EM, equal seconds | seconds | EM by seed |"
    yield "|---|---:|---|---|---:|---:|---|"
    for name in methods:
        timed = [
            [em for second, em in points if second <= limit][-1]
            for points, limit in zip(curves[name], limits, strict=True)
        ]
        base = BASELINES.get(name, "plain")
        gains = [value - before for value, before in zip(final[name], final.get(base, []), strict=False)]
        compared = f"{interval(gains)} | {base}" if gains and name != base else " | "
        seconds = mean(points[-1][0] for points in curves[name])
        by_seed = " ".join(f"{value:.3f}" for value in final[name])
        yield f"| {name} | {mean(final[name]):.3f} | {compared} | {mean(timed):.3f} | {seconds:.0f} | {by_seed} |"


def interval(gains: Sequence[float]) -> str:
    """Format a mean over seeds with its 95% interval, by Student's t."""
    if len(gains) < 2:
        return f"{mean(gains):+.3f}"
    half = QUANTILES[len(gains) - 1] * stdev(gains) / len(gains) ** 0.5
    return f"{mean(gains):+.3f} [{mean(gains) - half:+.3f}, {mean(gains) + half:+.3f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--seeds", type=int, default=5, choices=range(1, 11), metavar="N", help="default: 5")
    parser.add_argument("--parallel", type=int, default=2, metavar="N", help="runs at a time (default: 2)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads of a run (default: 1)")
    parser.add_argument(
        "--methods", nargs="+", choices=METHODS, default=[*METHODS], metavar="NAME", help="default: all"
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of every run")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(given.parallel) as pool:
        runs = [
            pool.submit(train, given.out / f"{name}-{seed}", [*METHODS[name], *given.set], seed, given.threads)
            for seed in range(given.seeds)
            for name in given.methods
        ]
        for run in runs:
            run.result()
    print("\n".join(rows(given.out, given.methods, given.seeds)))


if __name__ == "__main__":
    main()
