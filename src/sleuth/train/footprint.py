"""Memory of a training step in bytes, predicted from the model's config; no weights are loaded.

Each formula names the code whose allocations it counts. Sizes are per token unless they say otherwise.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PretrainedConfig

from sleuth.engines.paged.engine import PREFILL_TOKENS
from sleuth.engines.paged.kv_cache import page_limit, workspace_bytes
from sleuth.engines.paged.page_pool import PAGE_SIZE
from sleuth.errors import InputError
from sleuth.model import llama_family, lm_head, lora
from sleuth.model.attention import AttentionShape
from sleuth.train.accelerators import GIB, Accelerator
from sleuth.train.optimiser import Kind

FP32, HALF, ADAM = 4, 2, 8  # bytes per value; AdamW has two fp32 moments
SMALL, BLOCK = 4096, 256  # 8-bit AdamW: smaller tensors keep fp32 moments, larger ones have one scale per block
CONTEXT = int(0.6 * GIB)  # of CUDA and its libraries
GRAPH = 8 << 20  # nodes of one captured CUDA graph
FRAGMENTATION = 0.03  # of what a pass allocates
PROCESS = int(0.7 * GIB)  # Python, torch and the other libraries, on a CPU
PACK_TOKENS, MAX_PACK_TOKENS = 1 << 14, 1 << 16  # smallest and largest default of `train.pack_tokens`
PACK_MEMORY = 1 / 6  # share of a GPU's memory for the activations of a default pack beyond the smallest
CPU_LOGITS = 5  # tensors of the size of a chunk's logits that exist at once without the kernels

Engine = Literal["shared", "copy", "server", "elsewhere"]
Parts = dict[str, int]


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Sizes of a causal model.

    `active` counts the parameters by which a token is multiplied, `small` those of tensors below SMALL values.
    `linears` has the name, inputs and outputs of each layer that can take an adapter. `fused`: our kernels compute the
    layers.
    """

    config: PretrainedConfig
    parameters: int
    active: int
    small: int
    largest: int
    tied: bool
    fused: bool
    linears: tuple[tuple[str, int, int], ...]

    @classmethod
    def of(cls, config: PretrainedConfig) -> "ModelSize":
        """Count on the meta device, which allocates nothing."""
        try:
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(config)
        except Exception as error:  # a damaged config may raise anything
            raise InputError(f"config.json describes no causal model ({error}); choose another model") from error
        sizes = {name: each.numel() for name, each in model.named_parameters()}
        total, head = sum(sizes.values()), model.get_output_embeddings()
        embedding = model.get_input_embeddings().weight
        tied = head is not None and head.weight is embedding
        used = getattr(config, "num_experts_per_tok", None) or 1
        every = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None) or used
        experts = sum(size for name, size in sizes.items() if ".experts." in name)
        return cls(
            config=config,
            parameters=total,
            active=total - (0 if tied else embedding.numel()) - int(experts * (1 - used / every)),
            small=sum(size for size in sizes.values() if size < SMALL),
            largest=max(sizes.values()),
            tied=tied,
            fused=llama_family.difference(model) is None,
            linears=tuple(
                (name.rpartition(".")[2], each.in_features, each.out_features)
                for name, each in model.named_modules()
                if isinstance(each, nn.Linear) and each is not head
            ),
        )

    @property
    def width(self) -> int:
        return int(self.config.hidden_size)

    @property
    def intermediate(self) -> int:
        return int(getattr(self.config, "intermediate_size", None) or 4 * self.width)

    @property
    def vocabulary(self) -> int:
        return int(self.config.vocab_size)

    @property
    def head(self) -> int:
        """Parameters of the output head."""
        return self.vocabulary * self.width

    def attention(self, dtype: torch.dtype = torch.bfloat16) -> AttentionShape:
        return AttentionShape.of(self.config, dtype)

    def adapter(self, rank: int, targets: str) -> int:
        """Parameters of a LoRA adapter."""
        names = {name.strip() for name in targets.split(",")}
        chosen = (each for each in self.linears if targets == lora.ALL or each[0] in names)
        return sum(rank * (inputs + outputs) for _, inputs, outputs in chosen)


