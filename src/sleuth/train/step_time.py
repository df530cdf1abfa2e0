"""Seconds of a training step, predicted from measured rates that are scaled by FLOP/s and bandwidth."""

from dataclasses import dataclass
from math import ceil, hypot

from sleuth.train.footprint import FP32, ModelSize, Setup, layer_activations

SAMPLER_PASSES = 3  # over the logits: written, read, and one block read again
OPTIMISER_TRAFFIC = 50  # bytes per trained parameter: AdamW, norm, clipping, copy to half precision
HOST_LINK = 20e9  # bytes per second between GPU and pinned host memory


@dataclass(frozen=True, slots=True)
class Rates:
    """Measured rates as shares of a device's peak; `traffic` is in units of a layer's saved activations.

    `layer` and `adapter_layer` are seconds per decoder layer of a decode step, `launch` and `adapter_launch` seconds in
    which the host starts the kernels of one layer's training pass, `turn` the host's seconds per turn of an episode,
    and `search` those per turn of a group, whose episodes share most searches.
    """

    machine: str
    commit: str
    matmul: float
    attention: float
    forward_traffic: float
    backward_traffic: float
    decode_matmul: float
    decode_bandwidth: float
    optimiser_bandwidth: float
    layer: float
    adapter_layer: float
    launch: float
    adapter_launch: float
    turn: float
    search: float


# The GPU's shares are fitted to docs/benchmarks.md (bench train, step, evaluate) and docs/engine.md (bench engine), the
# seconds of the host to `bench plan` (docs/plan.md).
GPU_RATES = Rates(
    machine="one H200, 16 cores of a Xeon, torch 2.11",
    commit="b1b0a8e",
    matmul=0.78,
    attention=0.4,
    forward_traffic=6.0,
    backward_traffic=18.0,
    decode_matmul=0.68,
    decode_bandwidth=0.77,
    optimiser_bandwidth=0.7,
    layer=26e-6,
    adapter_layer=330e-6,
    launch=3.0e-3,
    adapter_launch=9.0e-3,
    turn=0.7e-3,
    search=2.3e-3,
)
# A rough fit to the quickstart (docs/quickstart.md): shares of CORE_FLOPS and CPU_BANDWIDTH.
CPU_RATES = Rates(
    machine="two cores of an AMD EPYC",
    commit="b480fdc",
    matmul=0.6,
    attention=0.2,
    forward_traffic=3.0,
    backward_traffic=6.0,
    decode_matmul=0.3,
    decode_bandwidth=0.5,
    optimiser_bandwidth=0.5,
    layer=1.0e-3,
    adapter_layer=2.0e-3,
    launch=1.0e-3,
    adapter_launch=2.0e-3,
    turn=3.0e-3,
    search=0.0,
)


@dataclass(frozen=True, slots=True)
class Episodes:
    """The episodes of a step: how many, in groups of how many, and the tokens of their parts."""

    count: int
    group: int
    updates: int
    turns: int
    prompt: int
    turn: int
    observation: int

    @property
    def sampled(self) -> int:
        return self.turns * self.turn

    @property
    def tokens(self) -> int:
        return self.prompt + self.sampled + (self.turns - 1) * self.observation


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of the phases of a step."""

    generate: float
    score: float
    train: float
    optimiser: float

    @property
    def total(self) -> float:
        return self.generate + self.score + self.train + self.optimiser


def rates_of(setup: Setup) -> Rates:
    return GPU_RATES if setup.device.is_gpu else CPU_RATES


def predict_seconds(setup: Setup, episodes: Episodes) -> StepTime:
    """Predict a step on one device; searches are hidden behind other episodes, except for the host's own work."""
    rates = rates_of(setup)
    models = [setup.policy] if setup.critic is None else [setup.policy, setup.critic]
    scored_by_policy = (setup.reference, setup.scores_old, setup.information_gain)
    passes = [*(setup.policy for wanted in scored_by_policy if wanted), *models[1:]]
    passes += [setup.teacher] if setup.teacher is not None else []  # upper bound: assumes every episode failed
    tokens, scored = episodes.count * episodes.tokens, episodes.sampled / episodes.tokens
    return StepTime(
        generate=_generate(setup, episodes, rates),
        score=sum(_forward(setup, model, tokens, scored, episodes.tokens, rates) for model in passes),
        train=sum(_train(setup, model, episodes, rates) for model in models),
        optimiser=episodes.updates * sum(_optimise(setup, model, rates) for model in models),
    )


