"""Checks of a vLLM server before use: version, model, meaning of its logprobs, and updates of a tied output head.

Suffixes: V vocabulary, W model width.
"""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import httpx

from sleuth.engines.vllm.client import ServerLost, VllmClient
from sleuth.engines.vllm.completions import PATH, parse_top_logprobs, top_body
from sleuth.errors import ConfigError, EngineFailure

if TYPE_CHECKING:
    from torch import Tensor

OLDEST, NEWEST = (0, 26), (0, 32)
LOW_TEMPERATURE = 0.5  # at which logprobs of the sampled distribution are twice as far apart
TOP = 5
PROMPTS = range(1, 9)  # ids in every vocabulary
MIN_SPREAD = 0.01  # of top logprobs, below which a prompt shows nothing
HEAD_PROMPT = 1
TOLERANCE = 0.05


async def check_servers(clients: Sequence[VllmClient], context: int) -> str:
    """Check every server and return the name of the one model that they all serve."""
    served = [await _check(client) for client in clients]
    models, limit = sorted({model for model, _ in served}), min((length for _, length in served), default=0)
    if len(models) != 1 or not 1 < context <= limit:
        raise ConfigError(
            f"{len(served)} servers with models {models} and a context of {limit} tokens, expected one model and "
            f"a context of {context}: start all of them alike, with --max-model-len {context}"
        )
    return models[0]


async def _check(client: VllmClient) -> tuple[str, int]:
    """Return the name of the served model and its context length."""
    try:
        _check_version(client, await client.request("GET", "/version"))
        answer = await client.request("GET", "/v1/models")
        try:
            first = answer["data"][0]
            model, context = str(first["id"]), int(first["max_model_len"])
        except (TypeError, LookupError, ValueError) as error:
            raise EngineFailure(
                f"{client.address} lists no model with a max_model_len: {str(answer)[:120]!r}"
            ) from error
        await _check_logprobs(client, model)
    except ServerLost as lost:
        raise EngineFailure(f"no vLLM server answers at {lost}; start it first, or correct the address") from lost
    return model, context


def _check_version(client: VllmClient, answer: object) -> None:
    version = str(answer.get("version")) if isinstance(answer, dict) else str(answer)
    found = re.match(r"(\d+)\.(\d+)", version)
    if not found or not OLDEST <= (int(found[1]), int(found[2])) <= NEWEST:
        low, high = (".".join(map(str, supported)) for supported in (OLDEST, NEWEST))
        raise ConfigError(f"{client.address} runs vLLM {version!r}, expected {low} to {high}: install one of these")


async def _check_logprobs(client: VllmClient, model: str) -> None:
    """At half the temperature, processed logprobs are twice as far apart; raw ones are unchanged."""
    for prompt in PROMPTS:
        spread, cold = [await _spread(client, model, prompt, temperature) for temperature in (1.0, LOW_TEMPERATURE)]
        if spread < MIN_SPREAD:
            continue
        if abs(cold / spread - 1 / LOW_TEMPERATURE) > TOLERANCE / LOW_TEMPERATURE:
            raise ConfigError(
                f"{client.address} gives logprobs that ignore the temperature; "
                "start vLLM with --logprobs-mode processed_logprobs"
            )
        return


async def _spread(client: VllmClient, model: str, prompt: int, temperature: float) -> float:
    """Difference between the best and the last of the TOP logprobs, without the sampled token if it is not in there."""
    answer = await client.request("POST", PATH, top_body(model, [prompt], temperature, TOP))
    found = sorted(parse_top_logprobs(answer).values(), reverse=True)[:TOP]
    return found[0] - found[-1]


def roll_embedding(weights: "Mapping[str, Tensor]", embedding: str) -> "dict[str, Tensor]":
    """Shift every row of the embedding by one: each token takes the meaning of its predecessor.

    vLLM on a CPU keeps a copy of the tied head and ignores updates; its outputs then do not shift with the inputs.
    """
    rows_VW = weights[embedding].detach()
    return {**weights, embedding: rows_VW.roll(1, 0)}


def top_logprobs(address: str, model: str, prompt: int = HEAD_PROMPT) -> dict[int, float]:
    """Request the logprobs of the TOP likeliest tokens after one token."""
    body = top_body(model, [prompt], 1.0, TOP)
    answer = httpx.post(f"{address}{PATH}", json=body, timeout=120.0, trust_env=False)
    if answer.status_code != httpx.codes.OK:
        raise EngineFailure(f"{address} answered {answer.status_code}: {answer.text[:200]}")
    # The sampled token is listed even if it is not among the likeliest.
    ordered = sorted(parse_top_logprobs(answer.json()).items(), key=lambda each: -each[1])
    return dict(ordered[:TOP])


def head_followed(before: Mapping[int, float], after: Mapping[int, float], vocabulary: int) -> bool:
    """Whether the outputs shifted with the embedding; ties with the last token may be listed differently."""
    last = min(before.values()) + TOLERANCE
    return all(
        abs(after.get((token + 1) % vocabulary, -1e9) - logprob) < TOLERANCE
        for token, logprob in before.items()
        if logprob > last
    )
