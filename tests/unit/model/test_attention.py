"""Packed attention is what the stock model computes for each sequence on its own, gradients too."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from sleuth.model.attention import Packed

Tiny = Callable[..., PreTrainedModel]

# One row, rows all unlike, rows alike, and blocks of rows alike that are padded within.
LENGTHS = ([5], [1], [1, 1, 1], [7, 1, 12, 3], [9, 9], [9, 10, 8, 10, 3, 20, 17, 16])


def sequences(lengths: Sequence[int], vocabulary: int) -> list[Tensor]:
    dice = torch.Generator().manual_seed(sum(lengths))
    return [torch.randint(vocabulary, (length,), generator=dice) for length in lengths]


def packed_hidden(model: PreTrainedModel, rows: Sequence[Tensor]) -> Tensor:
    layout = Packed([len(row) for row in rows], torch.device("cpu"))
    hidden: Tensor = model.base_model(
        input_ids=torch.cat(list(rows))[None], position_ids=layout.positions_N[None], use_cache=False, layout=layout
    ).last_hidden_state[0]
    return hidden


def stock_hidden(model: PreTrainedModel, rows: Sequence[Tensor]) -> Tensor:
    return torch.cat([model.base_model(input_ids=row[None], use_cache=False).last_hidden_state[0] for row in rows])


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_hidden_states(tiny: Tiny, family: str, lengths: list[int]) -> None:
    ours, stock = tiny(family), tiny(family, attention="eager")
    rows = sequences(lengths, ours.config.vocab_size)
    torch.testing.assert_close(packed_hidden(ours, rows), stock_hidden(stock, rows), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_gradients(tiny: Tiny, family: str, lengths: list[int]) -> None:
    """Of every parameter, for a loss that weighs every token differently."""
    ours, stock = tiny(family), tiny(family, attention="eager")
    rows = sequences(lengths, ours.config.vocab_size)
    weights = torch.randn(sum(lengths), ours.config.hidden_size, generator=torch.Generator().manual_seed(0))
    for model, hidden in ((ours, packed_hidden(ours, rows)), (stock, stock_hidden(stock, rows))):
        (hidden * weights).sum().backward()
        assert model.model.layers[0].self_attn.q_proj.weight.grad is not None
    for (name, mine), theirs in zip(ours.named_parameters(), stock.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, atol=1e-3, rtol=1e-4, msg=name)


def test_a_sequence_does_not_see_its_neighbours(tiny: Tiny) -> None:
    model = tiny()
    first, second, third = sequences([6, 4, 5], model.config.vocab_size)
    changed = (second + 1) % model.config.vocab_size
    before, after = packed_hidden(model, [first, second, third]), packed_hidden(model, [first, changed, third])
    torch.testing.assert_close(before[:6], after[:6])
    torch.testing.assert_close(before[10:], after[10:])
    assert not torch.allclose(before[6:10], after[6:10])


def test_positions_begin_anew_with_each_sequence() -> None:
    assert Packed([3, 1, 2], torch.device("cpu")).positions_N.tolist() == [0, 1, 2, 0, 0, 1]


@pytest.mark.parametrize(("setting", "asked"), [("sliding_window", 4), ("softcap", 30.0), ("s_aux", torch.zeros(4))])
def test_what_a_layer_asks_beyond_plain_attention_is_refused(tiny: Tiny, setting: str, asked: object) -> None:
    """A model may carry such a wish in its layers without its settings telling."""
    model = tiny()
    attention = model.model.layers[1].self_attn
    attention.register_forward_pre_hook(
        lambda _module, args, wishes: (args, {**wishes, setting: asked}), with_kwargs=True
    )
    with pytest.raises(ValueError, match=f"asks for {setting}"):
        packed_hidden(model, sequences([3], model.config.vocab_size))