@dataclass(frozen=True, slots=True)
class Setup:
    """What the memory of a step depends on.

    `pack` is the number of tokens of the largest pack and `scored` how many of them are sampled. `share` is the maximum
    share of memory for the KV cache. The episodes of a tree, `tree` in number, are in one pack. The engine shares the
    trainer's weights, has a copy of them, is a server on the same GPU, or runs elsewhere.
    """

    policy: ModelSize
    device: Accelerator
    pack: int
    scored: int
    context: int
    slots: int
    share: float = 0.3
    prefill: int | None = None
    half: bool = True
    rank: int = 0
    targets: str = lora.ALL
    optimiser: Kind = "adamw"
    offload: bool = False
    recompute: float = 0.0
    reference: bool = False
    teacher: ModelSize | None = None
    critic: ModelSize | None = None
    scores_old: bool = False
    information_gain: bool = False
    tree: int = 1
    engine: Engine = "shared"
    ranks: int = 1

    @property
    def itemsize(self) -> int:
        return HALF if self.half else FP32

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.half else torch.float32

    @property
    def kernels(self) -> bool:
        """Whether layers and head run our kernels."""
        return self.half and self.device.is_gpu

    @property
    def adapter(self) -> int:
        return self.policy.adapter(self.rank, self.targets) if self.rank else 0

    @property
    def trained(self) -> int:
        return self.adapter or self.policy.parameters

    @property
    def prefill_tokens(self) -> int:
        return self.prefill or PREFILL_TOKENS["cuda" if self.device.is_gpu else "cpu"]

    @property
    def recomputed_layers(self) -> int:
        return int(self.recompute * self.policy.attention().layers + 1e-9)

    @property
    def has_engine(self) -> bool:
        return self.engine in ("shared", "copy")


def moments(setup: Setup, values: int, small: int) -> int:
    """AdamW's state of so many trained values."""
    if setup.optimiser == "adamw":
        return ADAM * values
    return ADAM * small + (values - small) * 2 + (values - small) // BLOCK * 2 * FP32


