"""The policy as a function of packs: with its adapter, and as it was before."""

from collections.abc import Callable

import torch
from transformers import PreTrainedModel

from sleuth.model import lora
from sleuth.model.lora import LoRA
from sleuth.model.packing import Pack, concatenate, row
from sleuth.model.policy import HostBuffers, Policy, WithoutAdapter
from sleuth.model.tokens import Tokens

ADAPTER = LoRA(4, 8.0)
Tiny = Callable[..., PreTrainedModel]


def pack() -> Pack:
    rows = [row([5, 6, 7, 8], [0.0, 1.0, 1.0, 0.0]), row([9, 10, 11], [0.0, 0.0, 1.0])]
    return concatenate(rows, [0, 1], torch.device("cpu"))


def test_without_adapter_scores_are_those_before_training(tiny: Tiny, tokens: Tokens) -> None:
    model = tiny()
    lora.attach(model, ADAPTER)
    adapted, plain = Policy(model, tokens, ADAPTER), Policy(tiny(), tokens)
    with torch.no_grad():
        for _, parameter in adapted.parameters():
            parameter.fill_(0.05)
    expected, _ = plain.score(pack(), 1.0)
    found, _ = WithoutAdapter(adapted).score(pack(), 1.0)
    changed, _ = adapted.score(pack(), 1.0)
    assert torch.equal(found, expected)
    assert not found.requires_grad
    assert not torch.allclose(changed, expected, atol=1e-3)
    changed.sum().backward()
    assert all(parameter.grad is not None for _, parameter in adapted.parameters())


def test_states_are_one_vector_a_token(tiny: Tiny, tokens: Tokens) -> None:
    policy = Policy(tiny(), tokens)
    assert policy.states(pack()).shape == (7, policy.model.config.hidden_size)


def test_copies_of_weights_are_copies_and_tied_ones_are_one(tiny: Tiny, tokens: Tokens) -> None:
    policy = Policy(tiny("llama"), tokens)
    copies = policy.weights(HostBuffers())
    assert copies["lm_head.weight"] is copies["model.embed_tokens.weight"]
    live = policy.model.state_dict()
    assert all(torch.equal(copies[name], live[name]) for name in live)
    assert not {each.data_ptr() for each in copies.values()} & {each.data_ptr() for each in live.values()}
    assert policy.weights(None) == {}


def test_a_column_of_temperatures_scores_each_token_at_its_own(tiny: Tiny, tokens: Tokens) -> None:
    """As packs of one temperature do, with the same gradients."""
    policy, cpu = Policy(tiny(), tokens), torch.device("cpu")
    rows = [row([5, 6, 7, 8], [0.0, 1.0, 1.0, 1.0]), row([9, 10, 11], [0.0, 1.0, 1.0])]
    own = (torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64), torch.tensor([2.0, 0.5], dtype=torch.float64))
    mixed = [each.with_columns(temperature=column) for each, column in zip(rows, own, strict=True)]
    scores = {temperature: policy.score(concatenate(rows, [0, 1], cpu), temperature) for temperature in (0.5, 1.0, 2.0)}
    for kind, found in enumerate(policy.score(concatenate(mixed, [0, 1], cpu), 1.0)):
        expected = torch.stack([scores[each][kind][place] for place, each in enumerate(torch.cat(own).tolist())])
        torch.testing.assert_close(found, expected)
        gradients = []
        for each in (found, expected):
            policy.model.zero_grad()
            each.sum().backward(retain_graph=True)
            gradients.append([parameter.grad for _, parameter in policy.parameters()])
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
