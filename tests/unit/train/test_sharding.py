"""Shares of a batch: every row once, nearly as many tokens for each rank, and as many packs."""

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from sleuth.model.kernel_patch import disable_split_k, install
from sleuth.model.packing import Pack, Row, concatenate, row
from sleuth.model.policy import Policy
from sleuth.model.recompute import recompute_layers
from sleuth.model.tokens import Tokens
from sleuth.train.optimiser import Optimiser
from sleuth.train.ranks import ALONE, Alone, Item
from sleuth.train.sharding import assign_rows, rank_packs, score_rows, shard, shard_policy

CPU = torch.device("cpu")


class Board:
    """Where threads that play ranks lay what they bring, until all have."""

    def __init__(self, world: int) -> None:
        self.brought: list[list[Any]] = [[] for _ in range(world)]
        self.ready = threading.Barrier(world)


@dataclass(frozen=True)
class Among(Alone):
    """One of several ranks, each of them a thread."""

    board: Board = field(default_factory=lambda: Board(1))

    def gather(self, mine: Sequence[Item], what: str) -> list[list[Item]]:
        self.board.brought[self.rank] = list(mine)
        self.board.ready.wait(10)
        return [list(theirs) for theirs in self.board.brought]


def made(lengths: Sequence[int]) -> list[Row]:
    """Rows of which all tokens but the first are scored, each with its number."""
    return [
        row([number] * length, [0.0, *[1.0] * (length - 1)], number=[float(number)] * (length - 1))
        for number, length in enumerate(lengths)
    ]


def lengths(seed: int) -> list[int]:
    dice = random.Random(seed)
    return [dice.randrange(2, 40) for _ in range(dice.randrange(1, 20))]


@pytest.mark.parametrize("world", [1, 2, 3, 8])
@pytest.mark.parametrize("seed", range(4))
def test_every_row_is_of_one_rank_and_none_has_much_more(world: int, seed: int) -> None:
    known = lengths(seed)
    given = assign_rows(known, world)
    assert len(given) == world
    assert sorted(number for numbers in given for number in numbers) == list(range(len(known)))
    tokens = [sum(known[number] for number in numbers) for numbers in given]
    assert max(tokens) - min(tokens) <= max(known)


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_ranks_make_as_many_packs_and_idle_ones_hold_nothing(world: int, seed: int) -> None:
    rows = made(lengths(seed))
    every = [list(rank_packs(rows, 30, CPU, Among(rank, world))) for rank in range(world)]
    assert len({len(found) for found in every}) == 1
    busy = [packed for found in every for packed in found if packed.rows]
    assert sorted(number for packed in busy for number in packed.rows) == list(range(len(rows)))
    for packed in (packed for found in every for packed in found if not packed.rows):
        assert (len(packed.before_T), len(packed.columns["number"]), len(packed.ids_N) > 0) == (0, 0, True)


def numbers(packed: Pack) -> torch.Tensor:
    return packed.columns["number"]


@pytest.mark.parametrize("tokens", [1, 30, 1000])
def test_what_was_scored_comes_back_in_the_order_of_the_rows(tokens: int) -> None:
    rows = made(lengths(1))
    found = score_rows(rows, tokens, CPU, ALONE, numbers)
    assert [each.tolist() for each in found] == [row.columns["number"].tolist() for row in rows]
    assert not any(each.requires_grad for each in found)


def test_ranks_score_between_them_what_one_scores_alone() -> None:
    rows, board = made([5, 9, 4, 30, 2]), Board(2)
    alone = [each.tolist() for each in score_rows(rows, 20, CPU, ALONE, numbers)]

    def by(rank: int) -> list[list[float]]:
        return [each.tolist() for each in score_rows(rows, 20, CPU, Among(rank, 2, board), numbers)]

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(by, range(2))) == [alone, alone]
    assert all(board.brought)


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


@pytest.mark.parametrize("world", [1, 2])
def test_whole_trajectories_share_a_pack_on_demand(world: int) -> None:
    rows = [replace(each, trajectory=number // 3) for number, each in enumerate(made([9, 4, 30, 5, 6, 7, 20, 2, 2]))]
    every = [list(rank_packs(rows, 30, CPU, Among(rank, world), whole=True)) for rank in range(world)]
    busy = [packed.rows for found in every for packed in found if packed.rows]
    assert sorted(number for numbers in busy for number in numbers) == list(range(9))
    for numbers in busy:
        assert {number // 3 * 3 + place for number in numbers for place in range(3)} == set(numbers)
    apart = [packed.rows for packed in rank_packs(rows, 30, CPU, ALONE)]
    assert [sum(len(rows[number].ids_L) for number in numbers) <= 30 for numbers in apart] == [True] * len(apart)
