"""Whether a model computes what engine and trainer rely on, found by computing a little with it.

A token may depend on others by our attention alone, and on its own place by its position alone. Otherwise packed rows
would mix, and a token computed beside others would be another than the same one computed by itself.

Suffixes: N packed tokens, H heads, D head width, W model width, V vocabulary.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedModel

from sleuth.model import head
from sleuth.model.shape import Shape

NEIGHBOURS = (0, 1)
TOKEN = 2
# Of the largest number: sums taken in another order stay far below, another meaning does not.
NEARLY = {torch.float32: 1e-3, torch.bfloat16: 1e-1, torch.float16: 5e-2}


@dataclass(slots=True)
class Blind:
    """A layout in which nobody sees anybody; it keeps what the last token would show to others."""

    shown: dict[int, Tensor] = field(default_factory=dict)

    def attend(self, layer: int, query_NHD: Tensor, key_NHD: Tensor, value_NHD: Tensor, scale: float) -> Tensor:  # noqa: ARG002
        if layer in self.shown or key_NHD.shape != value_NHD.shape:
            raise ValueError(f"layer {layer} attends twice, or to keys and values of different shapes")
        self.shown[layer] = key_NHD[-1]
        return query_NHD.new_zeros(*query_NHD.shape[:2], value_NHD.shape[2])


@torch.no_grad()
def strange(model: PreTrainedModel) -> str | None:
    """Why the model cannot be computed token by token, or None where it can."""
    layers: int = model.config.num_hidden_layers
    try:
        (alone_W, logits_V, shown), (beside_W, _, shown_beside) = _seen(model, ()), _seen(model, NEIGHBOURS)
    # Whatever a forward pass makes of a call it was not made for.
    except Exception as error:
        return f"its forward pass does not take what our attention needs ({type(error).__name__}: {error})"
    if len(shown) != layers:
        return f"{len(shown)} of its {layers} layers attend through the attention interface"
    shape = Shape.of(model.config, alone_W.dtype)
    if others := {tuple(key.shape) for key in shown.values()} - {(shape.key_heads, shape.width)}:
        told = f"{shape.key_heads} heads of {shape.width} numbers"
        return f"its keys are of {others.pop()} heads and numbers, where its config says {told}"
    if not all(_alike(shown[layer], shown_beside[layer]) for layer in shown) or not _alike(alone_W, beside_W):
        return "its tokens see their neighbours, or their place, by other ways than attention and position"
    projection = head.projection(model)
    if not _alike(head.logits(alone_W[None], projection.weight, projection.bias)[0], logits_V):
        return "its logits are not those of one linear layer"
    return None


def _seen(model: PreTrainedModel, before: tuple[int, ...]) -> tuple[Tensor, Tensor, dict[int, Tensor]]:
    """The last state, the logits and the keys of one token at one place, with or without its neighbours."""
    blind, place = Blind(), len(NEIGHBOURS)
    ids = torch.tensor([[*before, TOKEN]], device=model.device)
    positions = torch.arange(place - len(before), place + 1, device=model.device)[None]
    call = {"input_ids": ids, "position_ids": positions, "use_cache": False, "layout": blind}
    hidden_NW = model.base_model(**call).last_hidden_state[0]
    logits_NV = model(**{**call, "layout": Blind()}).logits[0]
    return hidden_NW[-1], logits_NV[-1], blind.shown


def _alike(mine: Tensor, theirs: Tensor) -> bool:
    """Whether two results are equal but for rounding; what is not a number tells nothing."""
    bound = max(NEARLY[mine.dtype], NEARLY[theirs.dtype]) * float(mine.abs().max())
    return not float((mine.float() - theirs.float()).abs().max()) > bound
