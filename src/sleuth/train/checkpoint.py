"""Checkpoints: a Hugging Face folder anyone can load, with what the trainer goes on from beside it."""

import json
import pickle
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor, Replicate

from sleuth.errors import InputError
from sleuth.model import lora
from sleuth.model.policy import HostBuffers, Policy, Weights
from sleuth.model.tokens import Tokens
from sleuth.runs.checksums import CHECKPOINT_FORMAT, CHECKSUMS, TRAINER, file_sha256, list_files, seal
from sleuth.runs.run import step_of
from sleuth.train import shards
from sleuth.train.optimiser import MASTER, Optimiser

PROGRESS = "progress.json"
POLICY, CRITIC, RANDOM = "policy", "critic", "random"
UNREADABLE = (
    OSError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    EOFError,
    RuntimeError,
    SafetensorError,
    pickle.UnpicklingError,
)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run has come; which questions and random numbers follow are pure functions of it.

    `questions_drawn` counts the questions taken from the stream, `kl` is the KL coefficient, `best` the highest
    held-out score so far, `score` that of this step.
    """

    step: int = 0
    seconds: float = 0.0
    tokens: int = 0
    questions_drawn: int = 0
    kl: float = 0.0
    best: float | None = None
    score: float | None = None

    def as_json(self) -> dict[str, Any]:
        fields = asdict(self)
        return {"asked": fields.pop("questions_drawn"), **fields}  # the name in the file format

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Progress":
        return cls(**{"questions_drawn" if name == "asked" else name: value for name, value in fields.items()})


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """A run as it was at a moment, in host memory; the weights are on the first rank only."""

    policy: Policy
    weights: Weights
    tensors: Mapping[str, Tensor]
    progress: Progress


def snapshot(
    policy: Policy,
    optimiser: Optimiser,
    progress: Progress,
    *,
    buffers: HostBuffers,
    rank: int = 0,
    critic: Optimiser | None = None,
) -> Snapshot:
    """Copies all that a checkpoint holds; every rank calls it."""
    weights = policy.weights(buffers if rank == 0 else None)
    live = {f"{POLICY}.{name}": tensor for name, tensor in optimiser.state().items()}
    if critic is not None:
        live |= {f"{CRITIC}.{name}": tensor for name, tensor in critic.state(whole=True).items()}
    tensors = {name: buffers.copy(name, tensor) for name, tensor in live.items()}
    buffers.synchronize()
    return Snapshot(policy, weights, {**tensors, **_random_states(rank)}, progress)


def write_weights(folder: Path, taken: Snapshot) -> None:
    """The part that one rank writes, after which every rank adds its own."""
    taken.policy.write(folder, taken.weights)
    trainer = folder / TRAINER
    trainer.mkdir()
    (trainer / PROGRESS).write_text(json.dumps(taken.progress.as_json()), encoding="utf-8")


def write_shards(folder: Path, taken: Snapshot, group: ProcessGroup | None) -> None:
    shards.write(folder / TRAINER, taken.tensors, group)


def write_checksums(folder: Path) -> None:
    """Writes the checksums of all other files of the folder, after the last of them."""
    # One after another: the thread that writes may outlive the interpreter, which then starts no others.
    found = {name: file_sha256(folder / name) for name in list_files(folder)}
    (folder / CHECKSUMS).write_bytes(seal({"format": CHECKPOINT_FORMAT, "kind": "checkpoint", "files": found}))


def restore(
    folder: Path, policy: Policy, optimiser: Optimiser, *, rank: int = 0, critic: Optimiser | None = None
) -> Progress:
    """Puts weights, optimisers and random states back in place, exactly as they were saved, or changes nothing."""
    with _readable(folder):
        progress = Progress.from_json(json.loads((folder / TRAINER / PROGRESS).read_text(encoding="utf-8")))
        weights = _weights(folder, policy)
        held = shards.sizes(folder / TRAINER)
    if progress.step != step_of(folder):
        raise InputError(f"the checkpoint {folder} holds step {progress.step}; it was renamed: give it its name back")
    _require_same_model(folder, policy, weights)
    if critic is not None and not any(name.startswith(f"{CRITIC}.") for name in held):
        raise _foreign(folder, "it holds no critic, and this run has one")
    optimisers = {POLICY: optimiser} | ({} if critic is None else {CRITIC: critic})
    found = _read(folder, held, optimisers, rank)
    for name in optimiser.apart:
        # A checkpoint of fp32 weights has no masters apart from them.
        if f"{MASTER}.{name}" not in found[POLICY]:
            found[POLICY][f"{MASTER}.{name}"] = _sharded(weights[name].float(), policy, name)
    for owner, each in optimisers.items():
        with _of_another(folder):
            each.require(found[owner])
    _apply(policy, weights)
    for owner, each in optimisers.items():
        each.load(found[owner])
    _restore_random(found[RANDOM], rank)
    return progress


def _weights(folder: Path, policy: Policy) -> Weights:
    """The weights that training changes, by their names in the model; an adapter's are read from beside the others."""
    if policy.adapter is not None:
        saved = load_file(folder / lora.FOLDER / lora.FILE)
        ours = {lora.file_name(name): name for name, _ in policy.parameters()}
        return {ours.get(name, name): tensor for name, tensor in saved.items()}
    files = sorted(folder.glob("*.safetensors"))
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def _require_same_model(folder: Path, policy: Policy, weights: Weights) -> None:
    expected = {name: parameter.shape for name, parameter in policy.parameters()}
    for name, shape in expected.items():
        if name not in weights:
            raise _foreign(folder, f"it holds no {name}")
        if weights[name].shape != shape:
            raise _foreign(folder, f"{name} has the shape {tuple(weights[name].shape)}, expected {tuple(shape)}")
    known = policy.model.state_dict().keys()
    if strange := sorted(weights.keys() - known):
        raise _foreign(folder, f"it holds {strange[0]}, which the policy has not")
    vocabulary = Tokens.load(folder).tokenizer.get_vocab()
    if vocabulary != policy.tokens.tokenizer.get_vocab():
        raise _foreign(folder, f"its tokenizer has other tokens, {len(vocabulary):,} in all")


