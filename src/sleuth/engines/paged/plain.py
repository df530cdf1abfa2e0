"""The engine's computations in plain PyTorch: what runs on a CPU, and what the Triton kernels are held against."""

import torch
from torch import Tensor

from sleuth.engines.paged.pages import PAGE
from sleuth.engines.paged.sampler import sample as draw


def inputs(
    slots_B: Tensor,
    tokens_S: Tensor,
    lengths_S: Tensor,
    table_SX: Tensor,
    ids_N: Tensor,
    positions_N: Tensor,
    addresses_N: Tensor,
) -> None:
    """Each lane's next token, its position and where its key goes; its length counts the token from now on.

    Lanes of the last slot are nobody's: they go nowhere and do not grow.
    """
    lanes = len(slots_B)
    slots = slots_B.long()
    nobody_B = slots == len(lengths_S) - 1
    position_B = lengths_S[slots].masked_fill(nobody_B, 0)
    address_B = table_SX[slots, position_B // PAGE] * PAGE + position_B % PAGE
    ids_N[:lanes] = tokens_S[slots]
    positions_N[:lanes] = position_B
    addresses_N[:lanes] = address_B.masked_fill(nobody_B, -1)
    lengths_S[slots] = position_B + 1


def sample(
    logits_MV: Tensor,
    settings_S4: Tensor,
    slots_M: Tensor,
    uniform_M: Tensor,
    tokens_S: Tensor,
    out_M: Tensor,
    logprob_M: Tensor,
) -> None:
    """Draws a token for each row and writes it, with its logprob, for the host and for the slot's next step."""
    slots = slots_M.long()
    token_M, drawn_M = draw(logits_MV, settings_S4[slots], uniform_M)
    out_M.copy_(token_M)
    logprob_M.copy_(drawn_M)
    tokens_S[slots] = token_M.to(torch.int32)
