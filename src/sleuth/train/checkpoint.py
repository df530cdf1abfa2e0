"""Checkpoints: a Hugging Face model folder with the trainer's state in a subfolder."""

import json
import pickle
import random
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as load_shards
from torch.distributed.checkpoint.state_dict_saver import save as save_shards
from torch.distributed.tensor import DTensor, Replicate

from sleuth.errors import InputError, TrainingStopped
from sleuth.model import lora
from sleuth.model.policy import HostBuffers, Policy, Weights
from sleuth.model.tokens import Tokens
from sleuth.model.torch_dist import unwrap_errors
from sleuth.runs.atomic import atomic_write
from sleuth.runs.checksums import CHECKPOINT_FORMAT, CHECKSUMS, TRAINER, file_sha256, list_files, seal
from sleuth.runs.run import Run, step_of
from sleuth.train.guards import LOWER_RATE
from sleuth.train.optimiser import MASTER, Optimiser, find_non_finite
from sleuth.train.ranks import ALONE, TIMEOUT, Ranks

PROGRESS = "progress.json"
POLICY, CRITIC, RANDOM = "policy", "critic", "random"
READ_ERRORS = (
    OSError, ValueError, TypeError, LookupError, AttributeError, EOFError, RuntimeError, SafetensorError,
    pickle.UnpicklingError,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a run, which alone determines the questions and random numbers of later steps.

    `kl` is the KL coefficient, `best` the highest held-out score so far, `score` the held-out score of this step.
    `untrained` holds the positions of the question stream, below `questions_drawn`, that no step has trained on.
    """

    step: int = 0
    seconds: float = 0.0
    tokens: int = 0
    questions_drawn: int = 0
    kl: float = 0.0
    best: float | None = None
    score: float | None = None
    untrained: tuple[int, ...] = ()

    def as_json(self) -> dict[str, Any]:
        fields = asdict(self)
        untrained = fields.pop("untrained")
        named = {"asked": fields.pop("questions_drawn"), **fields}  # the name in the file format
        return {**named, "untrained": list(untrained)} if untrained else named

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Progress":
        named = {"questions_drawn" if name == "asked" else name: value for name, value in fields.items()}
        return cls(**{**named, "untrained": tuple(named.get("untrained", ()))})


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """A copy of the training state in host memory; only rank 0 holds the weights."""

    policy: Policy
    weights: Weights
    tensors: Mapping[str, Tensor]
    progress: Progress


def snapshot(
    policy: Policy,
    optimiser: Optimiser,
    progress: Progress,
    buffers: HostBuffers,
    rank: int = 0,
    critic: Optimiser | None = None,
) -> Snapshot:
    """Copy the full training state to host memory; collective."""
    weights = policy.weights(buffers if rank == 0 else None)
    live = {f"{POLICY}.{name}": tensor for name, tensor in optimiser.state().items()}
    if critic is not None:
        live |= {f"{CRITIC}.{name}": tensor for name, tensor in critic.state(whole=True).items()}
    tensors = {name: buffers.copy(name, tensor) for name, tensor in live.items()}
    buffers.synchronize()
    text = json.dumps(random.getstate()).encode()
    states = {"python": torch.tensor(list(text), dtype=torch.uint8), "cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    tensors |= {f"{RANDOM}.{rank}.{name}": state for name, state in states.items()}
    return Snapshot(policy, weights, tensors, progress)


def write_weights(folder: Path, state: Snapshot) -> None:
    """Write the weights and the progress on rank 0; every rank adds its shards afterwards."""
    state.policy.write(folder, state.weights)
    (folder / TRAINER).mkdir()
    (folder / TRAINER / PROGRESS).write_text(json.dumps(state.progress.as_json()), encoding="utf-8")


def write_shards(folder: Path, state: Snapshot, group: ProcessGroup | None) -> None:
    """Write the shards of this rank; collective, and raises on every rank if one rank fails."""
    writer = FileSystemWriter(folder / TRAINER, sync_files=False)  # the whole folder is synced before it is renamed
    with unwrap_errors():
        save_shards(dict(state.tensors), storage_writer=writer, process_group=group, no_dist=group is None)


def write_checksums(folder: Path) -> None:
    """Write the checksums of all files in the folder; call it after everything else is written."""
    # Sequential: the writer thread may run during interpreter shutdown, when no new thread can be started.
    hashes = {name: file_sha256(folder / name) for name in list_files(folder)}
    (folder / CHECKSUMS).write_bytes(seal({"format": CHECKPOINT_FORMAT, "kind": "checkpoint", "files": hashes}))


def restore(
    folder: Path, policy: Policy, optimiser: Optimiser, *, rank: int = 0, critic: Optimiser | None = None
) -> Progress:
    """Restore weights, optimisers and random states exactly; on a mismatch, raise InputError and change nothing."""
    with _explain_read_errors(folder):
        progress = Progress.from_json(json.loads((folder / TRAINER / PROGRESS).read_text(encoding="utf-8")))
        weights = _read_weights(folder, policy)
        stored = FileSystemReader(folder / TRAINER).read_metadata().state_dict_metadata
    if progress.step != step_of(folder):
        raise InputError(f"the checkpoint {folder} holds step {progress.step}, so it was renamed; restore its name")
    _require_same_model(folder, policy, weights)
    if critic is not None and not any(name.startswith(f"{CRITIC}.") for name in stored):
        raise _mismatch(folder, "it has no critic, but this run has one")
    optimisers = {POLICY: optimiser} | ({} if critic is None else {CRITIC: critic})
    state = _read_state(folder, stored, optimisers, rank)
    for name in optimiser.separate_masters:
        # A checkpoint of fp32 weights has no separate masters.
        state[POLICY].setdefault(f"{MASTER}.{name}", _shard_like(weights[name].float(), policy, name))
    for owner, each in optimisers.items():
        with _explain_mismatch(folder):
            each.require(state[owner])
    with torch.no_grad():
        for name, parameter in policy.parameters():
            parameter.copy_(_shard_like(weights[name], policy, name))
    for owner, each in optimisers.items():
        each.load(state[owner])
    _restore_random_states(state[RANDOM], rank)
    return progress


def _read_weights(folder: Path, policy: Policy) -> Weights:
    """Read the trained weights by parameter name; adapter weights are read from the adapter's own file."""
    if policy.adapter is not None:
        saved = load_file(folder / lora.FOLDER / lora.FILE)
        ours = {lora.file_name(name): name for name, _ in policy.parameters()}
        return {ours.get(name, name): tensor for name, tensor in saved.items()}
    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}


