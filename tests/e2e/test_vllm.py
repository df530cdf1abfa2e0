"""Real vLLM servers: repeated weight updates, and the loss of one of two servers."""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from sleuth.engines.base import Completion, Sampling
from sleuth.engines.servers.process import ServerProcess, start
from sleuth.engines.servers.weights import DiskTransport, describe_weights
from sleuth.engines.vllm.dialect import Vllm
from sleuth.engines.vllm.engine import VllmEngine
from sleuth.engines.vllm.weight_sync import NcclTransport, group_info, ipc_update
from sleuth.model.tokens import Tokens

pytestmark = [pytest.mark.e2e, pytest.mark.vllm]
WIDE = {"head_dim": 32, "attention": "eager"}
EPISODES, TURNS, LENGTH = 200, 2, 12
NEAR = 1e-3
# Attention by Triton would multiply numbers of 32 bits as TF32, which puts logprobs .05 apart.
EXACT = {"HF_HUB_OFFLINE": "1", "TRITON_INTERPRET": "0", "TRITON_F32_DEFAULT": "ieee"}


def started(folder: Path, name: str) -> ServerProcess:
    return start(
        Vllm(),
        [os.environ["SLEUTH_VLLM"], "serve"],
        folder,
        folder / f"{name}.log",
        context=512,
        slots=16,
        dtype="float32",
        options=["--enforce-eager", "--gpu-memory-utilization", "0.05", "--kv-cache-memory-bytes", str(2**30)],
        environment=EXACT,
    )


def killed(server: ServerProcess) -> None:
    """Ends the processes of a server as a machine that fails does; the ones that guard them stay."""
    process = server.supervisor.pid
    for _ in ("supervisor", "server"):
        found = subprocess.run(["pgrep", "-P", str(process)], capture_output=True, text=True, check=True)
        process = int(found.stdout)
    os.killpg(process, signal.SIGKILL)


def saved(folder: Path, model: PreTrainedModel, tokens: Tokens) -> Path:
    """The model with its tokenizer, without a token that ends its texts."""
    tokenizer = deepcopy(tokens.tokenizer)
    model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token = None
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@torch.no_grad()
def logprobs(model: PreTrainedModel, prompt: Sequence[int], ids: Sequence[int]) -> list[float]:
    logits = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
    found: list[float] = torch.log_softmax(logits, -1)[range(len(ids)), list(ids)].tolist()
    return found


@torch.no_grad()
def stepped(model: PreTrainedModel, step: int) -> PreTrainedModel:
    """The model after a step that moves every weight."""
    new, dice = deepcopy(model), torch.Generator().manual_seed(step)
    for parameter in new.parameters():
        parameter.add_(0.1 * torch.randn(parameter.shape, generator=dice))
    return new


def test_weights_pushed_step_after_step_sample_what_comes_after_them(
    tmp_path: Path, tiny: Callable[..., PreTrainedModel], tokens: Tokens
) -> None:
    models = [tiny(**WIDE)]
    folder, prompt = saved(tmp_path / "model", models[0], tokens), tokens.encode("Who wrote the book?")

    async def main() -> list[Completion]:
        with started(folder, "one") as server:
            engine = await VllmEngine(
                [server.address], tokens, context=512, transport=DiskTransport(tmp_path / "weights")
            ).connect()
            completions, heard = [], asyncio.Event()
            for step in (1, 2, 3):
                heard.clear()
                sampling = Sampling(300, seed=step)
                call = asyncio.create_task(engine.generate(prompt, sampling, None, lambda _ids: heard.set()))
                await heard.wait()
                models.append(stepped(models[-1], step))
                engine.publish(models[-1].state_dict(), step)
                completions.append(await call)
            await engine.close()
            return completions

    for step, completion in enumerate(asyncio.run(main()), start=1):
        before = completion.versions.count(step - 1)
        assert 1 <= before < 300
        assert completion.versions == (step - 1,) * before + (step,) * (300 - before)
        old, new = (logprobs(models[version], prompt, completion.ids) for version in (step - 1, step))
        assert completion.logprobs[:before] == pytest.approx(old[:before], abs=NEAR)
        assert completion.logprobs[before:] == pytest.approx(new[before:], abs=NEAR)
        assert completion.logprobs[before:] != pytest.approx(old[before:], abs=1e-1)


