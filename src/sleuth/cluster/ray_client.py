"""Ray: connect to a cluster, place actors, and recognise their failures.

Only this module and `ray_libraries` import ray.
"""

import fcntl
import logging
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from sleuth.errors import ConfigError, InputError, MissingExtra
from sleuth.page.document import visible

try:
    import ray
    from ray.exceptions import GetTimeoutError, ObjectLostError, RayActorError, RayError, RayTaskError
    from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy
except ImportError:  # checked by `connected`; tests of the pure parts need no ray
    ray = None  # type: ignore[assignment, unused-ignore]

LOCAL = "local"
VERSION = (2, 60)
REACH_SECONDS = 20.0
SIOCGIFADDR = 0x8915  # Linux ioctl: the address of a network interface
LOCAL_WAIT = 5.0  # seconds for a placement on this machine, whose resources do not grow


@dataclass(frozen=True, slots=True)
class Node:
    """A living machine of the cluster and its resources."""

    id: str
    address: str
    cpus: float
    gpus: float


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Connect to the cluster at `address`: local (a new one in this process), auto, or HOST:PORT."""
    _require_ray()
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and (problem := reach(host, int(port))):  # ray would try for minutes
        raise ConfigError(_describe_connection(address, ConnectionError(problem)))
    try:
        ray.init(
            address=address,
            log_to_driver=True,
            logging_level=logging.ERROR,
            include_dashboard=False if address == LOCAL else None,
        )
    except Exception as error:  # ray raises ConnectionError, RuntimeError, ValueError, and its own classes
        raise ConfigError(_describe_connection(address, error)) from error
    try:
        yield
    finally:
        ray.shutdown()


def _require_ray() -> None:
    if ray is None:
        raise MissingExtra("ray", "ray")
    if tuple(int(part) for part in ray.__version__.split(".")[:2]) < VERSION:
        expected = ".".join(map(str, VERSION))
        raise ConfigError(
            f"ray {ray.__version__} is installed, expected {expected} or later: pip install 'sleuth[ray]'"
        )


def _describe_connection(address: str, error: Exception) -> str:
    text = " ".join(str(error).split())
    if "ersion mismatch" in text:
        versions = text.partition("ersion mismatch")[2].strip(": ")
        return (
            f"the cluster at {address} runs another version of Ray or Python than this process ({versions[:300]}); "
            "install the same versions on every machine"
        )
    if address == "auto":
        return "--ray auto found no running Ray cluster; start one with `ray start --head`, or use --ray local"
    return (
        f"cannot connect to the Ray cluster {address!r} ({text[:300]}); expected local, auto or HOST:PORT, and "
        "RAY_AUTH_MODE=token in the environment if the cluster was started with token authentication"
    )


def reach(host: str, port: int, timeout: float = REACH_SECONDS) -> str | None:
    """Connect to an address and hang up; return why that failed, or None."""
    try:
        socket.create_connection((host, port), timeout).close()
    except (OSError, OverflowError) as error:  # OverflowError: no port has this number
        return str(error)
    return None


def living_nodes() -> list[Node]:
    return [
        Node(
            node["NodeID"],
            node["NodeManagerAddress"],
            float(node["Resources"].get("CPU", 0)),
            float(node["Resources"].get("GPU", 0)),
        )
        for node in ray.nodes()
        if node["Alive"]
    ]


def call_on_nodes(function: Callable[..., Any], nodes: Sequence[Node], timeout: float, *arguments: Any) -> list[Any]:
    """Call a function once on every node; raises InputError with the cause if it fails on one."""
    remote = ray.remote(num_cpus=0, max_retries=0)(function)
    calls = [
        remote.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False)).remote(*arguments)
        for node in nodes
    ]
    results = []
    for node, call in zip(nodes, calls, strict=True):
        try:
            results.append(get(call, timeout))
        except TimeoutError as error:
            raise InputError(
                f"the node {node.address} did not answer within {timeout:g} s; see `ray status`"
            ) from error
        except RayError as error:
            raise InputError(f"the node {node.address} cannot run sleuth: {describe_failure(error)}") from error
    return results


@contextmanager
def placed(bundles: Sequence[Mapping[str, float]], wait: float) -> Iterator[Any]:
    """Reserve the bundles, on as few machines as possible; raises TimeoutError if they do not fit within `wait` s."""
    group = placement_group([dict(bundle) for bundle in bundles], strategy="PACK")
    try:
        if not group.wait(wait):
            raise TimeoutError
        yield group
    finally:
        remove_placement_group(group)


def bundle_nodes(group: Any) -> list[str]:
    """The node id of each bundle of a placement group, in order."""
    nodes = placement_group_table(group)["bundles_to_node_id"]
    return [nodes[number] for number in range(len(nodes))]


def start_actor(
    cls: type, arguments: Sequence[Any], group: Any, bundle: int, needs: Mapping[str, float], **options: Any
) -> Any:
    """Start an actor in a bundle of a placement group; it may not be running yet."""
    return (
        ray.remote(cls)
        .options(
            num_cpus=needs["CPU"],
            num_gpus=needs.get("GPU", 0),
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                placement_group=group,
                placement_group_bundle_index=bundle,
                placement_group_capture_child_tasks=True,
            ),
            **options,
        )
        .remote(*arguments)
    )


def get(refs: Any, timeout: float | None = None) -> Any:
    """Return the results of calls; raises TimeoutError."""
    try:
        return ray.get(refs, timeout=timeout)
    except GetTimeoutError as error:
        raise TimeoutError from error


def wait(refs: Sequence[Any], timeout: float) -> list[Any]:
    """Return those calls that have ended, after at least one has or `timeout` seconds have passed."""
    done, _ = ray.wait(list(refs), timeout=timeout)
    return list(done)


def wait_all(refs: Sequence[Any], timeout: float) -> None:
    """Wait until all calls have ended, however they end, but at most `timeout` seconds."""
    if refs:
        ray.wait(list(refs), num_returns=len(refs), timeout=timeout)


def put(value: Any) -> Any:
    return ray.put(value)


def kill_and_restart(actor: Any) -> None:
    """Kill the process of an actor, also one that hangs; Ray restarts the actor as if the process had died."""
    ray.kill(actor, no_restart=False)


def cancel(ref: Any) -> None:
    """Cancel a call of an async actor; no-op if it has ended, or is not a call of Ray."""
    if ray is not None and isinstance(ref, ray.ObjectRef):
        ray.cancel(ref)


def was_restarted() -> bool:
    """Whether Ray has restarted the actor of this process."""
    return bool(ray.get_runtime_context().was_current_actor_reconstructed)


def leave(reason: str) -> NoReturn:
    """End this process as lost, so that Ray restarts its actor."""
    print(visible(reason), file=sys.stderr, flush=True)
    os._exit(1)


def own_address() -> str:
    """The address of this machine, at which other nodes reach it."""
    address: str = ray.util.get_node_ip_address()
    return address


def own_interface() -> str | None:
    """The network interface whose first IPv4 address is this machine's; None if there is none."""
    try:
        wanted = socket.inet_aton(own_address())
    except OSError:  # IPv6
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, SIOCGIFADDR, name.encode().ljust(256, b"\0"))
            except OSError:  # it has no IPv4 address
                continue
            if answer[20:24] == wanted:
                return name
    return None