def _require_same_model(folder: Path, policy: Policy, weights: Weights) -> None:
    for name, parameter in policy.parameters():
        if name not in weights:
            raise _mismatch(folder, f"it has no {name}")
        if weights[name].shape != parameter.shape:
            expected = f"expected {tuple(parameter.shape)}"
            raise _mismatch(folder, f"{name} has the shape {tuple(weights[name].shape)}, {expected}")
    if unknown := sorted(weights.keys() - policy.model.state_dict().keys()):
        raise _mismatch(folder, f"it has {unknown[0]}, which the policy does not have")
    vocabulary = Tokens.load(folder).tokenizer.get_vocab()
    if vocabulary != policy.tokens.tokenizer.get_vocab():
        raise _mismatch(folder, f"its tokenizer has a different vocabulary of {len(vocabulary):,} tokens")


def _read_state(
    folder: Path, stored: Mapping[str, object], optimisers: Mapping[str, Optimiser], rank: int
) -> dict[str, dict[str, Tensor]]:
    """Read the state of each optimiser and the random states of this rank."""
    state: dict[str, dict[str, Tensor]] = {owner: {} for owner in (*optimisers, RANDOM)}
    for name, entry in stored.items():
        if isinstance(entry, TensorStorageMetadata):
            owner, _, own_name = name.partition(".")
            if owner in optimisers:
                with _explain_mismatch(folder):
                    state[owner][own_name] = optimisers[owner].blank(own_name, entry.size, entry.properties.dtype)
            elif owner == RANDOM and own_name.startswith(f"{rank}."):
                state[owner][own_name] = torch.empty(entry.size, dtype=entry.properties.dtype)
            elif owner == CRITIC:
                raise _mismatch(folder, "it has a critic, but this run has none")
    blanks = {f"{owner}.{name}": blank for owner, named in state.items() for name, blank in named.items()}
    with _explain_read_errors(folder), unwrap_errors():
        load_shards(blanks, storage_reader=FileSystemReader(folder / TRAINER), no_dist=True)
    return state


def _shard_like(weight: Tensor, policy: Policy, name: str) -> Tensor:
    """Return this rank's shard of the weight if its parameter is sharded, otherwise the whole weight."""
    parameter = policy.model.get_parameter(name)
    if not isinstance(parameter, DTensor):
        return weight
    mesh = parameter.device_mesh
    whole = DTensor.from_local(weight.to(parameter.device), mesh, [Replicate()] * mesh.ndim, run_check=False)
    return whole.redistribute(mesh, parameter.placements)


def _restore_random_states(states: Mapping[str, Tensor], rank: int) -> None:
    """Restore this rank's random states; ranks that the saved run did not have keep their current states."""
    mine = {name.removeprefix(f"{rank}."): state for name, state in states.items()}
    if "python" in mine:
        version, inner, following = json.loads(bytes(mine["python"].tolist()))
        random.setstate((version, tuple(inner), following))
    if "cpu" in mine:
        torch.set_rng_state(mine["cpu"])
    if "cuda" in mine and torch.cuda.is_available():
        torch.cuda.set_rng_state(mine["cuda"])


