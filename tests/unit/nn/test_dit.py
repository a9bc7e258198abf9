"""The transformer: its size by hand, what is zero at the start, and one function by two ways."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from robopo.errors import ConfigError
from robopo.nn.dit import DiT, DiTConfig

SMALL = DiTConfig(width=8, depth=2, heads=2, mlp_ratio=2, time_dim=4)


def build(config: DiTConfig = SMALL) -> DiT:
    torch.manual_seed(0)
    return DiT(config, horizon=4, action_dim=3, cond_dim=5)


def awake(net: DiT) -> DiT:
    """Weights that are zero by construction get values: otherwise every test would compare zeros."""
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return net


def test_size_by_hand():
    time = (4 * 8 + 8) + (8 * 4 + 4) + (4 * 8 + 8)
    block = (8 * 24 + 24) + (8 * 8 + 8) + (8 * 16 + 16) + (16 * 8 + 8) + (8 * 48 + 48)
    ends = (5 * 8 + 8) + (3 * 8 + 8) + (8 * 16 + 16) + (8 * 3 + 3)
    assert sum(p.numel() for p in build().parameters()) == time + 2 * block + ends


def test_a_new_network_answers_zero_and_its_blocks_are_the_identity():
    net = build()
    x, features = torch.randn(2, 4, 3), torch.randn(2, 8)
    assert torch.equal(net(x, torch.tensor([0, 7]), torch.randn(2, 5)), torch.zeros(2, 4, 3))
    tokens = torch.randn(2, 4, 8)
    assert torch.equal(net.blocks[0](tokens, net.blocks[0].modulate(features)), tokens)


def test_gradient_reaches_everything_once_output_and_gates_have_moved():
    net = build(dataclasses.replace(SMALL, state_hidden=(6,)))
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    x, target, cond, t = torch.randn(8, 4, 3), torch.randn(8, 4, 3), torch.randn(8, 5), torch.arange(8)

    def backward() -> None:
        optimiser.zero_grad()
        (net(x, t, cond) - target).square().mean().backward()

    def reached() -> dict[str, bool]:
        return {name: bool(p.grad is not None and p.grad.abs().sum() > 0) for name, p in net.named_parameters()}

    backward()
    # Behind a zero output nothing learns but the output.
    assert {name for name, got in reached().items() if got} == {"output.weight", "output.bias"}
    for _ in range(2):
        optimiser.step()
        backward()
    assert [name for name, got in reached().items() if not got] == []


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("state_hidden", [(), (6, 7)])
@pytest.mark.parametrize("levels", [[9, 5, 0], [1000.0, 437.5, 12.5]])
def test_a_chain_step_is_the_forward_at_that_level(frozen, state_hidden, levels):
    net = awake(build(dataclasses.replace(SMALL, state_hidden=state_hidden))).double().requires_grad_(not frozen)
    x, cond = torch.randn(2, 4, 3).double(), torch.randn(2, 5).double()
    t = torch.tensor(levels)
    context = net.begin_chain(cond, t)
    outputs = [net(x, level.expand(2), cond) for level in t]
    for k, expected in enumerate(outputs):
        torch.testing.assert_close(net.chain_step(x, context, k), expected, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(outputs[0], outputs[1], atol=1e-3)


def test_chains_see_changed_weights():
    net = awake(build()).requires_grad_(False)
    x, cond, t = torch.randn(1, 4, 3), torch.randn(1, 5), torch.tensor([3])
    before = net.chain_step(x, net.begin_chain(cond, t), 0)
    awake(net)
    after = net.chain_step(x, net.begin_chain(cond, t), 0)
    assert not torch.allclose(before, after, atol=1e-3)
    torch.testing.assert_close(after, net(x, t, cond), rtol=1e-4, atol=1e-5)


def test_rows_see_each_other_and_know_their_place():
    net = awake(build())
    x, cond, t = torch.randn(1, 4, 3), torch.randn(1, 5), torch.tensor([3])
    y = net(x, t, cond)
    changed = x.clone()
    changed[:, 3] += 1.0
    assert not torch.allclose(net(changed, t, cond)[:, 0], y[:, 0], atol=1e-4)
    # Without positions, swapping rows would only swap the answers.
    order = torch.tensor([1, 0, 2, 3])
    assert not torch.allclose(net(x[:, order], t, cond), y[:, order], atol=1e-4)


def test_every_head_attends_on_its_own():
    # The same weights with one head give another function.
    net, single = awake(build()), build(dataclasses.replace(SMALL, heads=1))
    single.load_state_dict(net.state_dict())
    x, cond, t = torch.randn(1, 4, 3), torch.randn(1, 5), torch.tensor([3])
    assert not torch.allclose(net(x, t, cond), single(x, t, cond), atol=1e-5)


def test_attention_is_the_softmax_of_scaled_products():
    block = awake(build(dataclasses.replace(SMALL, heads=1))).blocks[0]
    h = torch.randn(2, 4, 8)
    query, key, value = nn.functional.linear(h, block.qkv.weight, block.qkv.bias).chunk(3, dim=-1)
    weight = torch.softmax(query @ key.transpose(1, 2) / 8**0.5, dim=-1)
    torch.testing.assert_close(block._attend(h), block.merge(weight @ value), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "bad", [{"width": 6, "heads": 4}, {"width": 7}, {"depth": 0}, {"mlp_ratio": 0}, {"time_dim": 5}, {"heads": 0}]
)
def test_bad_sizes_are_refused(bad):
    with pytest.raises(ConfigError, match=list(bad)[-1]):
        DiTConfig(**bad)
