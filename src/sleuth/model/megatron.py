"""Names and layout of Megatron-core's GPT models, and the conversion of their checkpoints from and to Hugging Face.

Megatron fuses the projections of queries, keys and values, one query group after the other, and those of gate and up.
It stacks the tensors of all layers under one name; with other settings it saves each layer, and gate and up, alone.
"""

from argparse import Namespace
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from shutil import copy2

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PretrainedConfig

from sleuth.errors import InputError
from sleuth.model.attention import AttentionShape
from sleuth.model.shapes import shape_of_folder
from sleuth.model.torch_dist import (
    RELEASE,
    TRACKER,
    TorchDistCheckpoint,
    find_iteration,
    iteration_name,
    write_checkpoint,
)
from sleuth.runs.atomic import atomic_write, require_new
from sleuth.runs.json_files import encode_json, read_json

FAMILIES = ("llama", "qwen2", "qwen3")
LAYERS = "decoder.layers."
QKV = "self_attention.linear_qkv"
# Modules of a layer by their Megatron name, and the Hugging Face modules they fuse.
MODULES: dict[str, tuple[str, ...]] = {
    QKV: ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attention.linear_proj": ("self_attn.o_proj",),
    "self_attention.q_layernorm": ("self_attn.q_norm",),
    "self_attention.k_layernorm": ("self_attn.k_norm",),
    "mlp.linear_fc1": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.linear_fc2": ("mlp.down_proj",),
}
# Transformer Engine fuses these into the linear layer after them; Megatron's own layers are saved under its names.
NORMS = {
    f"{QKV}.layer_norm_weight": "input_layernorm.weight",
    "mlp.linear_fc1.layer_norm_weight": "post_attention_layernorm.weight",
}
OUTSIDE_LAYERS = {
    "embedding.word_embeddings.weight": "model.embed_tokens.weight",
    "decoder.final_layernorm.weight": "model.norm.weight",
    "output_layer.weight": "lm_head.weight",
}
PADDED = frozenset({"embedding.word_embeddings.weight", "output_layer.weight"})  # to a multiple of the ranks
# Names of layers without Transformer Engine, in checkpoints whose layer specification does not rename them.
ALIASES = {
    f"{LAYERS}{QKV}.layer_norm_weight": (f"{LAYERS}input_layernorm.weight",),
    f"{LAYERS}mlp.linear_fc1.layer_norm_weight": (f"{LAYERS}pre_mlp_layernorm.weight",),
}
HALVES = ("_w", "_v")  # gate and up, where each shard has a name of its own
EXTRA_STATE = "_extra_state"  # FP8 scales; Megatron expects an entry for each module, empty without FP8
OPTIMISER = ("optimizer.", "chained_")
# What a model folder has besides weights: config, tokenizer, chat template.
COPIED = frozenset({".json", ".txt", ".model", ".jinja", ".tiktoken"})
CHECKPOINT_VERSION = 3.0


