"""Random kills of workers, retriever replicas, nodes and drivers: every trajectory is accounted for, none trains twice.

SLEUTH_KILLS=10 kills ten of each kind (1 by default), SLEUTH_SEED repeats a campaign; figures are printed with -s.
"""

import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from sleuth.runs.json_files import read_rows
from sleuth.train.streaming import FOLDER

pytestmark = [pytest.mark.e2e, pytest.mark.ray]

Bench = Any
Nodes = Any
Training = Any
Start = Callable[..., Training]
Group = tuple[tuple[int, ...], ...]  # the tokens of each sample

KILLS = int(os.environ.get("SLEUTH_KILLS", "1"))
SEED = int(os.environ.get("SLEUTH_SEED", "24"))
QUESTIONS, SAMPLES = 4, 4
WORKER, REPLICA, NODE, TRAINER = "RolloutWorker", "RetrieverReplica", "node", "TrainerRank"
# An episode takes seconds, most of them waiting, so that a kill meets many of them. Every episode is noted when it
# begins and when it ends, outside of the run: an account that does not depend on its code.
METHOD = """
import asyncio, os, random, time
from sleuth.agent.episode import multi_turn

async def run(agent, task, session, on_text):
    with open("notes", "a") as notes:
        notes.write(f"{task.step} {task.group} {task.sample}\\n")
    began = time.monotonic()
    await asyncio.sleep(random.uniform(0.2, 2.0))
    trajectory = await multi_turn(agent, task, agent.conversation(session, on_text))
    with open("ended", "a") as notes:
        notes.write(f"{task.step} {os.getpid()} {time.monotonic() - began}\\n")
    return trajectory
"""
SETTINGS = (
    "agent.method=import:patient.run", "train.steps=100000", f"train.questions={QUESTIONS}",
    f"train.samples={SAMPLES}", "evaluate.before=false", "evaluate.after=false", "train.save_every=3",
    "cluster.restarts=1000", "cluster.patience=300", "guards.malformed_action=off", "guards.answerless_action=off",
)  # fmt: skip


def words(*settings: str) -> tuple[str, ...]:
    return tuple(word for each in (*SETTINGS, *settings) for word in ("--set", each))


@pytest.fixture
def chance(bench: Bench) -> random.Random:
    (bench.path / "patient.py").write_text(METHOD)
    for name in ("notes", "ended"):
        (bench.path / name).unlink(missing_ok=True)
    print(f"\nseed {SEED}, {KILLS} kills of each kind")
    return random.Random(SEED)


def node_of(pid: int) -> str | None:
    """The id of the node whose raylet started a process."""
    try:
        parent = re.search(r"PPid:\s*(\d+)", Path(f"/proc/{pid}/status").read_text())
        title = Path(f"/proc/{parent[1]}/cmdline").read_text() if parent else ""
    except OSError:
        return None
    match = re.search(r"--node[-_]id=(\w+)", title)
    return match[1] if match else None


def wait_until_gone(nodes: Nodes) -> float:
    """Return the seconds until no actor is left; fails after a minute."""
    started = time.monotonic()
    while any(nodes.actors(name) for name in (WORKER, REPLICA, TRAINER)):
        assert time.monotonic() < started + 60
        time.sleep(0.1)
    return time.monotonic() - started


def count_steps(run: Path) -> int:
    path = run / "metrics.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def trained_groups(run: Path, is_async: bool = False) -> Iterator[tuple[int, Group]]:
    """The groups that were trained on, by their position in the question stream; each step must be complete.

    A synchronous step counts its groups from 0.
    """
    asked: Counter[str] = Counter()
    for step in (row["step"] for row in read_rows(run / "metrics.jsonl") if row["step"]):
        rows = list(read_rows(run / "trajectories" / f"step-{step}.jsonl"))
        assert len({(row["group"], row["sample"]) for row in rows}) == len(rows) == QUESTIONS * SAMPLES
        for group in dict.fromkeys(row["group"] for row in rows):
            samples = [row for row in rows if row["group"] == group]
            asked[samples[0]["question"]] += 1
            position = group if is_async else QUESTIONS * (step - 1) + group
            yield position, tuple(tuple(row["ids"]) for row in samples)
    if not is_async:  # the stream repeats all questions, in another order
        assert max(asked.values()) - min(asked.values()) <= 1