@contextmanager
def _explain_read_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except READ_ERRORS as error:
        raise InputError(
            f"the checkpoint {folder} cannot be read ({error}); remove it to resume from the previous one"
        ) from error


@contextmanager
def _explain_mismatch(folder: Path) -> Iterator[None]:
    """Add the checkpoint path to the optimiser's InputError."""
    try:
        yield
    except InputError as error:
        raise _mismatch(folder, str(error)) from error


def _mismatch(folder: Path, difference: str) -> InputError:
    return InputError(
        f"the checkpoint {folder} belongs to another model or optimiser: {difference}; "
        "resume it with the model, adapter and optimiser of its run"
    )


class Saver:
    """Writes checkpoints one at a time in a background thread; removes old ones after each.

    Keeps the newest `keep`, the best by held-out score, and the steps in `always`. Errors in the thread are raised by
    the next call. Every method is collective.
    """

    def __init__(self, run: Run, keep: int, ranks: Ranks = ALONE, always: Iterable[int] = ()) -> None:
        self._run, self._keep, self._always = run, keep, frozenset(always)
        self._ranks = ranks
        # The thread needs its own process group, because the trainer uses the default one at the same time.
        self._group = dist.new_group(backend="gloo", timeout=TIMEOUT) if ranks.world > 1 else None
        self._buffers = HostBuffers()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def save(self, policy: Policy, optimiser: Optimiser, progress: Progress, critic: Optimiser | None = None) -> Path:
        """Copy the state, start writing it in the background, and return the checkpoint's final path."""
        self.wait()
        # Wait for ranks that are still writing here, where the timeout is long, not while gathering weights.
        self._ranks.barrier(f"the checkpoint of step {progress.step}")
        state = snapshot(policy, optimiser, progress, self._buffers, self._ranks.rank, critic)
        # Not a daemon: the interpreter waits for it.
        self._thread = threading.Thread(target=self._write, args=(state,), name=f"checkpoint of step {progress.step}")
        self._thread.start()
        return self._run.checkpoint(progress.step)

    def wait(self) -> None:
        """Wait until all checkpoints are on disk; raise any error from the writer thread."""
        self.__exit__(None)

    def check(self) -> None:
        """Raise any error from the writer thread, without waiting."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if kind is None:  # an error in flight takes precedence
            self.check()

    def _write(self, state: Snapshot) -> None:
        try:
            self._require_finite(state)
            if self._ranks.rank == 0:
                self._write_first(state)
            else:
                self._write_other(state)
        except InputError as error:
            self._error = InputError(f"{error} (continue with: sleuth train --resume {self._run.path})")
        except BaseException as error:  # raised by the next call
            self._error = error

    def _require_finite(self, state: Snapshot) -> None:
        """Raise TrainingStopped on every rank if the snapshot has NaN or infinite values on any rank."""
        every: list[str | None] = [find_non_finite({**state.weights, **state.tensors})]
        if self._group is not None:
            mine, every = every[0], [None] * self._ranks.world
            dist.all_gather_object(every, mine, group=self._group)
        if broken := [name for name in every if name is not None]:
            raise TrainingStopped(
                f"the checkpoint of step {state.progress.step} is not written, because {broken[0]} has values that "
                f"are not finite; {LOWER_RATE}"
            )

    def _write_first(self, state: Snapshot) -> None:
        """Write the weights to a temporary folder, announce it to the other ranks, add the shards, and rename it."""
        progress = state.progress
        with ExitStack() as stack:
            error, name = "it was interrupted", ""
            try:
                folder = stack.enter_context(atomic_write(self._run.checkpoint(progress.step)))
                write_weights(folder, state)
                error, name = "", folder.name
            except Exception as failure:
                error = str(failure)
                raise
            finally:
                if self._group is not None:
                    dist.broadcast_object_list([error, name], src=0, group=self._group)
            write_shards(folder, state, self._group)
            write_checksums(folder)
        if progress.score is not None:
            self._run.record_score(progress.step, progress.score)
        self._run.prune(self._keep, self._always)

    def _write_other(self, state: Snapshot) -> None:
        """Add the shards of this rank to the folder that rank 0 announces."""
        final = self._run.checkpoint(state.progress.step)
        announced = ["", ""]
        dist.broadcast_object_list(announced, src=0, group=self._group)
        error, name = announced
        if error:
            raise InputError(f"rank 0 could not write {final}: {error}")
        write_shards(final.with_name(name), state, self._group)
