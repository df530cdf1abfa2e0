"""How many pages the engine may have: a share of the device's memory, fixed at the start."""

from transformers import PreTrainedModel

from sleuth.engines.paged.pages import PAGE
from sleuth.errors import ConfigError
from sleuth.model import memory
from sleuth.model.attention import AttentionShape

GIB = 2**30


def pages_for(model: PreTrainedModel, *, slots: int, context: int, share: float, prefill_tokens: int) -> int:
    """As many pages as the share of memory holds, and no more than all slots could fill."""
    parameter = next(model.parameters())
    each = PAGE * AttentionShape.of(model.config, parameter.dtype).bytes_per_token
    sequence = -(-context // PAGE)
    total, free = memory.device_memory(parameter.device)
    pages = min(int(share * total) // each, slots * sequence)
    if pages < sequence:
        raise ConfigError(
            f"engine.memory = {share} of {total / GIB:.1f} GiB holds keys and values of {pages * PAGE} tokens, "
            f"expected room for one context of {context}: raise it, or lower agent.context_tokens"
        )
    beside = _workspace(model, slots, prefill_tokens)
    if pages * each + beside > free:
        raise ConfigError(
            f"engine.memory = {share} asks for {pages * each / GIB:.1f} GiB of keys and values, beside "
            f"{beside / GIB:.1f} GiB for the largest step, and {free / GIB:.1f} GiB are free: lower it, or "
            "engine.slots, engine.prefill_tokens or agent.context_tokens"
        )
    return pages


def _workspace(model: PreTrainedModel, slots: int, prefill_tokens: int) -> int:
    """Bytes that the largest step needs for a while: states around the widest layer, and logits in fp32."""
    config, dtype = model.config, next(model.parameters()).dtype
    widest: int = 3 * getattr(config, "intermediate_size", 4 * config.hidden_size) + 6 * config.hidden_size
    logits: int = 2 * slots * config.vocab_size * 4
    return (slots + prefill_tokens) * widest * dtype.itemsize + logits