def finished_groups(run: Path) -> Iterator[tuple[int, Group]]:
    """The finished groups of an asynchronous run that are on disk."""
    for path in sorted((run / FOLDER).glob("*.jsonl")):
        for row in read_rows(path):
            if "samples" in row:
                yield row["position"], tuple(tuple(each["ids"]) for each in row["samples"])


class Campaign:
    """Kills parts of a run; nodes that were killed are replaced after a while."""

    def __init__(self, training: Training, nodes: Nodes, chance: random.Random) -> None:
        self.training, self.nodes, self.chance = training, nodes, chance
        self.killed: Counter[str] = Counter()
        self.living = list(nodes.names[1:])  # the head holds the state of the cluster
        self.missing = 0

    def kill(self, kind: str) -> None:
        victims = self._nodes() if kind == NODE else self.nodes.actors(kind)
        while not victims:  # all of them are being restarted
            time.sleep(0.2)
            victims = self._nodes() if kind == NODE else self.nodes.actors(kind)
        victim = self.chance.choice(sorted(victims))
        if isinstance(victim, str):
            self.nodes.order(victim)
            self.living.remove(victim)
            self.missing += 1
        else:
            os.kill(victim, signal.SIGKILL)
        self.killed[kind] += 1

    def replace_nodes(self) -> None:
        """Add nodes for those that were killed: now, or later."""
        while self.missing > 1 or (self.missing and self.chance.random() < 0.5):
            self.living.append(self.nodes.order({"num_cpus": 2}))
            self.missing -= 1

    def _nodes(self) -> list[str]:
        """Nodes with a worker or replica, without the trainer, whose loss ends the run."""
        trainer = {node_of(pid) for pid in self.nodes.actors(TRAINER)}
        used = {node_of(pid) for name in (WORKER, REPLICA) for pid in self.nodes.actors(name)}
        return [name for name in self.living if name in used - trainer]


def test_killed_workers_replicas_and_nodes_lose_no_episode(
    bench: Bench, start: Start, nodes: Nodes, chance: random.Random
) -> None:
    training = start("campaign", *words("cluster.rollouts=3", "cluster.retrievers=2"))
    training.wait_for_step(1)
    campaign = Campaign(training, nodes, chance)
    kinds = (WORKER, REPLICA, NODE)
    events: list[tuple[str, ...]] = [*((kind,) for kind in kinds * KILLS), *random.Random(SEED).choices(
        [*combinations(kinds, 2), (WORKER, WORKER)], k=KILLS
    )]  # fmt: skip
    chance.shuffle(events)
    for event in events:
        training.wait_for_step(count_steps(training.run))  # the run goes on after each kill
        time.sleep(chance.uniform(0, 3))
        print(f"{count_steps(training.run)} steps: kills {' and '.join(event)}", flush=True)
        for kind in event:
            campaign.kill(kind)
        campaign.replace_nodes()
    training.wait_for_step(count_steps(training.run) + 1)
    training.process.send_signal(signal.SIGINT)
    assert training.finish() == 130, training.printed
    wait_until_gone(nodes)

    rows = [row for row in read_rows(training.run / "metrics.jsonl") if row["step"]]
    for row in rows:
        assert row["cluster/asked"] == row["cluster/finished"] == QUESTIONS * SAMPLES
        assert row["cluster/lost"] == row["cluster/retried"]
        assert row["cluster/cancelled"] == 0
    groups = [group for group, _ in trained_groups(training.run)]
    assert groups == list(range(QUESTIONS * len(rows)))
    total = {name: sum(row[f"cluster/{name}"] for row in rows) for name in ("asked", "finished", "retried")}
    begun = Counter(tuple(map(int, line.split())) for line in (bench.path / "notes").read_text().splitlines())
    asked = {(row["step"], group, sample) for row in rows for group in range(QUESTIONS) for sample in range(SAMPLES)}
    assert asked <= begun.keys()
    again = sum(begun[each] - 1 for each in asked)
    assert again <= total["retried"]  # a worker may be killed before its episodes begin
    assert campaign.killed.total() >= 3 * KILLS
    print(dict(campaign.killed), f"steps {len(rows)}", total, f"begun again {again}", sep=", ")
    lost = [sum(row[f"cluster/workers_{name}"] for row in rows) for name in ("lost", "restarted")]
    print(f"workers lost and restarted {lost}, printed tracebacks {training.printed.count('Traceback')}")


