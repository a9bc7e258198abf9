"""Small actors, critics and buffers for the off-policy tests beside: an observation of 3 numbers, one action of 2."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from robopo.critics.q_ensemble import QConfig, QEnsemble
from robopo.data.replay import ReplayBuffer
from robopo.nn.activation import Activation
from robopo.nn.gaussian_mlp import GaussianMLPConfig
from robopo.policies.base import PolicySpec
from robopo.policies.gaussian import GaussianPolicy
from robopo.policies.gaussian_build import build_gaussian
from robopo.policies.normalizer import MinMaxNormalizer
from robopo.policies.one_step import OneStepConfig
from robopo.policies.tanh_gaussian import TanhGaussianConfig, TanhGaussianPolicy

SPEC = PolicySpec(obs={"state": 3}, action_dim=2, action_names=("x", "y"), horizon=1, action_steps=1)


def normalizer(spec: PolicySpec = SPEC) -> MinMaxNormalizer:
    sizes = {**spec.obs, "action": spec.action_dim}
    return MinMaxNormalizer({key: (-2.0 * torch.ones(size), 2.0 * torch.ones(size)) for key, size in sizes.items()})


def soft_actor(seed: int = 0, spec: PolicySpec = SPEC) -> TanhGaussianPolicy:
    torch.manual_seed(seed)
    return TanhGaussianPolicy(spec, normalizer(spec), TanhGaussianConfig(hidden=(16, 16)))


def gaussian_actor(seed: int = 0, dropout: float = 0.0, spec: PolicySpec = SPEC) -> GaussianPolicy:
    torch.manual_seed(seed)
    net = GaussianMLPConfig(hidden=(16, 16), residual=False, activation=Activation.RELU, dropout=dropout)
    return build_gaussian(spec, net, OneStepConfig(), normalizer(spec))


def critic(heads: int = 5, seed: int = 1, spec: PolicySpec = SPEC) -> QEnsemble:
    torch.manual_seed(seed)
    config = QConfig(heads=heads, hidden=(16, 16), layer_norm=True)
    return QEnsemble(spec.obs, spec.obs_steps, spec.action_steps, spec.action_dim, config, normalizer(spec))


def filled(n: int = 32, seed: int = 2, *, mc_return: bool = False, spec: PolicySpec = SPEC) -> ReplayBuffer:
    generator = torch.Generator().manual_seed(seed)
    buffer = ReplayBuffer(spec, max(n, 1), extras={"mc_return": ()} if mc_return else None)
    if n:
        buffer.add(
            obs=make_obs(n, generator),
            action=torch.rand(n, 1, 2, generator=generator) * 2.0 - 1.0,
            reward=torch.rand(n, generator=generator),
            terminated=torch.rand(n, generator=generator) < 0.2,
            next_obs=make_obs(n, generator),
            extras={"mc_return": torch.rand(n, generator=generator)} if mc_return else None,
        )
    return buffer


def make_obs(n: int, generator: torch.Generator) -> dict[str, Tensor]:
    return {"state": torch.randn(n, 1, 3, generator=generator)}


def rng(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def full_state(algorithm: Any, modules: Mapping[str, nn.Module]) -> dict[str, Any]:
    """A copy of what a checkpoint holds of a learner."""
    weights = {name: dict(module.state_dict()) for name, module in modules.items()}
    return copy.deepcopy({"modules": weights, "algorithm": algorithm.state_dict()})


def load_full(algorithm: Any, modules: Mapping[str, nn.Module], state: Mapping[str, Any]) -> None:
    for name, module in modules.items():
        module.load_state_dict(state["modules"][name])
    algorithm.load_state_dict(state["algorithm"])


def same(a: Any, b: Any) -> bool:
    """Whether two state trees are equal bit for bit."""
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b