@dataclass(frozen=True, slots=True)
class Fused:
    """A Megatron tensor, and the Hugging Face tensors that it fuses: one tuple of names per layer, or only one."""

    name: str
    parts: tuple[tuple[str, ...], ...]
    rows: tuple[int, ...]
    width: tuple[int, ...]
    groups: int

    @property
    def in_layers(self) -> bool:
        return self.name.startswith(LAYERS)

    def fuse(self, names: tuple[str, ...], weight: Callable[[str], Tensor]) -> Tensor:
        """Concatenate the rows of the named parts, group by group; raise InputError if one has another shape."""
        parts = [weight(name) for name in names]
        for name, part, rows in zip(names, parts, self.rows, strict=True):
            if part.shape != (rows, *self.width):
                expected = (rows, *self.width)
                raise InputError(f"{name} has shape {tuple(part.shape)}, but config.json needs {expected}")
        return torch.cat([part.unflatten(0, (self.groups, -1)) for part in parts], dim=1).flatten(0, 1)

    def split(self, fused: Tensor) -> list[Tensor]:
        """Undo `fuse`; rows of padding are dropped."""
        grouped = fused[: sum(self.rows)].unflatten(0, (self.groups, -1))
        pieces = grouped.split([rows // self.groups for rows in self.rows], dim=1)
        # Copies: a view would keep the tensor of all layers in memory.
        return [piece.flatten(0, 1).clone(memory_format=torch.contiguous_format) for piece in pieces]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a checkpoint holds a tensor: one entry of all layers (`stacked`), or an entry or two halves per layer."""

    fused: Fused
    stacked: bool
    entries: tuple[tuple[str, ...], ...]

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield each entry with the shape that it should have."""
        layers = (len(self.fused.parts),) if self.stacked else ()
        for entries in self.entries:
            rows = self.fused.rows if len(entries) > 1 else (sum(self.fused.rows),)
            yield from (
                (entry, (*layers, count, *self.fused.width)) for entry, count in zip(entries, rows, strict=True)
            )

    def read(self, read: Callable[[str], Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Yield the Hugging Face tensors, layer by layer."""
        if self.stacked:
            layers: Iterator[Tensor] = iter(read(self.entries[0][0]).unbind(0))
        else:
            layers = (torch.cat([read(entry) for entry in entries]) for entries in self.entries)
        for names, layer in zip(self.fused.parts, layers, strict=True):
            yield from zip(names, self.fused.split(layer), strict=True)


def layout(config: PretrainedConfig) -> list[Fused]:
    """List the Megatron tensors of a model; raise InputError for an architecture without a known mapping."""
    if config.model_type not in FAMILIES:
        raise InputError(f"models of type {config.model_type} cannot be converted; expected {', '.join(FAMILIES)}")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    shapes = {name: tuple(each.shape) for name, each in model.named_parameters()}  # a tied head is not repeated
    kv_heads = AttentionShape.of(config, torch.float32).kv_heads
    found = []
    for name, parts in _names(config.num_hidden_layers):
        if all(part in shapes for part in parts[0]):
            rows = tuple(shapes[part][0] for part in parts[0])
            groups = kv_heads if len(rows) == len(MODULES[QKV]) else 1
            found.append(Fused(name, parts, rows, shapes[parts[0][0]][1:], groups))
    if others := sorted(shapes.keys() - {part for fused in found for layer in fused.parts for part in layer}):
        raise InputError(f"the model has {others[0]}, which has no place in Megatron's layout; convert another model")
    return found


def _names(layers: int) -> Iterator[tuple[str, tuple[tuple[str, ...], ...]]]:
    """Yield the name of every Megatron tensor that a model may have, with its parts in each layer."""
    for name, part in OUTSIDE_LAYERS.items():
        yield name, ((part,),)
    kinds = [(f"{name}.{kind}", parts, f".{kind}") for name, parts in MODULES.items() for kind in ("weight", "bias")]
    for name, parts, end in [*kinds, *((name, (part,), "") for name, part in NORMS.items())]:
        yield (
            LAYERS + name,
            tuple(tuple(f"model.layers.{layer}.{part}{end}" for part in parts) for layer in range(layers)),
        )


def locate(wanted: list[Fused], checkpoint: TorchDistCheckpoint) -> list[Source]:
    """Find every tensor of a model in a checkpoint; raise InputError if one is missing, misshapen or left over."""
    sources = [_locate(fused, checkpoint.tensors.keys()) for fused in wanted]
    expected = {entry: shape for source in sources for entry, shape in source.shapes()}
    remedy = "give --like the model that Megatron trained"
    if missing := [entry for entry in expected if entry not in checkpoint.tensors]:
        raise InputError(f"{checkpoint.folder} lacks {len(missing)} weights, including {missing[0]}; {remedy}")
    for entry, shape in expected.items():
        found = checkpoint.shape(entry)
        is_padded = entry in PADDED and found[1:] == shape[1:] and found[0] > shape[0]
        if found != shape and not is_padded:
            raise InputError(f"{checkpoint.folder} has {entry} of shape {found}, expected {shape}; {remedy}")
    others = sorted(name for name in checkpoint.tensors.keys() - expected if not name.startswith(OPTIMISER))
    if others:
        raise InputError(
            f"{checkpoint.folder} has {len(others)} weights that --like does not have, including {others[0]}; {remedy}"
        )
    return sources


def _locate(fused: Fused, names: AbstractSet[str]) -> Source:
    """Return the first layout whose first entry is there, or the usual one."""
    candidates = []
    for name in (fused.name, *ALIASES.get(fused.name, ())):
        candidates.append(Source(fused, fused.in_layers, ((name,),)))
        if fused.in_layers:
            single = [name.replace(LAYERS, f"{LAYERS}{layer}.", 1) for layer in range(len(fused.parts))]
            candidates.append(Source(fused, False, tuple((each,) for each in single)))
            if len(fused.rows) == len(HALVES):
                candidates.append(Source(fused, False, tuple(tuple(each + end for end in HALVES) for each in single)))
    return next((source for source in candidates if source.entries[0][0] in names), candidates[0])


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import read and wrote: the iteration folder, its number of weights, their dtype, and what was ignored."""

    source: Path
    weights: int
    dtype: str
    ignored: dict[str, int]


def import_checkpoint(megatron: Path, like: Path, out: Path) -> Imported:
    """Convert a checkpoint to the Hugging Face folder `out`, with the config and tokenizer of the folder `like`."""
    require_new(out)
    wanted = layout(shape_of_folder(like))
    checkpoint = TorchDistCheckpoint.open(find_iteration(megatron))
    sources = locate(wanted, checkpoint)
    with atomic_write(out) as folder:
        folder.mkdir()
        for path in like.iterdir():
            if path.is_file() and path.suffix in COPIED and not path.name.endswith(".index.json"):
                copy2(path, folder)
        weights = {name: tensor for source in sources for name, tensor in source.read(checkpoint.read)}
        dtype = str(weights["model.embed_tokens.weight"].dtype).removeprefix("torch.")
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        settings = read_json(like / "config.json")
        settings.pop("torch_dtype", None)  # the name of dtype in older configs
        (folder / "config.json").write_bytes(encode_json({**settings, "dtype": dtype}))
    return Imported(checkpoint.folder, len(weights), dtype, _count_ignored(checkpoint))


def _count_ignored(checkpoint: TorchDistCheckpoint) -> dict[str, int]:
    extra = sum(EXTRA_STATE in name for name in checkpoint.objects)
    counts = {
        "optimiser tensors": sum(name.startswith(OPTIMISER) for name in checkpoint.tensors),
        "extra states": extra,
        "other objects": len(checkpoint.objects) - extra,
    }
    return {kind: count for kind, count in counts.items() if count}


def export_checkpoint(config: PretrainedConfig, weight: Callable[[str], Tensor], out: Path, iteration: int) -> None:
    """Write a model as a Megatron checkpoint to `out`; `weight` returns a Hugging Face tensor by name."""
    require_new(out)
    wanted, layers = layout(config), config.num_hidden_layers
    tensors = {fused.name: _stack(fused, weight) for fused in wanted}
    modules = {fused.name.removeprefix(LAYERS).rpartition(".")[0] for fused in wanted if fused.in_layers}
    objects = {
        f"{LAYERS}{module}.{EXTRA_STATE}/shard_{layer}_{layers}": [None]
        for module in sorted({*modules, "self_attention.core_attention"})
        for layer in range(layers)
    }
    objects[f"decoder.final_layernorm.{EXTRA_STATE}/shard_0_1"] = [None]
    common = {
        "args": _arguments(config, tensors.keys()),
        "checkpoint_version": CHECKPOINT_VERSION,
        "iteration": iteration,
        "content_metadata": {"singleton_local_shards": False},
    }
    with atomic_write(out) as folder:
        write_checkpoint(folder / iteration_name(iteration), tensors, objects, common)
        (folder / TRACKER).write_text(str(iteration) if iteration else RELEASE, encoding="utf-8")


def _stack(fused: Fused, weight: Callable[[str], Tensor]) -> Tensor:
    """Fuse the tensor of each layer and copy it into that of all layers, so that only one layer is held twice."""
    layers = (fused.fuse(names, weight) for names in fused.parts)
    first = next(layers)
    if not fused.in_layers:
        return first
    stacked = first.new_empty((len(fused.parts), *first.shape))
    for layer, one in enumerate(chain([first], layers)):
        stacked[layer] = one
    return stacked


def _arguments(config: PretrainedConfig, names: AbstractSet[str]) -> Namespace:
    """Return the Megatron arguments that the weights imply; Megatron compares them with its own."""
    attention = AttentionShape.of(config, torch.float32)
    return Namespace(
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        ffn_hidden_size=config.intermediate_size,
        num_attention_heads=attention.heads,
        num_query_groups=attention.kv_heads,
        group_query_attention=attention.kv_heads != attention.heads,
        kv_channels=attention.head_dim,
        max_position_embeddings=config.max_position_embeddings,
        padded_vocab_size=config.vocab_size,
        untie_embeddings_and_output_weights="output_layer.weight" in names,
        add_qkv_bias=f"{LAYERS}{QKV}.bias" in names,
        qk_layernorm=f"{LAYERS}self_attention.q_layernorm.weight" in names,
        tensor_model_parallel_size=1,
        pipeline_model_parallel_size=1,
        no_save_optim=True,
        no_save_rng=True,
    )
