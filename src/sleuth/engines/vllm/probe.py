"""What a server must be before it is asked for anything: its version, its model, and what it calls a logprob."""

import re
from dataclasses import dataclass

from sleuth.engines.vllm.message import best, likeliest
from sleuth.engines.vllm.server import COMPLETIONS, Lost, Server
from sleuth.errors import ConfigError, EngineFailure

OLDEST, NEWEST = (0, 26), (0, 32)
# A temperature at which logprobs of the distribution sampled from are twice as far apart.
COLD = 0.5
FEW = 5
# Ids that every vocabulary has; after one of them some tokens are likelier than others, unless the model is no model.
PROMPTS = range(1, 9)
LEAST_APART = 0.01


@dataclass(frozen=True, slots=True)
class Served:
    """The name under which a server has its model, and how many tokens it takes."""

    model: str
    context: int


async def probe(server: Server) -> Served:
    """Checks a server, one sentence for each thing that may be wrong with it."""
    try:
        _check_version(server, await server.ask("GET", "/version"))
        served = _served(server, await server.ask("GET", "/v1/models"))
        await _check_logprobs(server, served.model)
    except Lost as lost:
        raise EngineFailure(f"no vLLM server answers at {lost}; start it first, or mend its address") from lost
    return served


def _check_version(server: Server, answer: object) -> None:
    named = str(answer.get("version")) if isinstance(answer, dict) else str(answer)
    found = re.match(r"(\d+)\.(\d+)", named)
    if not found or not OLDEST <= (int(found[1]), int(found[2])) <= NEWEST:
        low, high = (".".join(map(str, version)) for version in (OLDEST, NEWEST))
        raise ConfigError(f"{server.address} runs vLLM {named!r}, expected {low} to {high}: install one of these")


def _served(server: Server, answer: object) -> Served:
    try:
        first = answer["data"][0]  # type: ignore[index]
        return Served(str(first["id"]), int(first["max_model_len"]))
    except (TypeError, LookupError, ValueError) as error:
        raise EngineFailure(f"{server.address} lists no model with its max_model_len: {str(answer)[:120]!r}") from error


async def _check_logprobs(server: Server, model: str) -> None:
    """Logprobs of the distribution at the temperature are twice as far apart at half of it; raw ones are not."""
    for prompt in PROMPTS:
        warm, cold = [await _apart(server, model, prompt, temperature) for temperature in (1.0, COLD)]
        if warm < LEAST_APART:
            continue
        if abs(cold / warm - 1 / COLD) > 0.05 / COLD:
            raise ConfigError(
                f"{server.address} gives logprobs that do not follow the temperature; "
                "start vLLM with --logprobs-mode processed_logprobs"
            )
        return


async def _apart(server: Server, model: str, prompt: int, temperature: float) -> float:
    """Between the likeliest few; the sampled token, which may not be one of them, is left out."""
    answer = await server.ask("POST", COMPLETIONS, best(model, [prompt], temperature, FEW))
    found = sorted(likeliest(answer).values(), reverse=True)[:FEW]
    return found[0] - found[-1]
