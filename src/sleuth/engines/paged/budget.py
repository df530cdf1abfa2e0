"""How many pages the engine may have: a share of the device's memory, fixed at the start."""

import os

import torch
from transformers import PreTrainedModel

from sleuth.engines.paged.cache import Shape
from sleuth.engines.paged.pages import PAGE
from sleuth.errors import ConfigError

GIB = 2**30


def pages_for(model: PreTrainedModel, *, slots: int, context: int, share: float) -> int:
    """As many pages as the share of memory holds, and no more than all slots could fill."""
    parameter = next(model.parameters())
    shape = Shape.of(model.config, parameter.dtype)
    sequence = -(-context // PAGE)
    total, free = _memory(parameter.device)
    budget = int(share * total)
    pages = min(budget // shape.page_bytes, slots * sequence)
    if pages < sequence:
        raise ConfigError(
            f"engine.memory = {share} of {total / GIB:.1f} GiB holds keys and values of {pages * PAGE} tokens, "
            f"expected room for one context of {context}: raise it, or lower agent.context_tokens"
        )
    if pages * shape.page_bytes > free:
        raise ConfigError(
            f"engine.memory = {share} asks for {pages * shape.page_bytes / GIB:.1f} GiB of keys and values, and "
            f"{free / GIB:.1f} GiB are free: lower it, or engine.slots, or agent.context_tokens"
        )
    return pages


def _memory(device: torch.device) -> tuple[int, int]:
    """Bytes of the device in all, and those that are free."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return total, free
    page = os.sysconf("SC_PAGE_SIZE")
    return page * os.sysconf("SC_PHYS_PAGES"), page * os.sysconf("SC_AVPHYS_PAGES")
