"""Which rows of a batch a rank computes, in which packs.

Every rank knows the lengths of all rows, so all of them find the same answer; they compare checksums of the lengths
first. Ranks take part in one another's passes, so all make as many: a rank with fewer packs makes an idle one.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from heapq import heapify, heapreplace
from zlib import crc32

import torch
from torch import Tensor

from sleuth.train.packing import Pack, Row, batches, laid
from sleuth.train.ranks import Ranks


def shares(lengths: Sequence[int], world: int) -> list[list[int]]:
    """The numbers of the rows of each rank, nearly as many tokens each: the longest first, to whoever has least."""
    if world == 1:
        return [list(range(len(lengths)))]
    given: list[list[int]] = [[] for _ in range(world)]
    held = [(0, rank) for rank in range(world)]
    heapify(held)
    for number in sorted(range(len(lengths)), key=lambda number: (-lengths[number], number)):
        tokens, rank = held[0]
        given[rank].append(number)
        heapreplace(held, (tokens + lengths[number], rank))
    return [sorted(numbers) for numbers in given]


def packs(rows: Sequence[Row], tokens: int, device: torch.device, ranks: Ranks) -> Iterator[Pack]:
    """The packs of this rank; an idle one has no scored tokens."""
    lengths = [len(row.ids_L) for row in rows]
    every = [
        [[share[place] for place in batch] for batch in batches([lengths[number] for number in share], tokens)]
        for share in shares(lengths, ranks.world)
    ]
    # Ranks that compute packs of different rows would wait for one another for ever.
    ranks.barrier(f"a batch of {len(rows)} rows, {sum(lengths)} tokens, checksum {crc32(repr(lengths).encode()):08x}")
    for numbers in every[ranks.rank]:
        yield laid(rows, numbers, device)
    if idle := max(map(len, every)) - len(every[ranks.rank]):
        shortest = min(rows, key=lambda row: len(row.ids_L))
        nothing = Row(
            shortest.ids_L, shortest.places_S[:0], {name: column[:0] for name, column in shortest.columns.items()}
        )
        yield from (replace(laid([nothing], [0], device), rows=()) for _ in range(idle))


@torch.no_grad()
def scored(
    rows: Sequence[Row], tokens: int, device: torch.device, ranks: Ranks, score: Callable[[Pack], Tensor]
) -> list[Tensor]:
    """What `score` finds for the scored tokens of each row, on the CPU; every rank gets all of it."""
    mine: list[tuple[int, Tensor]] = []
    for packed in packs(rows, tokens, device, ranks):
        found_T = score(packed).float()
        if packed.rows:
            mine += zip(packed.rows, found_T.split(packed.scored), strict=True)
    # Copies: a part of a tensor travels to other ranks with the whole of it.
    copies = [(number, part.cpu() if part.is_cuda else part.clone()) for number, part in mine]
    found = dict(pair for theirs in ranks.gather(copies, "the logprobs of a batch") for pair in theirs)
    return [found[number] for number in range(len(rows))]