@pytest.mark.usefixtures("chance")
def test_slow_worker_gets_fewer_episodes(bench: Bench, start: Start, nodes: Nodes) -> None:
    steps, questions = 4, 12  # 48 episodes a step, of which each worker runs eight at a time
    training = start("slow", *words("cluster.rollouts=2", f"train.questions={questions}"))
    training.wait_for_step(1)
    slow, first = nodes.actors(WORKER)[0], count_steps(training.run)
    while count_steps(training.run) < first + 1 + steps:
        assert training.process.poll() is None, training.printed
        for number, seconds in ((signal.SIGSTOP, 0.9), (signal.SIGCONT, 0.1)):
            os.kill(slow, number)
            time.sleep(seconds)
    training.process.send_signal(signal.SIGINT)
    assert training.finish() == 130, training.printed

    rows = [row for row in read_rows(training.run / "metrics.jsonl") if first < row["step"] - 1 < first + steps]
    lines = [line.split() for line in (bench.path / "ended").read_text().splitlines()]
    for row in rows:
        ended = [(int(pid) == slow, float(seconds)) for step, pid, seconds in lines if int(step) == row["step"]]
        counts = Counter(is_slow for is_slow, _ in ended)
        longest = {each: max((seconds for is_slow, seconds in ended if is_slow is each), default=0) for each in counts}
        print(
            f"step {row['step']}: {row['time/generate']:.1f} s; episodes of the slow worker {counts[True]}, of the "
            f"other {counts[False]}; the longest took {longest.get(True, 0):.1f} and {longest[False]:.1f} s"
        )
        assert counts[True] < counts[False]
        assert row["cluster/lost"] == 0


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_killed_drivers_train_no_group_twice(
    bench: Bench, start: Start, nodes: Nodes, chance: random.Random, mode: str
) -> None:
    settings = ("train.mode=async", "train.staleness=2", "algorithm.correction.level=token") if mode == "async" else ()
    name, gone = f"driven-{mode}", []
    finished: dict[int, Group] = {}
    for _ in range(KILLS):
        training = start(name, *(() if (bench.path / name).exists() else words("cluster.rollouts=2", *settings)))
        if chance.random() < 0.2:  # while it starts
            time.sleep(chance.uniform(0, 20))
        else:
            training.wait_for_step(count_steps(training.run) + chance.randrange(4))
            time.sleep(chance.uniform(0, 3))
        assert training.process.poll() is None, training.printed
        print(f"{mode}: {count_steps(training.run)} steps: kills the driver", flush=True)
        training.process.kill()
        gone.append(wait_until_gone(nodes))
        for position, samples in finished_groups(training.run):
            assert finished.setdefault(position, samples) == samples, f"group {position} was sampled twice"
    last = count_steps(bench.path / name) + 4  # more than the groups that are sampled ahead
    training = start(name, "--set", f"train.steps={last}")
    assert training.finish() == 0, training.printed
    wait_until_gone(nodes)

    steps = [row["step"] for row in read_rows(training.run / "metrics.jsonl") if row["step"]]
    assert steps == list(range(1, last + 1))
    found = list(trained_groups(training.run, mode == "async"))
    trained = dict(found)
    assert sorted(position for position, _ in found) == list(range(QUESTIONS * last))
    assert [position for position, samples in finished.items() if trained[position] != samples] == []
    begun = (bench.path / "notes").read_text().count("\n")
    print(
        f"{mode}: drivers killed {KILLS}, steps {last}, groups trained {len(trained)}, episodes begun {begun}, "
        f"finished groups found on disk {len(finished)}, all trained unchanged, "
        f"actors gone after at most {max(gone):.1f} s"
    )
