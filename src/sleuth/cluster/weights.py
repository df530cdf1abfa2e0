"""Weights from the trainer to the rollout workers, in buckets, through a torch process group of their own.

The group is separate from the trainers' and is created again, as a new generation, when a worker joins or is lost.
Workers on the GPU of rank 0 are not in it: they copy each bucket within the GPU, through a CUDA IPC handle. Sharded
parameters are gathered one at a time. Rank 0 keeps the last version in host memory: a worker that was restarted gets it
from there through Ray's object store, which is shared memory on one machine.
"""

import itertools
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import prod
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.multiprocessing.reductions import reduce_tensor

from sleuth.cluster import ray_client
from sleuth.cluster.actor import Failure, own_gpu
from sleuth.cluster.pool import Member, WorkerPool
from sleuth.errors import EngineFailure, InputError, TrainingStopped
from sleuth.train.guards import RESUME
from sleuth.train.publish import SentTotals
from sleuth.train.sharding import gather_weights

BUCKET_BYTES = 256 << 20
GROUP_ATTEMPTS = 3
TIMEOUT = timedelta(seconds=60)  # for a group to form, and for each broadcast


@dataclass(frozen=True, slots=True)
class Entry:
    """Name, shape and dtype of a weight."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.size * self.dtype.itemsize


Bucket = tuple[Entry, ...]  # of one dtype


def plan_buckets(entries: Sequence[Entry], limit: int = BUCKET_BYTES) -> list[Bucket]:
    """Split the weights, in order, into buckets of one dtype and at most `limit` bytes; a larger weight is alone."""
    buckets: list[list[Entry]] = []
    filled = 0
    for entry in entries:
        if not buckets or buckets[-1][0].dtype != entry.dtype or filled + entry.bytes > limit:
            buckets.append([])
            filled = 0
        buckets[-1].append(entry)
        filled += entry.bytes
    return [tuple(bucket) for bucket in buckets]


def unpack(flat_N: Tensor, bucket: Bucket) -> dict[str, Tensor]:
    """Return the weights of a bucket as views of its concatenation."""
    parts = flat_N.split([entry.size for entry in bucket])
    return {entry.name: part.view(entry.shape) for entry, part in zip(bucket, parts, strict=True)}


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """How to join a generation of the group: where the store listens, and the backend of the broadcasts."""

    host: str
    port: int
    generation: int
    size: int
    backend: str

    def join(self, rank: int, own: str, store: Store | None = None) -> "BroadcastGroup":
        """Join as one of `size` processes; rank 0 broadcasts. Raises RuntimeError if the others do not come.

        `own` is the address of this machine; rank 0 passes the store that the others connect to.
        """
        if store is None:
            store = TCPStore(self.host, self.port, is_master=False, timeout=TIMEOUT)
        named = PrefixStore(f"weights/{self.generation}", store)
        if self.backend == "nccl":
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = TIMEOUT
            return BroadcastGroup(dist.ProcessGroupNCCL(named, rank, self.size, options), torch.device("cuda", 0))
        gloo = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        gloo._timeout = TIMEOUT
        gloo._devices = [dist.ProcessGroupGloo.create_device(hostname=own)]
        return BroadcastGroup(dist.ProcessGroupGloo(named, rank, self.size, gloo), torch.device("cpu"))


@dataclass(frozen=True, slots=True)
class BroadcastGroup:
    """A process group whose rank 0 sends to all others."""

    group: Any
    device: torch.device

    def broadcast(self, flat_N: Tensor) -> None:
        """Send on rank 0, receive into the tensor elsewhere; it must be on the device of the group."""
        options = dist.BroadcastOptions()
        options.rootRank = 0
        self.group.broadcast([flat_N.view(torch.uint8)], options).wait()
        if flat_N.is_cuda:
            torch.cuda.synchronize(flat_N.device)

    def receive(self, buckets: Sequence[Bucket]) -> dict[str, Tensor]:
        """Receive all buckets of a version."""
        weights: dict[str, Tensor] = {}
        for bucket in buckets:
            flat_N = torch.empty(sum(entry.size for entry in bucket), dtype=bucket[0].dtype, device=self.device)
            self.broadcast(flat_N)
            weights |= unpack(flat_N, bucket)
        return weights


def read_objects(flats: Sequence[np.ndarray], buckets: Sequence[Bucket]) -> dict[str, Tensor]:
    """Return the weights of buckets from Ray's object store, which must not be written."""
    weights: dict[str, Tensor] = {}
    for flat, bucket in zip(flats, buckets, strict=True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the array is read-only, and so is our use of it
            weights |= unpack(torch.from_numpy(flat).view(bucket[0].dtype), bucket)
    return weights


@dataclass(frozen=True, slots=True)
class GpuHandle:
    """CUDA IPC handle of a tensor, for another process on the same GPU, which must be the only one that it sees."""

    rebuild: Callable[..., Tensor]
    arguments: tuple[Any, ...]

    @classmethod
    def of(cls, flat_N: Tensor) -> "GpuHandle":
        """Share a tensor, which must stay unchanged until the other process has copied it; one handle per process."""
        torch.cuda.synchronize(flat_N.device)
        return cls(*reduce_tensor(flat_N))

    def copy(self) -> Tensor:
        """Copy the tensor into memory of this process."""
        copy_N = self.rebuild(*self.arguments).clone()
        torch.cuda.synchronize(copy_N.device)
        return copy_N


def open_worker(member: Member) -> None:
    """Let a worker load its model, unless it has; raises a user's error."""
    failure = ray_client.get(member.handle.open.remote(member.replicas, member.number))
    if isinstance(failure, Failure):
        failure.reraise()


class WeightSender:
    """Sends versions to the rollout workers; lives on trainer rank 0. Safe to call from several threads."""

    def __init__(self, pool: WorkerPool, buckets: Sequence[Bucket], device: torch.device) -> None:
        self._pool, self._buckets, self._device = pool, tuple(buckets), device
        self._host = ray_client.own_address()
        self._store = TCPStore(self._host, 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
        self._generations, self._transfers = itertools.count(1), itertools.count(1)
        self._without_ipc: set[str] = set()  # workers that could not copy within the GPU once
        self._group: BroadcastGroup | None = None
        self._members: tuple[Member, ...] = ()  # of the group
        self._copies: list[Tensor] = []
        self._version: int | None = None
        self._lock = threading.RLock()
        self._totals = SentTotals()

    def require_reachable(self) -> None:
        """Raise InputError if a worker cannot connect to this process."""
        refs = [member.handle.reach.remote(self._host, self._store.port) for member in self._pool.members]
        for member, problem in zip(self._pool.members, ray_client.get(refs), strict=True):
            if problem is not None:
                raise InputError(
                    f"{member.name} on {member.greeting.address} cannot reach trainer rank 0 at "
                    f"{self._host}:{self._store.port} ({problem}); open all ports between the nodes"
                )

    def send(self, version: int, flats: Iterator[Tensor], *, keep_cache: bool) -> None:
        """Send a version, bucket by bucket; a worker that fails gets it again, or is restarted by Ray."""
        started = time.monotonic()
        with self._lock:
            members = self._pool.current_members()
            neighbours = [member for member in members if self._shares_gpu(member)]
            distant = tuple(member for member in members if member not in neighbours)
            if distant != self._members or (distant and self._group is None):
                self._form_group(distant)
            broken, copying, transfer = False, neighbours, next(self._transfers)
            receives = [member.handle.receive.remote(version, self._buckets, keep_cache) for member in self._members]
            for number, flat_N in enumerate(flats):  # to the end, because gathering is collective
                self._keep(number, flat_N)
                if self._group is not None and not broken:
                    try:
                        self._group.broadcast(flat_N.to(self._group.device))
                        self._totals.bytes += flat_N.nbytes * len(self._members)
                    except RuntimeError:
                        broken = True
                copying = self._copy_within_gpu(copying, transfer, self._buckets[number], flat_N)
            self._version = version
            if broken:
                self._group = None  # closes the connections, so that the workers stop waiting
            switches = [member.handle.switch.remote(transfer, version, self._buckets, keep_cache) for member in copying]
            self._confirm([*self._members, *copying], [*receives, *switches])
            for member in neighbours:
                if member not in copying and self._pool.is_up(member):
                    self._without_ipc.add(member.name)
                    self._send_again(member)
            if neighbours:
                torch.cuda.ipc_collect()
        self._totals.seconds += time.monotonic() - started

    def catch_up(self, member: Member) -> None:
        """Give a worker that may have been restarted the current version, if any, and return it to the pool."""
        with self._lock:
            open_worker(member)
            if self._version is not None:
                refs = [ray_client.put(copy_N.view(torch.uint8).numpy()) for copy_N in self._copies]
                ray_client.get(member.handle.load.remote(self._version, self._buckets, *refs))
                self._totals.bytes += sum(copy_N.nbytes for copy_N in self._copies)
            self._pool.mark_up(member)

    def collect(self) -> dict[str, float]:
        """Return the metrics since the last call."""
        with self._lock:
            return self._totals.collect()

    def _form_group(self, members: tuple[Member, ...]) -> None:
        """Form the next generation with these workers, leaving out those that do not come."""
        self._group, self._members, reason = None, (), ""
        for _ in range(GROUP_ATTEMPTS):
            if not members:
                return
            size = len(members) + 1
            backend = "nccl" if self._has_own_gpus(members) else "gloo"
            spec = GroupSpec(self._host, self._store.port, next(self._generations), size, backend)
            joins = [member.handle.join.remote(spec, place) for place, member in enumerate(members, 1)]
            try:
                self._group = spec.join(0, self._host, self._store)
            except RuntimeError as error:
                reason = str(error).partition("\n")[0]
            joined = [self._succeeds(member, ref) for member, ref in zip(members, joins, strict=True)]
            if self._group is not None and all(joined):
                self._members = members
                return
            self._group = None
            members = tuple(member for member in members if self._pool.is_up(member))
        raise TrainingStopped(
            f"trainer rank 0 at {self._host} and the rollout workers could not form a group for the weights in "
            f"{GROUP_ATTEMPTS} attempts ({reason}); open all ports between the nodes; {RESUME}"
        )

    def _shares_gpu(self, member: Member) -> bool:
        """Whether a worker can copy weights within the GPU of this process."""
        is_here = self._device.type == "cuda" and member.greeting.gpu == own_gpu()
        return is_here and member.name not in self._without_ipc

    def _copy_within_gpu(
        self, members: Sequence[Member], transfer: int, bucket: Bucket, flat_N: Tensor
    ) -> list[Member]:
        """Let workers on this GPU copy a bucket; return those that did."""
        copies = []
        for member in members:
            try:
                handle = GpuHandle.of(flat_N)
            except RuntimeError:  # an allocator whose memory cannot be shared
                continue
            copies.append((member, member.handle.copy.remote(transfer, bucket, handle)))
        copied = [member for member, ref in copies if self._succeeds(member, ref)]
        self._totals.bytes += flat_N.nbytes * len(copied)
        return copied

    def _has_own_gpus(self, members: Sequence[Member]) -> bool:
        """Whether every process has a GPU of its own, as NCCL requires."""
        if self._device.type != "cuda":
            return False
        gpus = [own_gpu(), *(member.greeting.gpu for member in members)]
        return None not in gpus and len(set(gpus)) == len(gpus)

    def _succeeds(self, member: Member, ref: Any) -> bool:
        try:
            ray_client.get(ref, 2 * TIMEOUT.total_seconds())
        except Exception as error:  # a lost worker, or one whose group broke
            if ray_client.is_lost(error):
                self._pool.mark_down(member)
            return False
        return True

    def _keep(self, number: int, flat_N: Tensor) -> None:
        if number == len(self._copies):
            self._copies.append(torch.empty_like(flat_N, device="cpu", pin_memory=flat_N.is_cuda))
        self._copies[number].copy_(flat_N)

    def _confirm(self, members: Sequence[Member], switches: Sequence[Any]) -> None:
        """Wait until the workers have the version; send it by objects to those that live but did not receive it."""
        for member, ref in zip(members, switches, strict=True):
            if self._succeeds(member, ref):
                continue
            if member in self._members:
                self._group = None
            self._send_again(member)

    def _send_again(self, member: Member) -> None:
        """Send the version by objects to a worker that lives; raises EngineFailure if it does not take it."""
        if not self._pool.is_up(member):
            return
        try:
            self.catch_up(member)
        except Exception as error:
            if not ray_client.is_lost(error):
                raise EngineFailure(
                    f"{member.name} did not take the new weights: {ray_client.describe_failure(error)}"
                ) from error
            self._pool.mark_down(member)


class ClusterWeights:
    """Publisher for rollout workers; every trainer rank gathers, rank 0 sends each version once."""

    def __init__(self, weights: Mapping[str, Tensor], dtype: torch.dtype | None) -> None:
        self._weights = dict(weights)
        entries = [Entry(name, tuple(each.shape), dtype or each.dtype) for name, each in self._weights.items()]
        self.buckets = plan_buckets(entries)
        self.sender: WeightSender | None = None
        self._version: int | None = None

    def publish(self, version: int, *, keep_cache: bool = False) -> None:
        if version == self._version:
            return
        if self.sender is None:
            for _ in self._gathered():
                pass
        else:
            try:
                self.sender.send(version, self._gathered(), keep_cache=keep_cache)
            except EngineFailure as failure:
                raise TrainingStopped(f"{failure}; {RESUME}") from failure
        self._version = version

    def _gathered(self) -> Iterator[Tensor]:
        """Yield the concatenation of each bucket; collective if the weights are sharded."""
        for bucket in self.buckets:
            weights = {entry.name: self._weights[entry.name] for entry in bucket}
            gathered = gather_weights(weights, bucket[0].dtype)
            parts = [whole.reshape(-1) for _, whole in gathered if self.sender is not None]
            yield torch.cat(parts) if parts else torch.empty(0)
