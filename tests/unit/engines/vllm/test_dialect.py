"""Requests to vLLM servers, their responses, and the order of a weight update."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from sleuth.engines.base import Completion, Finish, Sampling
from sleuth.engines.servers.weights import DiskTransport
from sleuth.errors import EngineFailure, SleuthError
from sleuth.model.lora import LoRA
from sleuth.model.tokens import Tokens

pytestmark = pytest.mark.parametrize("kind", ["vllm"], indirect=True)


def test_every_sampling_parameter_is_sent(kind: Any, doubles: Any, tokens: Tokens) -> None:
    async def main() -> tuple[Completion, dict[str, Any]]:
        async with doubles(1) as (server,):
            engine = await kind.engine([server.address], tokens, context=64, eos_ids=[3]).connect()
            completion = await engine.generate([10], Sampling(3, 0.7, ("</answer>",), seed=2**63 + 5))
            await engine.close()
            return completion, server.asked[0]

    completion, body = asyncio.run(main())
    assert completion.ids == (11, 12, 13)
    assert completion.logprobs == pytest.approx([-0.6931] * 3, abs=1e-4)
    assert (completion.versions, completion.finish) == ((0, 0, 0), Finish.LENGTH)
    expected = {"prompt": [10], "temperature": 0.7, "seed": 5, "stop": ["</answer>"], "stop_token_ids": [3]}
    assert {name: body[name] for name in expected} == expected
    neutral = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0, "include_stop_str_in_output": True}
    assert {name: body[name] for name in neutral} == neutral


def test_truncated_sampling_is_scored_in_the_whole_distribution(asked: Any) -> None:
    completion = asked(Sampling(3, top_k=5))
    assert completion.logprobs == (-7.0,) * 3


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ('{"choices": [{"token_ids": [1, 2], "logprobs": {"token_logprobs": [-1]}}]}', "2 tokens with 1"),
        ('{"choices": [{"token_ids": [1], "logprobs": {"token_logprobs": [-9999]}}]}', "-9999"),
        ('{"choices": [{"token_ids": [], "logprobs": null, "finish_reason": "length"}]}', "length"),
        ('{"choices": [{"token_ids": [], "logprobs": null, "finish_reason": "?"}]}', r"'\?'"),
    ],
)
def test_a_bad_message_is_an_engine_failure(asked: Any, message: str, error: str) -> None:
    with pytest.raises(EngineFailure, match=error):
        asked(Sampling(4), token_timeout=0.2, message=message)


@pytest.mark.parametrize(
    ("faults", "error"),
    [({"version": "0.25.1"}, "0.25.1.*0.26 to 0.32"), ({"raw": True}, "logprobs-mode processed_logprobs")],
)
def test_an_unsuitable_server_is_refused_with_the_remedy(asked: Any, faults: dict[str, Any], error: str) -> None:
    with pytest.raises(SleuthError, match=error):
        asked(Sampling(4), **faults)


@pytest.mark.parametrize(("in_flight", "mode"), [("pause", "keep"), ("abort", "abort"), ("finish", "wait")])
def test_a_weight_update_pauses_loads_drops_the_cache_and_resumes(
    kind: Any, doubles: Any, tokens: Tokens, tmp_path: Path, in_flight: Any, mode: str
) -> None:
    async def main() -> Any:
        async with doubles(1) as (server,):
            engine = await kind.engine(
                [server.address], tokens, context=64, transport=DiskTransport(tmp_path), in_flight=in_flight
            ).connect()
            await asyncio.to_thread(engine.publish, {"head": torch.ones(2)}, 5)
            await engine.close()
            return server.posted

    reload = {"method": "reload_weights", "kwargs": {"weights_path": str(tmp_path / "weights-5")}}
    assert asyncio.run(main()) == [
        (f"POST /pause?mode={mode}", None),
        ("POST /collective_rpc", reload),
        ("POST /reset_prefix_cache?reset_running_requests=true", None),
        ("POST /resume", None),
    ]


def test_without_developer_mode_the_remedy_is_named(kind: Any, doubles: Any, tokens: Tokens, tmp_path: Path) -> None:
    async def main() -> None:
        async with doubles(1) as (server,):
            server.administered = False
            engine = await kind.engine([server.address], tokens, context=64).connect()
            try:
                await asyncio.to_thread(engine.load, tmp_path)
            finally:
                await engine.close()

    with pytest.raises(EngineFailure, match="VLLM_SERVER_DEV_MODE=1"):
        asyncio.run(main())


def test_servers_load_the_weights_of_a_model_folder(kind: Any, doubles: Any, tokens: Tokens, tmp_path: Path) -> None:
    async def main() -> tuple[Completion, list[Any]]:
        async with doubles(1) as (server,):
            engine = await kind.engine([server.address], tokens, context=64, in_flight="abort").connect()
            await asyncio.to_thread(engine.load, tmp_path, 3)
            completion = await engine.generate([10], Sampling(2))
            await engine.close()
            return completion, server.posted

    completion, posted = asyncio.run(main())
    assert completion.versions == (3, 3)
    assert posted[0] == ("POST /pause?mode=abort", None)
    assert posted[1][1] == {"method": "reload_weights", "kwargs": {"weights_path": str(tmp_path)}}
    assert tmp_path.exists()


def test_an_adapter_is_sent_alone_and_sampled_with(kind: Any, doubles: Any, tokens: Tokens, tmp_path: Path) -> None:
    adapter, name = LoRA(2, 4.0, "q_proj"), "model.layers.0.self_attn.q_proj.lora_{}.default.weight"
    weights = {name.format("A"): torch.ones(2, 8), name.format("B"): torch.ones(8, 2)}

    async def main() -> Any:
        async with doubles(1) as (server,):
            transport = DiskTransport(tmp_path / "exchange", adapter)
            engine = await kind.engine(
                [server.address], tokens, context=64, transport=transport, adapter=True
            ).connect()
            for version in (1, 1, 2):
                await asyncio.to_thread(engine.publish, weights, version)
            files = sorted(each.name for each in (tmp_path / "exchange" / "weights-2").iterdir())
            await engine.generate([10], Sampling(1))
            await engine.close()
            return server.posted, server.asked, files

    posted, asked, files = asyncio.run(main())
    loads = [body for path, body in posted if path == "POST /v1/load_lora_adapter"]
    assert [Path(body["lora_path"]).name for body in loads] == ["weights-1", "weights-1", "weights-2"]
    assert {"adapter_config.json", "adapter_model.safetensors"} <= set(files)
    assert [body["model"] for body in asked] == [body["lora_name"] for body in loads[:1]]
    assert not list((tmp_path / "exchange").iterdir())