def _multiplied(model: ModelSize, scored: float) -> float:
    """Parameters by which a token is multiplied, if so many of the tokens go through the head."""
    return model.active - model.head * (1 - scored)


def _attention_flops(model: ModelSize, length: float) -> float:
    """FLOPs per token of attention in all layers, forward, for rows of so many tokens."""
    shape = model.attention()
    return 4 * (length / 2) * shape.heads * shape.head_dim * shape.layers


def _forward(
    setup: Setup, model: ModelSize, tokens: float, scored: float, length: float, rates: Rates, rank: int = 0
) -> float:
    peak, shape = setup.device.flops(setup.half), model.attention()
    products = 2 * _multiplied(model, scored) / (rates.matmul * peak)
    attention = _attention_flops(model, length) / (rates.attention * peak)
    saved = shape.layers * layer_activations(setup, model, rank)
    return tokens * (products + attention + rates.forward_traffic * saved / setup.device.bandwidth)


def _train(setup: Setup, model: ModelSize, episodes: Episodes, rates: Rates) -> float:
    """Forward and backward passes of all packs; recomputed layers run forward twice."""
    rank = setup.rank if model is setup.policy else 0
    tokens, scored = episodes.count * episodes.tokens, episodes.sampled / episodes.tokens
    peak, shape = setup.device.flops(setup.half), model.attention()
    forward = _forward(setup, model, tokens, scored, episodes.tokens, rates, rank)
    gradients = 1 if rank else 2  # of the states, and of the weights
    products = 2 * gradients * _multiplied(model, scored) / (rates.matmul * peak)
    attention = 2.5 * _attention_flops(model, episodes.tokens) / (rates.attention * peak)
    saved = shape.layers * layer_activations(setup, model, rank)
    backward = tokens * (products + attention + rates.backward_traffic * saved / setup.device.bandwidth)
    packs = episodes.updates * ceil(tokens / episodes.updates / setup.pack)
    launches = packs * shape.layers * (rates.adapter_launch if rank else rates.launch)
    # The host launches kernels while the GPU computes; the two overlap in part.
    return hypot((1 + setup.recompute) * forward + backward, (1 + setup.recompute / 3) * launches)


def _optimise(setup: Setup, model: ModelSize, rates: Rates) -> float:
    values = setup.trained if model is setup.policy else model.parameters
    seconds = OPTIMISER_TRAFFIC * values / (rates.optimiser_bandwidth * setup.device.bandwidth)
    # Gradients to the host, weights back, and AdamW at the speed of host memory.
    return seconds + (values * (FP32 + setup.itemsize + OPTIMISER_TRAFFIC) / HOST_LINK if setup.offload else 0)


def decode_step_seconds(setup: Setup, lanes: int, length: float) -> float:
    """Predict one decode step of so many sequences, whose contexts have this length on average."""
    model, device, rates = setup.policy, setup.device, rates_of(setup)
    shape, peak = model.attention(setup.dtype), device.flops(setup.half)
    products = max(
        2 * model.active * lanes / (rates.decode_matmul * peak),
        model.active * setup.itemsize / (rates.decode_bandwidth * device.bandwidth),
    )
    cache = lanes * length * shape.bytes_per_token / (rates.decode_bandwidth * device.bandwidth)
    logits = SAMPLER_PASSES * lanes * model.vocabulary * FP32 / device.bandwidth
    overhead = shape.layers * (rates.adapter_layer if setup.rank else rates.layer)
    return products + cache + logits + overhead


def prefill_seconds(setup: Setup, tokens: float, length: float) -> float:
    """Predict the prefill of so many tokens, in contexts of this length."""
    return _forward(setup, setup.policy, tokens, 0.0, length, rates_of(setup))


def _generate(setup: Setup, episodes: Episodes, rates: Rates) -> float:
    """Decode and prefill on the GPU beside the host's work, which overlap in part."""
    lanes = max(1, min(setup.slots, episodes.count))
    length = episodes.prompt + (episodes.tokens - episodes.prompt) / 2
    steps = ceil(episodes.count / lanes) * episodes.sampled
    # The samples of a group share the pages of their prompt; each turn computes only its new tokens.
    given = episodes.prompt / episodes.group + (episodes.turns - 1) * episodes.observation
    prefill = prefill_seconds(setup, episodes.count * given, episodes.tokens)
    host = episodes.count * episodes.turns * (rates.turn + rates.search / episodes.group)
    return hypot(steps * decode_step_seconds(setup, lanes, length) + prefill, host)
