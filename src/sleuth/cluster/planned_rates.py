"""Rates of a cluster predicted by the planner (`sleuth plan`), for models and GPUs on which nothing was measured."""

import random
from dataclasses import replace
from math import hypot, log, sqrt

from sleuth.cluster.rates import ClusterRates, EpisodeShape, GroupShape, TurnShape
from sleuth.config.retrieval import Backend, backend_of
from sleuth.config.tree import Config
from sleuth.train.accelerators import Accelerator
from sleuth.train.footprint import HALF, Setup, predict
from sleuth.train.plan import Models, describe, longest_episodes, pack_tokens, typical_episodes
from sleuth.train.step_time import Episodes, decode_step_seconds, predict_seconds, prefill_seconds, rates_of

# Assumptions, not measured here. Bytes per second and GPU of collectives within a machine and between machines.
MACHINE_GPUS = 8
NVLINK, PCIE, NETWORK = 300e9, 20e9, 40e9
WITH_NVLINK = ("b200", "h200", "h100", "h20", "a100-80", "a100-40")
# A published broadcast of 7B weights takes 5.5 to 6.0 s (verl).
BROADCAST = 2.65e9
CPU_TRANSFER = 1e9
SEARCH_SECONDS: dict[Backend, float] = {"folder": 0.01, "function": 0.1, "server": 0.1, "web": 1.0}
OVERLAP = 0.5  # two processes that compute on one device
VARIATION = 0.5  # standard deviation of a turn's tokens as a share of their mean
GROUPS = 256
COLLECTIVE_BYTES = 4 * HALF  # per parameter and pack: weights gathered twice, fp32 gradients reduced once


def plan_rates(
    config: Config, device: Accelerator, models: Models, *, trainers: int = 1, separate: bool = False
) -> ClusterRates:
    """Predict the rates of a run; `separate` trainers do not generate."""
    episodes = typical_episodes(config)
    setup = describe(config, device, models, episodes, trainers)
    seconds, tokens = predict_seconds(setup, episodes), episodes.count * episodes.tokens
    lanes = [1 << power for power in range(setup.slots.bit_length()) if 1 << power < setup.slots] + [setup.slots]
    length = episodes.prompt + (episodes.tokens - episodes.prompt) / 2
    link = _link(device, trainers)
    weights = (setup.adapter or setup.policy.parameters) * setup.itemsize
    return ClusterRates(
        source=f"planned for {device.label or device.name}",
        decode=tuple((count, count / decode_step_seconds(setup, count, length)) for count in lanes),
        prefill=1 / prefill_seconds(setup, 1.0, episodes.tokens),
        turn=_turn_seconds(setup, episodes, length),
        train=tokens / seconds.train,
        score=tokens / seconds.score if seconds.score else None,
        step=seconds.optimiser / trainers,
        pack=max(pack_tokens(config, device, models.policy), episodes.tokens),
        pack_seconds=COLLECTIVE_BYTES * setup.policy.parameters / link if trainers > 1 else 0.0,
        weights=weights,
        transfer=_transfer_rate(setup, link, separate),
        search=SEARCH_SECONDS[backend_of(config.retrieval.index)],
        overlap=OVERLAP,
        groups=typical_groups(episodes, longest_episodes(config)),
    )


def fits(config: Config, device: Accelerator, models: Models, trainers: int, *, separate: bool) -> bool:
    """Whether the longest episodes fit into the memory of so many trainers, which generate unless `separate`."""
    setup = describe(config, device, models, longest_episodes(config), trainers)
    return predict(replace(setup, engine="elsewhere") if separate else setup).needed <= device.memory


def _link(device: Accelerator, trainers: int) -> float:
    within = NVLINK if device.name in WITH_NVLINK else PCIE
    return within if trainers <= MACHINE_GPUS else min(within, NETWORK)


def _transfer_rate(setup: Setup, link: float, separate: bool) -> float:
    if not setup.device.is_gpu:
        return CPU_TRANSFER
    if separate:
        return BROADCAST
    return link if setup.ranks > 1 else setup.device.bandwidth / 2


def _turn_seconds(setup: Setup, episodes: Episodes, length: float) -> float:
    """Seconds by which the host's work delays a turn: it runs beside the GPU in part, as in `step_time`."""
    lanes = max(1, min(setup.slots, episodes.count))
    given = episodes.prompt / episodes.group + (episodes.turns - 1) * episodes.observation
    decode = episodes.turn * decode_step_seconds(setup, lanes, length) / lanes
    device = decode + prefill_seconds(setup, given / episodes.turns, episodes.tokens)
    return hypot(device, rates_of(setup).turn) - device


def typical_groups(episodes: Episodes, longest: Episodes) -> tuple[GroupShape, ...]:
    """Return groups whose episodes have the typical lengths on average, within the limits of the longest."""
    draw, spread = random.Random(0), sqrt(log(1 + VARIATION**2))
    centre = log(episodes.turn) - spread**2 / 2
    around = (-1, 0, 1) if 1 < episodes.turns < longest.turns else (0,)

    def episode() -> EpisodeShape:
        count = episodes.turns + draw.choice(around)
        sampled = [min(longest.turn, max(1, round(draw.lognormvariate(centre, spread)))) for _ in range(count)]
        given = [episodes.prompt, *[episodes.observation] * (count - 1)]
        last = count - 1
        return EpisodeShape(tuple(TurnShape(given[turn], sampled[turn], turn < last) for turn in range(count)))

    return tuple(tuple(episode() for _ in range(episodes.group)) for _ in range(GROUPS))
