"""Weights that are split and gathered compute what whole ones do: here by one process, in the dtypes of a GPU too."""

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from sleuth.model.kernel_patch import disable_split_k, install
from sleuth.model.packing import Pack, concatenate, row
from sleuth.model.policy import Policy
from sleuth.model.recompute import recompute_layers
from sleuth.model.tokens import Tokens
from sleuth.train.optimiser import Optimiser
from sleuth.train.ranks import Alone
from sleuth.train.sharding import shard, shard_policy

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
DTYPES = {"cpu": torch.float32, "cuda": torch.bfloat16}
Tiny = Callable[..., PreTrainedModel]


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A group of one process."""
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    meeting = tmp_path_factory.mktemp("group") / "meeting"
    dist.init_process_group(backend, init_method=meeting.as_uri(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def on(tiny: Tiny, tokens: Tokens) -> Callable[..., Policy]:
    """Makes the small policy of a family on a device, in the dtype it is trained in there."""

    def make(device: str, family: str) -> Policy:
        disable_split_k()
        model = tiny(family)
        nn.Module.to(model, device, DTYPES[device])
        install(model)
        recompute_layers(model, 0.5)
        return Policy(model, tokens)

    return make


def packed(device: str, rows: int) -> Pack:
    """Rows of tokens, all but the first of each scored; without rows a pack that is idle."""
    every = [row(range(3, 20 + number), [0.0] + [float(rows > 0)] * (16 + number)) for number in range(max(1, rows))]
    return concatenate(every, range(len(every)), torch.device(device))


def optimiser(policy: Policy) -> Optimiser:
    return Optimiser(policy.parameters(), learning_rate=1e-3, weight_decay=0.0)


@pytest.mark.parametrize("device", DEVICES)
def test_split_policy_scores_and_learns_as_the_whole_one(device: str, family: str, on: Callable[..., Policy]) -> None:
    whole, parted = on(device, family), on(device, family)
    parted = Policy(parted.model, parted.tokens, sharded=shard(parted.score, [parted.model], Alone()))
    assert all(isinstance(each, DTensor) and each.dtype == torch.float32 for _, each in parted.parameters())
    norms = []
    for policy in (whole, parted):
        stepping = optimiser(policy)
        for rows in (3, 1, 0):
            logprob_T, entropy_T = policy.score(packed(device, rows), 1.3)
            (-logprob_T.sum() - 0.1 * entropy_T.sum()).backward()
        norms.append(stepping.step(1e-3, 1.0))
    assert norms[1] == pytest.approx(norms[0], rel=1e-5 if device == "cpu" else 1e-3)
    assert norms[0] > 1
    with torch.no_grad():
        before_T, after_T = (policy.score(packed(device, 3), 1.3)[0] for policy in (whole, parted))
    torch.testing.assert_close(after_T, before_T, rtol=0, atol=1e-5 if device == "cpu" else 2e-2)
    assert all(isinstance(each, DTensor) for _, each in parted.parameters())


@pytest.mark.parametrize("device", DEVICES)
def test_split_policy_that_is_frozen_keeps_its_dtype(device: str, on: Callable[..., Policy]) -> None:
    whole, parted = (on(device, "qwen2") for _ in range(2))
    parted.model.requires_grad_(False)
    parted = Policy(parted.model, parted.tokens, sharded=shard(parted.score, [parted.model], Alone()))
    with torch.no_grad():
        for pack in (packed(device, 2), packed(device, 0)):
            for expected, found in zip(whole.score(pack, 1.0), parted.score(pack, 1.0), strict=True):
                assert torch.equal(expected, found)
    assert {each.dtype for each in parted.model.parameters()} == {DTYPES[device]}
    assert parted.size == whole.size


def test_one_process_keeps_the_policy_as_it_is(on: Callable[..., Policy]) -> None:
    policy = on("cpu", "llama")
    assert shard_policy(policy, Alone()) is policy
