"""Where keys and values are kept: pages of a few tokens, and a table that says which pages a slot reads.

Suffixes: L layers, P pages, K key heads, C tokens of a page, D head width, S slots, X pages of the longest sequence.
"""

import torch
from torch import Tensor

from sleuth.engines.paged.pages import PAGE
from sleuth.model.attention import AttentionShape


class Cache:
    """The tensors: allocated once, never moved, so that captured graphs may read them.

    The last slot is nobody's: lanes that only fill up a batch point there.
    """

    def __init__(self, shape: AttentionShape, pages: int, slots: int, context: int, device: torch.device) -> None:
        size = (shape.layers, 2, pages, shape.kv_heads, PAGE, shape.head_dim)
        states_L2PKCD = torch.zeros(size, dtype=shape.dtype, device=device)
        self.keys: list[Tensor] = [layer[0] for layer in states_L2PKCD]
        self.values: list[Tensor] = [layer[1] for layer in states_L2PKCD]
        self.table_SX = torch.zeros(slots + 1, -(-context // PAGE), dtype=torch.int32, device=device)
        self.lengths_S = torch.zeros(slots + 1, dtype=torch.int32, device=device)
        self._states = states_L2PKCD

    @property
    def nobody(self) -> int:
        return len(self.lengths_S) - 1

    def clear(self) -> None:
        """Zeros everywhere: what is not a number would spoil even those that do not look at it."""
        self._states.zero_()
        self.lengths_S.zero_()