def _foreign(folder: Path, difference: str) -> InputError:
    return InputError(
        f"the checkpoint {folder} is of another model or optimiser: {difference}; "
        "resume it with the model, adapter and optimiser it was begun with"
    )


def _read(
    folder: Path,
    held: Mapping[str, tuple[torch.Size, torch.dtype]],
    optimisers: Mapping[str, Optimiser],
    rank: int,
) -> dict[str, dict[str, Tensor]]:
    """The state of each optimiser by its own names, and the random states of this rank."""
    blanks: dict[str, Tensor] = {}
    for name, (shape, dtype) in held.items():
        owner, _, own_name = name.partition(".")
        if owner in optimisers:
            with _of_another(folder):
                blanks[name] = optimisers[owner].blank(own_name, shape, dtype)
        elif owner == RANDOM and own_name.startswith(f"{rank}."):
            blanks[name] = torch.empty(shape, dtype=dtype)
        elif owner == CRITIC:
            raise _foreign(folder, "it holds a critic, and this run has none")
    with _readable(folder):
        shards.read(folder / TRAINER, blanks)
    found: dict[str, dict[str, Tensor]] = {owner: {} for owner in (*optimisers, RANDOM)}
    for name, tensor in blanks.items():
        owner, _, own_name = name.partition(".")
        found[owner][own_name] = tensor
    return found


@torch.no_grad()
def _apply(policy: Policy, weights: Weights) -> None:
    for name, parameter in policy.parameters():
        parameter.copy_(_sharded(weights[name], policy, name))


def _sharded(weight: Tensor, policy: Policy, name: str) -> Tensor:
    """This rank's part of a weight whose parameter is sharded; another is as it is."""
    parameter = policy.model.get_parameter(name)
    if not isinstance(parameter, DTensor):
        return weight
    mesh = parameter.device_mesh
    whole = DTensor.from_local(weight.to(parameter.device), mesh, [Replicate()] * mesh.ndim, run_check=False)
    return whole.redistribute(mesh, parameter.placements)


def _random_states(rank: int) -> dict[str, Tensor]:
    """Of this process: Python's, and torch's on each kind of device."""
    words = json.dumps(random.getstate()).encode()
    states = {"python": torch.tensor(list(words), dtype=torch.uint8), "cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return {f"{RANDOM}.{rank}.{name}": state for name, state in states.items()}


def _restore_random(states: Mapping[str, Tensor], rank: int) -> None:
    """A rank that had no predecessor goes on with the numbers it began with."""
    known = {name.removeprefix(f"{rank}."): state for name, state in states.items()}
    if "python" in known:
        version, inner, following = json.loads(bytes(known["python"].tolist()))
        random.setstate((version, tuple(inner), following))
    if "cpu" in known:
        torch.set_rng_state(known["cpu"])
    if "cuda" in known and torch.cuda.is_available():
        torch.cuda.set_rng_state(known["cuda"])


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    try:
        yield
    except UNREADABLE as error:
        raise InputError(
            f"the checkpoint {folder} cannot be read ({error}); remove it to resume from the one before"
        ) from error


@contextmanager
def _of_another(folder: Path) -> Iterator[None]:
    """The optimiser names what does not fit; the sentence around it names the checkpoint."""
    try:
        yield
    except InputError as error:
        raise _foreign(folder, str(error)) from error