def resident(setup: Setup) -> Parts:
    """What stays on the device between the phases of a step, from the second step on."""
    model, item, trained = setup.policy, setup.itemsize, setup.trained
    whole = model.parameters + setup.adapter
    small = trained if setup.rank else model.small
    sharded = setup.ranks > 1
    # Optimiser: a half-precision parameter has an fp32 master and an fp32 sum of gradients. FSDP: shards are fp32.
    parts = {
        "weights": (whole - trained) * item + trained * (FP32 if sharded else item),
        "fp32 masters": 0 if sharded or not setup.half else FP32 * trained,
        "moments": moments(setup, trained, min(small, trained)),
        "gradients": FP32 * trained,
        "reference model": whole * item if setup.reference and not setup.rank else 0,
        "teacher": 0 if setup.teacher is None else setup.teacher.parameters * item,
        "critic": 0 if setup.critic is None else _critic(setup, setup.critic),
    }
    if sharded:
        parts = {name: size // setup.ranks for name, size in parts.items()}
        # One layer is gathered while the next is; embedding and head belong to the root and stay.
        layer = (model.parameters - model.head) // model.attention().layers
        parts["gathered weights"] = item * (2 * layer + model.head * (1 if model.tied else 2))
    if setup.offload and setup.device.is_gpu:
        parts |= {"fp32 masters": 0, "moments": 0}
    parts["engine's weights"] = whole * item if setup.engine == "copy" else 0
    parts["KV cache"] = kv_cache(setup)
    return parts


def host_state(setup: Setup) -> int:
    """Masters and moments that `train.offload` keeps in host memory."""
    if not setup.offload or not setup.device.is_gpu:
        return 0
    return FP32 * setup.trained + moments(setup, setup.trained, 0)


def _critic(setup: Setup, critic: ModelSize) -> int:
    body = critic.parameters - (0 if critic.tied else critic.head)
    state = moments(setup, body, critic.small) + (FP32 if setup.half else 0) * body
    kept = 0 if setup.offload and setup.device.is_gpu else state
    return body * (setup.itemsize + FP32) + kept


def kv_cache(setup: Setup) -> int:
    """Pages as `kv_cache.count_pages` allocates them; the whole share for a server on this GPU."""
    budget = int(setup.share * setup.device.memory)
    if not setup.has_engine:
        return budget if setup.engine == "server" else 0
    page = PAGE_SIZE * setup.policy.attention(setup.dtype).bytes_per_token
    return page * page_limit(page, slots=setup.slots, context=setup.context + 1, budget=budget)


def engine_workspace(setup: Setup) -> int:
    """The largest step of the engine; on a GPU, captured CUDA graphs keep it."""
    if not setup.has_engine:
        return 0
    return workspace_bytes(setup.policy.config, setup.itemsize, slots=setup.slots, prefill_tokens=setup.prefill_tokens)


def layer_activations(setup: Setup, model: ModelSize, rank: int) -> int:
    """Bytes per token that one decoder layer saves for its backward pass."""
    shape = model.attention()
    width, inner, heads = model.width, model.intermediate, shape.heads
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    ranks = 7 * rank
    if setup.kernels and model.fused:
        # fused_layers: two residual streams, a QKV row, the attention output and its log-sum-exp, gate and up. An
        # adapter also needs the inputs of its linear layers.
        values = 2 * width + (queries + 2 * keys) + queries + 2 * inner
        adapters = 2 * width + inner + ranks if rank else 0
        return setup.itemsize * (values + adapters) + FP32 * heads
    # Hugging Face's own modules with our attention; frozen norms need not save their normed input.
    values = (4 if rank else 6) * width + 4 * queries + 4 * keys + 4 * inner + heads + 2 + ranks
    return setup.itemsize * values


def default_pack_tokens(config: PretrainedConfig, memory: int) -> int:
    """The number of tokens of a pass if `train.pack_tokens` is not set; `memory` of the GPU in bytes, 0 without one.

    The host takes as long to launch the kernels of a small pass as of a large one, so small models need large packs.
    """
    shape, width = AttentionShape.of(config, torch.bfloat16), int(config.hidden_size)
    inner = int(getattr(config, "intermediate_size", None) or 4 * width)
    # As in `layer_activations`, for fused layers.
    token = shape.layers * HALF * (2 * width + 2 * (shape.heads + shape.kv_heads) * shape.head_dim + 2 * inner)
    tokens = PACK_TOKENS
    while tokens < MAX_PACK_TOKENS and 2 * tokens * token <= PACK_MEMORY * memory:
        tokens *= 2
    return tokens


def activations(setup: Setup, model: ModelSize, rank: int) -> int:
    """Bytes that the layers save for a whole pack; a recomputed layer saves its input."""
    shape, item = model.attention(), setup.itemsize
    recomputed = setup.recomputed_layers
    kept = (shape.layers - recomputed) * layer_activations(setup, model, rank) + recomputed * item * model.width
    # The last layer's output, and the rotary tables.
    return setup.pack * (kept + item * (model.width + 2 * shape.head_dim))


def head_bytes(setup: Setup, *, backward: bool) -> int:
    """The language-model head on the scored tokens: a chunk of logits and, backward, its gradients."""
    model, item = setup.policy, setup.itemsize
    states = setup.scored * model.width * item
    if not setup.kernels:
        return min(setup.scored, lm_head.CHUNK) * model.vocabulary * FP32 * CPU_LOGITS + 2 * states
    rows = lm_head.chunk_rows(max(1, setup.scored), model.vocabulary)
    logits = rows * model.vocabulary * FP32
    if not backward:
        return logits + states
    weight = 0 if setup.rank else model.head * (FP32 + item)  # summed in fp32, then rounded
    return logits + rows * model.vocabulary * item + weight + 2 * states


def backward_transient(setup: Setup, model: ModelSize, rank: int) -> int:
    """What the backward pass of one layer holds besides saved activations."""
    item, inner, width = setup.itemsize, model.intermediate, model.width
    recomputed = layer_activations(setup, model, rank) if setup.recomputed_layers else 0
    # Gradients of the stream, of gate and up, and of their product, which is computed again.
    states = setup.pack * (recomputed + item * (3 * width + 4 * inner))
    weights = 0 if rank else item * 3 * inner * width
    # The gradient of a tied head waits for that of the embedding.
    head = model.head * item if model.tied and not rank else 0
    return states + weights + head


def forward_transient(setup: Setup, model: ModelSize) -> int:
    """A forward pass without gradients: the widest layer."""
    shape = model.attention()
    qkv = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    return setup.pack * setup.itemsize * (4 * model.width + qkv + 3 * model.intermediate)


@dataclass(frozen=True, slots=True)
class Footprint:
    """Predicted memory: what stays, the peak of tensors in each phase, and what the device needs in all."""

    parts: Parts
    phases: Parts
    overhead: int
    host: int

    @property
    def peak(self) -> int:
        """Peak of tensors, as `torch.cuda.max_memory_allocated` counts them."""
        return max(self.phases.values())

    @property
    def needed(self) -> int:
        return self.peak + self.overhead

    @property
    def largest_phase(self) -> str:
        return max(self.phases, key=self.phases.__getitem__)


def predict(setup: Setup) -> Footprint:
    """Predict the memory of a step from the second step on, when the optimiser has its state."""
    parts = resident(setup)
    base = sum(parts.values())
    saved = activations(setup, setup.policy, setup.rank)
    transient = backward_transient(setup, setup.policy, setup.rank)
    training = saved + max(head_bytes(setup, backward=True), transient)
    if setup.critic is not None:
        critic = activations(setup, setup.critic, 0) + backward_transient(setup, setup.critic, 0)
        training = max(training, critic)
    workspace = engine_workspace(setup)
    phases = {"generate": base + workspace}
    if setup.reference or setup.scores_old or setup.information_gain or setup.critic is not None:
        phases["score"] = base + max(forward_transient(setup, setup.policy), head_bytes(setup, backward=False))
    if (teacher := setup.teacher) is not None:
        scoring = max(forward_transient(setup, teacher), head_bytes(replace(setup, policy=teacher), backward=False))
        phases["score"] = max(phases.get("score", 0), base + scoring)
    # torch's AdamW needs temporary copies of one tensor on a CPU.
    step = 0 if setup.device.is_gpu else 2 * FP32 * setup.policy.largest
    phases |= {"train": base + training, "optimiser": base + step}
    parts = {**parts, "activations": saved, "head and gradients of a layer": training - saved}
    if not setup.device.is_gpu:
        # A checkpoint is written from a copy of weights and moments.
        copies = setup.policy.parameters * setup.itemsize + moments(setup, setup.trained, 0)
        return Footprint(parts, phases, PROCESS + copies, 0)
    graphs = 0
    if setup.has_engine and setup.policy.fused:
        graphs = workspace + GRAPH * count_graphs(setup)
    return Footprint(parts, phases, CONTEXT + graphs + int(FRAGMENTATION * training), host_state(setup))


def count_graphs(setup: Setup) -> int:
    """CUDA graphs that an engine captures: decode steps by 64 lanes, mixed steps by powers of two."""
    lanes = max(1, setup.slots)
    return -(-lanes // 64) + 6 * max(1, (lanes // 64).bit_length())