def is_lost(error: BaseException) -> bool:
    """Whether a call failed because its actor, its process or its machine is gone."""
    return ray is not None and isinstance(error, RayActorError | ObjectLostError)


def is_ray_error(error: BaseException) -> bool:
    """Whether Ray raised the error: a failed call, a lost process, or a cluster that does not answer."""
    return isinstance(error, RayError)


def is_gone_for_good(error: BaseException) -> bool:
    """Whether a lost actor will not be restarted."""
    return isinstance(error, ray.exceptions.ActorDiedError)


def require_started(actor: Any, name: str, timeout: float) -> Any:
    """Return the answer of an actor's `hello`; raises InputError with the cause if the actor cannot start."""
    try:
        return get(actor.hello.remote(), timeout)
    except TimeoutError as error:
        raise InputError(
            f"{name} did not start within {timeout:g} s; see `ray status`, or raise cluster.patience"
        ) from error
    except RayError as error:
        raise InputError(f"{name} cannot start: {describe_failure(error)}") from error


def describe_failure(error: BaseException) -> str:
    """The cause of a failed call in one line: the exception that the actor raised, or how it died."""
    text = str(error.cause) if isinstance(error, RayTaskError) and error.cause is not None else str(error)
    missing = re.search(r"No module named '([\w.]+)'", text)
    if missing:
        return f"{missing[1]} is not installed on that machine; install the same environment on every node"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return re.sub(r"\x1b\[[0-9;]*m", "", lines[-1] if lines else type(error).__name__)
