"""vLLM's HTTP interface: /v1/completions for tokens, and the developer endpoints for weights."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import index
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sleuth.config.engine import ENTRY_WORDS, InFlight
from sleuth.engines.servers.completion import Chunk, PartialCompletion, is_truncated
from sleuth.engines.servers.dialect import ADAPTER_NAME, Request, Served, Versions
from sleuth.engines.servers.weights import Control, Load
from sleuth.errors import EngineFailure

SEEDS = 2**63  # vLLM takes 63-bit seeds; larger ones would become negative, and -1 means unseeded
# vLLM's pause modes. Our own requests resume on the new weights, unless they finish on the old ones.
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM reserves memory for
PAUSE_MODES: dict[InFlight, str] = {"finish": "wait", "pause": "keep", "abort": "abort"}


class Vllm:
    """vLLM 0.26 to 0.32 with --logprobs-mode processed_logprobs, and VLLM_SERVER_DEV_MODE=1 for weight updates."""

    name = "vLLM"
    path = "/v1/completions"
    health = "/health"
    health_timeout = 5.0
    versions: Versions = ((0, 26), (0, 32))
    finds_stops = True
    checks_prompts = True
    context_option = "--max-model-len {context}"
    logprobs_remedy = "start vLLM with --logprobs-mode processed_logprobs"
    missing_remedy = "start vLLM with VLLM_SERVER_DEV_MODE=1"
    example = "env/bin/vllm serve"
    environment: Mapping[str, str] = MappingProxyType(
        {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
    )
    memory_option = "--gpu-memory-utilization"
    prefill_option = "--max-num-batched-tokens"
    parallel_option = "--tensor-parallel-size"

    def command_end(self, command: Sequence[str]) -> int:
        return next(place for place, word in enumerate(command, 1) if word in ENTRY_WORDS["vllm"])

    def arguments(self, model: Path, context: int, slots: int) -> list[str]:
        limits = ["--max-model-len", str(context), "--max-num-seqs", str(slots)]
        return [str(model), *limits, "--logprobs-mode", "processed_logprobs"]

    async def describe(self, request: Request) -> Served:
        answer = await request("GET", "/version", None)
        version = str(answer.get("version")) if isinstance(answer, dict) else str(answer)
        answer = await request("GET", "/v1/models", None)
        try:
            first = answer["data"][0]
            return Served(version, str(first["id"]), int(first["max_model_len"]))
        except (TypeError, LookupError, ValueError) as error:
            raise EngineFailure(f"the server lists no model with a max_model_len: {str(answer)[:120]!r}") from error

    def request_body(self, partial: PartialCompletion, model: str) -> dict[str, Any]:
        sampling, sampled = partial.sampling, len(partial.ids)
        truncation = {"top_k": index(sampling.top_k), "top_p": sampling.top_p, "min_p": sampling.min_p}
        return {
            **_body(model, partial.begin_request(), sampling.temperature),
            **(truncation if is_truncated(sampling) else {}),
            "max_tokens": partial.tokens_left,
            "seed": (index(sampling.seed) + sampled) % SEEDS,
            "stop": list(sampling.stops),
            "stop_token_ids": list(partial.eos_ids),
            "include_stop_str_in_output": True,
            "stream": True,
            "logprobs": 0,
        }

    def parse_chunk(self, message: str, received: int) -> Chunk:  # noqa: ARG002  every message has new tokens only
        try:
            choice = json.loads(message)["choices"][0]
            ids = tuple(int(token) for token in choice["token_ids"] or ())
            logprobs = tuple(float(logprob) for logprob in (choice["logprobs"] or {}).get("token_logprobs", ()))
            finish, stop = choice.get("finish_reason"), choice.get("stop_reason")
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise EngineFailure(
                f"the server returned {message[:120]!r}, expected a completion chunk with token ids and logprobs"
            ) from error
        return Chunk(ids, logprobs, finish, stop if isinstance(stop, str) else None)

    async def rescore(self, request: Request, model: str, partial: PartialCompletion, chunk: Chunk) -> Chunk:
        """Replace the logprobs of truncated sampling, which vLLM renormalises.

        One request per token; its prompt is in the server's prefix cache.
        """
        if not is_truncated(partial.sampling):
            return chunk
        before, temperature = [*partial.prompt, *partial.ids], partial.sampling.temperature

        async def score(prompt: Sequence[int], token: int) -> float:
            body = self.probe_body(model, prompt, temperature, 1) | {"logprob_token_ids": [token]}
            if token not in (found := self.parse_top_logprobs(await request("POST", self.path, body))):
                raise EngineFailure("the server returns no untruncated logprobs; sample without top_k, top_p and min_p")
            return found[token]

        scores = (score([*before, *chunk.ids[:place]], token) for place, token in enumerate(chunk.ids))
        return replace(chunk, logprobs=tuple(await asyncio.gather(*scores)))

    def probe_body(self, model: str, ids: Sequence[int], temperature: float, count: int) -> dict[str, Any]:
        return {**_body(model, ids, temperature), "max_tokens": 1, "seed": 0, "logprobs": count}

    def parse_top_logprobs(self, answer: object) -> dict[int, float]:
        try:
            (found,) = answer["choices"][0]["logprobs"]["top_logprobs"]  # type: ignore[index]
            return {int(name.removeprefix("token_id:")): float(logprob) for name, logprob in found.items()}
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise EngineFailure(f"the server returned {str(answer)[:120]!r}, expected top_logprobs") from error

    def load_folder(self, control: Control, folder: Path) -> None:
        control.post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}})

    def adapter_options(self, rank: int) -> Sequence[str]:
        largest = next((each for each in LORA_RANKS if each >= rank), rank)  # vLLM says what is wrong with a larger one
        return ["--enable-lora", "--max-loras", "1", "--max-lora-rank", str(largest)]

    def load_adapter(self, control: Control, folder: Path) -> None:
        body = {"lora_name": ADAPTER_NAME, "lora_path": str(folder), "load_inplace": True}
        control.post("/v1/load_lora_adapter", body)

    def update_weights(self, control: Control, load: Load, in_flight: InFlight, name: str) -> None:  # noqa: ARG002
        control.post(f"/pause?mode={PAUSE_MODES[in_flight]}")
        try:
            load(control)
            # Paused requests lose their keys and values too, and recompute them with the new weights.
            answer = control.post("/reset_prefix_cache?reset_running_requests=true")
            if isinstance(answer, dict) and answer.get("success") is False:
                raise EngineFailure(f"{control.address} did not drop the prefix cache of its old weights; restart it")
        finally:
            control.post("/resume")


def _body(model: str, ids: Sequence[int], temperature: float) -> dict[str, Any]:
    """Build a request that sets every sampling parameter, so that the model's generation config has no effect."""
    return {
        "model": model,
        "prompt": list(ids),
        "temperature": float(temperature),
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }
