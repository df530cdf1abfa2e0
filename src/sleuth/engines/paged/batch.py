"""The tokens of one forward pass.

Suffixes: N packed tokens, B decoding lanes, M tokens to sample.
"""

from dataclasses import dataclass

from torch import Tensor

from sleuth.model.attention import Tiles


@dataclass(frozen=True, slots=True)
class Batch:
    """One token of each decoding lane first, then prefilled segments, packed without padding; all int32.

    `addresses_N` says where a token's key and value go: page * PAGE + place in the page, or -1 for nowhere.
    A lane's token sees the first `lengths_S[slot]` tokens of its slot, itself included (its key is written by then).
    `last_M` names the packed tokens whose successor is sampled; None where every lane's is, and nothing is prefilled.
    """

    ids_N: Tensor
    positions_N: Tensor
    addresses_N: Tensor
    slots_B: Tensor
    tiles: Tiles | None = None
    last_M: Tensor | None = None
