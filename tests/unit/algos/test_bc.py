"""Behaviour cloning: schedule, clipping, averaging, learning, exact continuation."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import Tensor, nn

from robopo.algos.bc import BC, BCConfig
from robopo.errors import ConfigError
from robopo.nn.mlp import DiffusionMLPConfig
from robopo.policies.base import PolicySpec
from robopo.policies.build import build_chunk_policy
from robopo.policies.chunk_policy import ChunkPolicy
from robopo.policies.config import ChunkPolicyConfig
from robopo.policies.normalizer import MinMaxNormalizer
from robopo.processes.base import DiffusionConfig, ProcessKind
from robopo.train.tree import decode_tree, encode_tree

SPEC = PolicySpec(obs={"state": 1}, action_dim=1, action_names=("x",), horizon=2, action_steps=2)
CONFIG = BCConfig(lr=1e-2, min_lr=1e-3, warmup_steps=4, steps=40, batch_size=32)


def make_policy() -> ChunkPolicy:
    torch.manual_seed(0)
    bounds = {"state": (-torch.ones(1), torch.ones(1)), "action": (-torch.ones(1), torch.ones(1))}
    return build_chunk_policy(
        SPEC,
        DiffusionMLPConfig(hidden=(32, 32, 32)),
        DiffusionConfig(kind=ProcessKind.DDIM, num_train_steps=20, num_steps=5),
        ChunkPolicyConfig(),
        MinMaxNormalizer(bounds),
    )


def windows(seed: int) -> tuple[dict[str, Tensor], Tensor]:
    """Demonstrations of an expert that moves to half the state, twice."""
    state = 2.0 * torch.rand(32, 1, 1, generator=torch.Generator().manual_seed(seed)) - 1.0
    return {"state": state}, (0.5 * state).expand(-1, 2, -1).contiguous()


class Slope(nn.Module):
    """A stand-in policy whose loss is g * weight: its gradient is g."""

    def __init__(self, gradient: float) -> None:
        super().__init__()
        self.net = nn.Linear(1, 1, bias=False)
        self.gradient = gradient

    def bc_loss(self, obs, action, generator, pad_mask=None):
        return self.gradient * self.net.weight.sum()


def test_learning_rate_by_hand():
    bc = BC(make_policy(), BCConfig(lr=1.0, min_lr=0.2, warmup_steps=4, steps=12))
    rates = []
    for bc.step in range(14):
        rates.append(bc.learning_rate)
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[8] == pytest.approx(0.6)  # half of the cosine
    assert rates[12:] == [0.2, 0.2]
    assert all(a >= b for a, b in itertools.pairwise(rates[4:]))


def test_one_step_reports_and_clips():
    policy = Slope(3.0)
    metrics = BC(policy, BCConfig(grad_clip=1.0)).update({}, torch.zeros(0), None)
    assert metrics.grad_norm.item() == pytest.approx(3.0)
    assert policy.net.weight.grad.item() == pytest.approx(1.0, abs=1e-5)
    assert metrics.lr.item() == pytest.approx(BCConfig().min_lr)
    assert not any(value.requires_grad for value in metrics)
    BC(policy, BCConfig(grad_clip=None)).update({}, torch.zeros(0), None)
    assert policy.net.weight.grad.item() == pytest.approx(3.0)


def test_finish_puts_the_average_into_the_policy():
    policy = make_policy()
    bc = BC(policy, CONFIG)
    start = policy.net.body.output.weight.detach().clone()
    obs, action = windows(0)
    bc.update(obs, action, torch.Generator().manual_seed(0))
    raw = policy.net.body.output.weight.detach().clone()
    bc.finish()
    torch.testing.assert_close(policy.net.body.output.weight.detach(), 0.1 * start + 0.9 * raw)  # first decay is 1/10


def test_cloning_learns_the_expert():
    policy = make_policy()
    bc = BC(policy, BCConfig(lr=3e-3, min_lr=1e-4, warmup_steps=10, steps=400, ema_decay=0.98))
    generator = torch.Generator().manual_seed(0)
    for n in range(400):
        bc.update(*windows(n), generator)
    bc.finish()
    obs, action = windows(1000)
    assert (policy.act(obs, generator=generator) - action).abs().mean() < 0.1


def test_two_and_two_steps_are_four_bit_for_bit():
    policy, generator = make_policy(), torch.Generator().manual_seed(0)
    bc = BC(policy, CONFIG)
    for n in range(2):
        bc.update(*windows(n), generator)
    saved = decode_tree(*encode_tree({"bc": bc.state_dict(), "policy": dict(policy.state_dict())}))
    other, other_generator = make_policy(), torch.Generator()
    other_generator.set_state(generator.get_state())
    other.load_state_dict(saved["policy"])
    resumed = BC(other, CONFIG)
    resumed.load_state_dict(saved["bc"])
    for n in range(2, 4):
        bc.update(*windows(n), generator)
        resumed.update(*windows(n), other_generator)
    bc.finish()
    resumed.finish()
    assert resumed.step == bc.step == 4
    for a, b in zip(policy.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_inputs_are_left_alone():
    obs, action = windows(0)
    before = copy.deepcopy((obs, action))
    BC(make_policy(), CONFIG).update(obs, action, None, torch.zeros(32, 2, dtype=torch.bool))
    assert torch.equal(obs["state"], before[0]["state"])
    assert torch.equal(action, before[1])


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"min_lr": 1e-3}, "min_lr=0.001"),
        ({"lr": 0.0, "min_lr": 0.0}, "lr=0"),
        ({"steps": 10}, "steps=10, warmup_steps=500"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"ema_decay": 1.0}, "ema_decay=1"),
        ({"grad_clip": 0.0}, "grad_clip=0"),
        ({"weight_decay": -1.0}, "weight_decay=-1"),
    ],
)
def test_bad_configurations_are_refused(bad, message):
    with pytest.raises(ConfigError, match=message):
        BCConfig(**bad)