def test_all_episodes_finish_once_when_one_of_two_servers_is_killed(
    tmp_path: Path, tiny: Callable[..., PreTrainedModel], tokens: Tokens
) -> None:
    model = tiny(**WIDE)
    folder, finished = saved(tmp_path / "model", model, tokens), list[tuple[int, list[int], list[float]]]()
    prompts = [tokens.encode(f"Who wrote the book {number}?") for number in range(EPISODES)]

    async def episode(engine: VllmEngine, number: int, quarter: asyncio.Event) -> None:
        ids, sampled = list(prompts[number]), list[float]()
        with engine.session(number) as session:
            for turn in range(TURNS):
                completion = await engine.generate(ids, Sampling(LENGTH, seed=turn), session)
                ids, sampled = [*ids, *completion.ids], [*sampled, *completion.logprobs]
        finished.append((number, ids, sampled))
        if len(finished) >= EPISODES // 4:
            quarter.set()

    async def main() -> None:
        with started(folder, "one") as one, started(folder, "two") as two:
            both = [one, two]
            engine = await VllmEngine([server.address for server in both], tokens, context=512, slots=16).connect()
            quarter = asyncio.Event()
            episodes = [asyncio.create_task(episode(engine, number, quarter)) for number in range(EPISODES)]
            await quarter.wait()
            killed(one)
            await asyncio.gather(*episodes)
            await engine.close()
            assert list(engine.lost) == [one.address]

    asyncio.run(main())
    assert sorted(number for number, _, _ in finished) == list(range(EPISODES))
    for number, ids, sampled in finished:
        assert len(ids) == len(prompts[number]) + TURNS * LENGTH
        expected = logprobs(model, prompts[number], ids[len(prompts[number]) :])
        assert sampled == pytest.approx(expected, abs=NEAR)


# In vLLM's environment: the classes into which its servers parse the messages of a weight transfer.
PARSE = """
import json, sys
from vllm.config.weight_transfer import WeightTransferConfig
from vllm.distributed.weight_transfer.ipc_engine import IPCWeightTransferInitInfo, IPCWeightTransferUpdateInfo
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferInitInfo, NCCLWeightTransferUpdateInfo
given = json.load(sys.stdin)
init = NCCLWeightTransferInitInfo(**given["group"])
update = NCCLWeightTransferUpdateInfo(**given["update"])
IPCWeightTransferInitInfo()
handles = IPCWeightTransferUpdateInfo(**given["ipc"]).ipc_handles
WeightTransferConfig(**given["config"])
described = [update.names, update.dtype_names, update.shapes]
print(json.dumps([list(init.nccl_unique_id_bytes), init.packed, *described, handles]))
"""


def test_messages_of_weight_transfers_are_parsed_by_vllm() -> None:
    weights = {"head": torch.ones(2, 3), "norm": torch.ones(3).bfloat16()}
    handles = [{"GPU": (1,)}, {"GPU": (2,)}]
    given = {
        "group": group_info(bytes(range(128)), 3),
        "update": describe_weights(weights, "dtype_names"),
        "ipc": ipc_update(weights, handles)["update_info"],
        "config": json.loads(NcclTransport.options[1]),
    }
    ended = subprocess.run(
        [str(Path(os.environ["SLEUTH_VLLM"]).with_name("python")), "-c", PARSE],
        input=json.dumps(given),
        env=os.environ | EXACT | {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    described = [["head", "norm"], ["float32", "bfloat16"], [[2, 3], [3]]]
    expected = [list(range(128)), False, *described, [{"GPU": [1]}, {"GPU": [2]}]]
    assert json.loads(ended.stdout.splitlines()[-1]) == expected
