"""Gauges of a step: how fast it went, how much memory it took, and how old its tokens were."""

from collections.abc import Mapping

import torch

from sleuth.train.assemble import Parts
from sleuth.train.memory import peak_gib
from sleuth.train.policy import Policy
from sleuth.train.rollout import Harvest

# Dense bf16 operations a second of the GPUs most trained on, by a part of their name.
PEAKS = {"H200": 989e12, "H100": 989e12, "H20": 148e12, "B200": 2250e12, "A100": 312e12, "L40S": 362e12, "4090": 165e12}


def read(parts: Parts, harvest: Harvest, step: int, known: Mapping[str, float]) -> dict[str, float]:
    """What there is to record beside the metrics `known` of a step."""
    return {**_speed(parts, harvest, known), **harvest.spent, **_ages(harvest, step), **peak_gib()}


def _speed(parts: Parts, harvest: Harvest, known: Mapping[str, float]) -> dict[str, float]:
    found = {
        "speed/tokens": known["episode/tokens_all"] / known["time/step"],
        "speed/trajectories": len(harvest.trajectories) / known["time/step"],
        "time/episodes": harvest.seconds,
    }
    peak = peak_of(parts.learner.policy.device)
    if peak is not None and known.get("time/train"):
        # Of this rank: the tokens it computed, the critic's among them.
        found["speed/mfu"] = operations(parts.learner.policy) * known["train/tokens"] / known["time/train"] / peak
    if "train/tokens" in known:
        every = parts.ranks.gather([known["train/tokens"]], "the count of tokens")
        found["train/tokens"] = sum(tokens for (tokens,) in every)
    return found


def operations(policy: Policy) -> int:
    """Of one token: two a parameter forwards, two backwards, and two more for a parameter that is trained."""
    trained = sum(each.numel() for _, each in policy.parameters())
    return 2 * (2 * policy.size + trained)


def peak_of(device: torch.device) -> float | None:
    """What the device could do in a second at most, where that is known."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return next((peak for part, peak in PEAKS.items() if part in name), None)


def _ages(harvest: Harvest, step: int) -> dict[str, float]:
    """How many versions older than the weights they train the sampled tokens are."""
    ages = [step - version for each in harvest.trajectories for version in each.versions]
    return {"staleness/mean": sum(ages) / len(ages), "staleness/max": float(max(ages))} if ages else {}
