"""Small policies, buffers and checks that the tests of the off-policy methods share."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from robopo.algos.off_policy import Explorer
from robopo.critics.q_ensemble import QConfig, QEnsemble
from robopo.critics.value import ValueNet
from robopo.data.replay import ReplayBuffer
from robopo.nn.mlp import DiffusionMLPConfig
from robopo.policies.base import PolicySpec
from robopo.policies.build import build_chunk_policy
from robopo.policies.chunk_policy import ChunkPolicy
from robopo.policies.config import ChunkPolicyConfig
from robopo.policies.normalizer import MinMaxNormalizer
from robopo.processes.base import DiffusionConfig
from robopo.processes.flow import FlowConfig
from robopo.rollout.collector import Collector
from robopo.train.metrics import to_scalars
from robopo.types import RolloutBatch
from tests.helpers.point_mass import PointMass

SPEC = PolicySpec(
    obs={"state": 2, "environment_state": 2},
    action_dim=2,
    action_names=("vx", "vy"),
    horizon=3,
    action_steps=2,
    control_hz=10.0,
    action_mode="velocity",
    task="point_mass",
)
DIFFUSION = DiffusionConfig(num_train_steps=5)
FLOW = FlowConfig(num_steps=2)


def make_policy(process: Any = DIFFUSION, spec: PolicySpec = SPEC, seed: int = 0) -> ChunkPolicy:
    torch.manual_seed(seed)
    bounds = {"state": 1.0, "environment_state": 0.8, "action": 1.0}
    normalizer = MinMaxNormalizer({key: (-torch.full((2,), b), torch.full((2,), b)) for key, b in bounds.items()})
    net = DiffusionMLPConfig(hidden=(32, 32, 32), time_dim=8)
    return build_chunk_policy(spec, net, process, ChunkPolicyConfig(), normalizer)


def make_critic(policy: ChunkPolicy, heads: int = 2, width: int = 16) -> QEnsemble:
    torch.manual_seed(1)
    spec, config = policy.spec, QConfig(heads=heads, hidden=(width, width))
    return QEnsemble(spec.obs, spec.obs_steps, spec.action_steps, spec.action_dim, config, policy.normalizer)


def make_value(policy: ChunkPolicy, width: int = 16) -> ValueNet:
    torch.manual_seed(2)
    return ValueNet(policy.spec.obs, policy.spec.obs_steps, (width, width, width), policy.normalizer)


def rollout(policy: Any, decisions: int = 8, envs: int = 6, **sim: Any) -> RolloutBatch:
    options = {"max_episode_steps": 7, "radius": 0.75} | sim
    return Collector(PointMass(envs, **options), policy).collect(decisions, rng())


def filled(algorithm: Any, decisions: int = 8, capacity: int = 100) -> ReplayBuffer:
    buffer = ReplayBuffer(algorithm.spec, capacity)
    buffer.add_rollout(rollout(Explorer(algorithm), decisions))
    return buffer


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def weights(module: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in module.parameters()]


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(a.equal(b) for a, b in zip(left, right, strict=True))


def check_first_updates(algorithm: Any, net: nn.Module, critics: list[nn.Module]) -> None:
    """The very first update moves policy and critics, and two updates stay finite."""
    buffer, generator = filled(algorithm), rng()
    before = [weights(module) for module in (net, *critics)]
    metrics = to_scalars(algorithm.update(buffer, updates=2, generator=generator))
    for module, old in zip((net, *critics), before, strict=True):
        assert not same(old, weights(module))
    metrics |= to_scalars(algorithm.update(buffer, updates=2, generator=generator))
    assert all(torch.isfinite(torch.tensor(list(metrics.values()))))
    assert all(bool(torch.isfinite(p).all()) for module in (net, *critics) for p in module.parameters())


def check_warmup(make: Callable[[], Any], net_of: Callable[[Any], nn.Module]) -> None:
    """With one iteration of warm-up the policy moves in the second one only."""
    algorithm = make()
    buffer, before = filled(algorithm), weights(net_of(algorithm))
    algorithm.update(buffer, updates=2, generator=rng())
    assert same(before, weights(net_of(algorithm)))
    algorithm.update(buffer, updates=2, generator=rng())
    assert not same(before, weights(net_of(algorithm)))


def check_resume(make: Callable[[], Any], modules_of: Callable[[Any], dict[str, nn.Module]]) -> None:
    """Two iterations equal one, a restart from saved state, and another one, bit for bit."""
    whole, again = make(), make()
    buffer = filled(whole)
    generator = rng(3)
    whole.update(buffer, updates=2, generator=generator)
    saved = copy.deepcopy(
        {
            "modules": {name: module.state_dict() for name, module in modules_of(whole).items()},
            "algorithm": whole.state_dict(),
            "buffer": buffer.state_dict(),
            "generator": generator.get_state(),
        }
    )
    whole.update(buffer, updates=2, generator=generator)
    for name, module in modules_of(again).items():
        module.load_state_dict(saved["modules"][name])
    again.load_state_dict(saved["algorithm"])
    other, resumed = ReplayBuffer(again.spec, buffer.capacity), rng()
    other.load_state_dict(saved["buffer"])
    resumed.set_state(saved["generator"])
    again.update(other, updates=2, generator=resumed)
    for name, module in modules_of(whole).items():
        assert same(weights(module), weights(modules_of(again)[name])), name
    index = torch.arange(len(buffer))
    assert buffer.improved_actions(index).equal(other.improved_actions(index))
    obs = {key: torch.randn(4, 1, size, generator=rng(5)) for key, size in again.spec.obs.items()}
    assert whole.explore(obs, rng(6))[1].equal(again.explore(obs, rng(6))[1])
