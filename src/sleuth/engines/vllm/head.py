"""Whether new weights reach a head that is the embedding itself: a server may have made itself a copy of it.

vLLM on a CPU does so, and goes on with the copy. It shows when every row of the embedding moves on by one: a token then
means what the one before it meant, in what is read and in what is said.

Suffixes: V vocabulary, W model width.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import httpx

from sleuth.engines.vllm.message import best, likeliest
from sleuth.engines.vllm.server import COMPLETIONS
from sleuth.errors import EngineFailure

if TYPE_CHECKING:
    from torch import Tensor

PROMPT = 1
FEW = 5
NEAR = 0.05


def moved_on(weights: "Mapping[str, Tensor]", embedding: str) -> "dict[str, Tensor]":
    """The weights with every row of the embedding moved on by one."""
    rows_VW = weights[embedding].detach()
    return {**weights, embedding: rows_VW.roll(1, 0)}


def said(address: str, model: str, prompt: int = PROMPT) -> dict[int, float]:
    """The logprobs of the likeliest tokens after one."""
    answer = httpx.post(f"{address}{COMPLETIONS}", json=best(model, [prompt], 1.0, FEW), timeout=120.0, trust_env=False)
    if answer.status_code != httpx.codes.OK:
        raise EngineFailure(f"{address} answered {answer.status_code}: {answer.text[:200]}")
    # The sampled token may be none of the likeliest.
    ordered = sorted(likeliest(answer.json()).items(), key=lambda each: -each[1])
    return dict(ordered[:FEW])


def follows(before: Mapping[int, float], after: Mapping[int, float], vocabulary: int) -> bool:
    """Whether what a server says moved on as well; of tokens as likely as the last, others may be shown."""
    last = min(before.values()) + NEAR
    return all(
        abs(after.get((token + 1) % vocabulary, -1e9) - logprob) < NEAR
        for token, logprob in before.items()
        if logprob > last
    )
