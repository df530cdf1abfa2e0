"""Where keys and values are kept: one slot a sequence, each as long as the context.

A slot remembers the tokens whose keys and values it holds, so that the next turn of an episode, or any other call
that begins alike, pays only for its new tokens.

Suffixes: S slots, H key heads, C context, D head width, N packed tokens, R rows, L new tokens of the longest row.
"""

from collections.abc import Sequence
from itertools import takewhile

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import PretrainedConfig

from sleuth.engines.base import Seat


class Pool:
    """Slots with their tensors, tokens and owners; allocated once."""

    def __init__(
        self, config: PretrainedConfig, slots: int, context: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        heads = config.num_key_value_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (slots, heads, context, width)
        self.context = context
        self.keys_SHCD = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(config.num_hidden_layers)]
        self.values_SHCD = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(config.num_hidden_layers)]
        self._slots = slots
        self.clear()

    def clear(self) -> None:
        """The state after a start: every slot idle and empty.

        Zeros too: what is not a number would spoil even those that do not look at it.
        """
        for states_SHCD in (*self.keys_SHCD, *self.values_SHCD):
            states_SHCD.zero_()
        self.held: list[list[int]] = [[] for _ in range(self._slots)]
        self._idle = list(range(self._slots))
        self._owners: dict[Seat, int] = {}

    def forget(self) -> None:
        """Drops every cached token, since other weights made it; idle slots are in the order of a start again."""
        self.held = [[] for _ in range(self._slots)]
        self._idle.sort()

    def take(self, ids: Sequence[int], seat: Seat | None) -> tuple[int, int] | None:
        """A slot for these tokens and how many of them it already holds; None when all are busy.

        The caller's own slot first, else the idle one that shares the longest beginning, else the one idle longest;
        slots that belong to a caller who will come back are taken last.
        """
        if not self._idle:
            return None
        owned = self._owners.get(seat) if seat is not None else None
        slot = owned if owned in self._idle else self._best(ids)
        assert slot is not None  # noqa: S101  some slot is idle
        self._idle.remove(slot)
        self._owners = {owner: theirs for owner, theirs in self._owners.items() if theirs != slot}
        if seat is not None:
            self._owners[seat] = slot
        # At least one token must be computed to have logits to sample from.
        shared = min(_shared(self.held[slot], ids), len(ids) - 1)
        del self.held[slot][shared:]
        return slot, shared

    def give_back(self, slot: int) -> None:
        """The slot is idle; its tokens stay until someone else needs the room."""
        self._idle.append(slot)

    def leave(self, seat: Seat) -> None:
        """The caller will not come back."""
        self._owners.pop(seat, None)

    def _best(self, ids: Sequence[int]) -> int:
        awaited = set(self._owners.values())
        free = [slot for slot in self._idle if slot not in awaited] or self._idle
        return max(free, key=lambda slot: (_shared(self.held[slot], ids), -free.index(slot)))


def _shared(held: Sequence[int], ids: Sequence[int]) -> int:
    """How many tokens two sequences begin with in common."""
    if held == list(ids[: len(held)]):
        return len(held)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(held, ids, strict=False)))


class Cached:
    """New tokens of several rows, each seeing what its slot holds and the new tokens up to itself."""

    def __init__(self, pool: Pool, slots: Sequence[int], starts: Sequence[int], lengths: Sequence[int]) -> None:
        device = pool.keys_SHCD[0].device
        lengths_R = torch.tensor(lengths, device=device)
        starts_R = torch.tensor(starts, device=device)
        self._pool = pool
        self._slots_R = torch.tensor(slots, device=device)
        self._adjacent = list(slots) == list(range(slots[0], slots[0] + len(slots)))
        self._rows, self._longest = len(slots), max(lengths)
        self._seen = max(start + length for start, length in zip(starts, lengths, strict=True))
        row_N = torch.repeat_interleave(torch.arange(self._rows, device=device), lengths_R)
        place_N = torch.arange(len(row_N), device=device) - (torch.cumsum(lengths_R, 0) - lengths_R)[row_N]
        self._slot_N = self._slots_R[row_N]
        self._flat_N = row_N * self._longest + place_N
        self.positions_N = starts_R[row_N] + place_N
        query_RL = starts_R[:, None] + torch.arange(self._longest, device=device)
        self._mask_R1LC = (torch.arange(self._seen, device=device) <= query_RL[:, :, None])[:, None]
        self.last_R = torch.cumsum(lengths_R, 0) - 1

    def attend(self, layer: int, query_NHD: Tensor, key_NHD: Tensor, value_NHD: Tensor, scale: float) -> Tensor:
        keys_SHCD, values_SHCD = self._pool.keys_SHCD[layer], self._pool.values_SHCD[layer]
        keys_SHCD[self._slot_N, :, self.positions_N] = key_NHD
        values_SHCD[self._slot_N, :, self.positions_N] = value_NHD
        out_RHLD = scaled_dot_product_attention(
            self._rows_of(query_NHD),
            self._seen_of(keys_SHCD),
            self._seen_of(values_SHCD),
            attn_mask=self._mask_R1LC,
            scale=scale,
            enable_gqa=query_NHD.shape[1] != key_NHD.shape[1],
        )
        return out_RHLD.transpose(1, 2).flatten(0, 1).index_select(0, self._flat_N)

    def _rows_of(self, query_NHD: Tensor) -> Tensor:
        padded = query_NHD.new_zeros(self._rows * self._longest, *query_NHD.shape[1:])
        padded.index_copy_(0, self._flat_N, query_NHD)
        return padded.view(self._rows, self._longest, *query_NHD.shape[1:]).transpose(1, 2)

    def _seen_of(self, states_SHCD: Tensor) -> Tensor:
        seen = states_SHCD[:, :, : self._seen]
        if self._adjacent:
            first = int(self._slots_R[0])
            return seen[first : first + self._rows]
        return seen.index_select(0, self._slots_R)
