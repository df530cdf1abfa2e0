"""Runs on two Ray nodes in two network namespaces, which see each other as two machines do."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.ray, pytest.mark.netns]

Bench = Any
Ended = subprocess.CompletedProcess[str]

COMMAND = "from sleuth.cli.main import main; main()"
HEAD_PORT = 20001
# Ray listens at these ports. Ports that nobody chose come from the second range, as do those of clients.
RAY_PORTS = {
    "node-manager-port": 20101, "object-manager-port": 20102, "dashboard-agent-listen-port": 20103,
    "dashboard-agent-grpc-port": 20104, "metrics-export-port": 20105, "runtime-env-agent-port": 20106,
    "min-worker-port": 21000, "max-worker-port": 21999,
}  # fmt: skip
FREE_PORTS = (50000, 50999)


def ip(*words: object) -> str:
    return subprocess.run(["ip", *map(str, words)], check=True, capture_output=True, text=True).stdout


@dataclass(frozen=True, slots=True)
class Machine:
    """A network namespace with one address."""

    namespace: str
    device: str
    address: str

    @property
    def hosts(self) -> Path:
        """What `ip netns exec` mounts over /etc/hosts."""
        return Path("/etc/netns", self.namespace, "hosts")

    def run(self, *words: str, **options: Any) -> Ended:
        """Run a command on this machine to its end, in a Ray without authentication: only the two machines see it."""
        environment = {
            **os.environ, "RAY_AUTH_MODE": "disabled", "OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }  # fmt: skip
        command = ["ip", "netns", "exec", self.namespace, *words]
        return subprocess.run(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            **options,
        )

    @property
    def pids(self) -> list[int]:
        return [int(pid) for pid in ip("netns", "pids", self.namespace).split()]

    def start_ray(self, *words: str) -> None:
        ports = [f"--{name}={port}" for name, port in RAY_PORTS.items()]
        shared = ("--num-cpus=2", f"--node-ip-address={self.address}", "--disable-usage-stats", *ports)
        started = self.run("ray", "start", *words, *shared, timeout=120)
        assert started.returncode == 0, started.stdout

    def drop_connections(self) -> None:
        """Drop packets to ports that nobody chose, without a reply, as firewalls do."""
        ip("-n", self.namespace, "rule", "add", "pref", 100, "lookup", "local")
        ip("-n", self.namespace, "rule", "del", "pref", 0)  # it would be looked up before ours
        ports = f"{FREE_PORTS[0]}-{FREE_PORTS[1]}"
        matched = ("iif", self.device, "ipproto", "tcp", "sport", ports, "dport", ports)
        ip("-n", self.namespace, "rule", "add", *matched, "pref", 10, "blackhole")


@pytest.fixture(scope="module")
def machines() -> Iterator[list[Machine]]:
    """Two machines with a Ray node of two CPUs each; the first is the head."""
    names = [f"sleuth{os.getpid()}{letter}" for letter in "ab"]
    pair = [Machine(name, f"veth{number}", f"10.77.0.{number}") for number, name in enumerate(names, 1)]
    folder = tempfile.mkdtemp(dir="/tmp")  # the paths of Ray's sockets must be short
    try:
        for machine in pair:
            ip("netns", "add", machine.namespace)
            machine.hosts.parent.mkdir(parents=True)
            machine.hosts.write_text(f"127.0.0.1 localhost\n127.0.1.1 {socket.gethostname()}\n")
            ip("-n", machine.namespace, "link", "set", "lo", "up")
        first, second = pair
        ends = (first.device, "netns", first.namespace, "type", "veth", "peer", second.device, "netns")
        ip("link", "add", *ends, second.namespace)
        for machine in pair:
            ip("-n", machine.namespace, "addr", "add", f"{machine.address}/24", "dev", machine.device)
            ip("-n", machine.namespace, "link", "set", machine.device, "up")
            ports = "{} {}".format(*FREE_PORTS)
            assert machine.run("sysctl", "-qw", f"net.ipv4.ip_local_port_range={ports}").returncode == 0
        head = ("--head", f"--port={HEAD_PORT}", "--include-dashboard=false", f"--temp-dir={folder}")
        first.start_ray(*head, "--ray-client-server-port=20107")
        second.start_ray(f"--address={first.address}:{HEAD_PORT}")
        yield pair
    finally:
        for machine in pair:
            shutil.rmtree(machine.hosts.parent, ignore_errors=True)
            if not Path("/run/netns", machine.namespace).exists():
                continue
            for pid in machine.pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            ip("netns", "del", machine.namespace)
        shutil.rmtree(folder, ignore_errors=True)


Train = Callable[..., Ended]


@pytest.fixture
def train(bench: Bench, machines: list[Machine]) -> Train:
    def run(name: str, *settings: str) -> Ended:
        first = machines[0]
        words = ("train", "small.toml", "--out", name, "--ray", f"{first.address}:{HEAD_PORT}")
        changes = [word for each in settings for word in ("--set", each)]
        return first.run(sys.executable, "-c", COMMAND, *words, *changes, cwd=bench.path, timeout=600)

    return run


def require_refused(ended: Ended, machines: list[Machine], run: Path, *facts: str) -> None:
    """The last line has the facts, and neither actors nor a run folder are left."""
    assert ended.returncode == 2, ended.stdout
    assert "Traceback" not in ended.stdout
    (line,) = [each for each in ended.stdout.splitlines() if each.startswith("sleuth: ")]
    assert all(fact in line for fact in facts), line
    assert not run.exists()
    end = time.monotonic() + 20
    while any(b"ray::Trainer" in title or b"ray::Rollout" in title for title in map(command_line, all_pids(machines))):
        assert time.monotonic() < end
        time.sleep(0.2)


def all_pids(machines: list[Machine]) -> list[int]:
    return [pid for machine in machines for pid in machine.pids]


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


# With two CPUs each, three ranks are on both machines.
RANKS = ("cluster.trainers=3", "train.questions=3")


def test_ranks_on_two_machines_train(train: Train, machines: list[Machine]) -> None:
    """Their host name resolves to a loopback address."""
    ended = train("apart", *RANKS, "train.steps=2")
    assert ended.returncode == 0, ended.stdout
    for machine in machines:
        assert re.search(rf"{re.escape(machine.address)} .*trainer", ended.stdout), ended.stdout


def test_ports_that_are_closed_are_one_line(bench: Bench, train: Train, machines: list[Machine]) -> None:
    for machine in machines:
        machine.drop_connections()
    ended = train("cut", *RANKS)
    require_refused(ended, machines, bench.path / "cut", "cannot reach trainer rank 0 at 10.77.0.", "ports")
    ended = train("cut", "cluster.rollouts=3")
    require_refused(ended, machines, bench.path / "cut", "rollout worker", "cannot reach trainer rank 0", "ports")
