"""Small Gaussian and mixture policies for the tests beside."""

from __future__ import annotations

import torch
from torch import Tensor

from robopo.nn.activation import Activation
from robopo.nn.gaussian_mlp import GaussianMLP, GaussianMLPConfig, MixtureMLP
from robopo.policies.base import PolicySpec
from robopo.policies.gaussian import GaussianPolicy
from robopo.policies.gmm import GMMPolicy
from robopo.policies.normalizer import MinMaxNormalizer
from robopo.policies.one_step import OneStepConfig

SPEC = PolicySpec(
    obs={"state": 3, "environment_state": 2}, action_dim=2, action_names=("x", "y"), horizon=4, action_steps=3
)
NET = GaussianMLPConfig(hidden=(32, 32, 32))
SCRATCH = GaussianMLPConfig(
    hidden=(16, 16),
    residual=False,
    activation=Activation.TANH,
    output_gain=0.01,
    initial_std=1.0,
    min_std=0.01,
    max_std=10.0,
)


def normalizer(spec: PolicySpec = SPEC) -> MinMaxNormalizer:
    bounds = {key: (-torch.ones(size), torch.ones(size)) for key, size in spec.obs.items()}
    return MinMaxNormalizer({**bounds, "action": (torch.tensor([-2.0, 0.0]), torch.tensor([2.0, 1.0]))})


def gaussian(
    config: OneStepConfig | None = None, net: GaussianMLPConfig = NET, spec: PolicySpec = SPEC, seed: int = 0
) -> GaussianPolicy:
    torch.manual_seed(seed)
    body = GaussianMLP(net, horizon=spec.horizon, action_dim=spec.action_dim, cond_dim=spec.cond_dim)
    return GaussianPolicy(spec, body, normalizer(spec), config or OneStepConfig(ft_steps=1))


def gmm(
    config: OneStepConfig | None = None, net: GaussianMLPConfig = NET, spec: PolicySpec = SPEC, seed: int = 0
) -> GMMPolicy:
    torch.manual_seed(seed)
    body = MixtureMLP(net, horizon=spec.horizon, action_dim=spec.action_dim, cond_dim=spec.cond_dim)
    return GMMPolicy(spec, body, normalizer(spec), config or OneStepConfig(ft_steps=1))


def make_obs(batch: int = 5, seed: int = 1, spec: PolicySpec = SPEC) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {k: torch.randn(batch, spec.obs_steps, size, generator=generator) for k, size in spec.obs.items()}


def rng(seed: int = 2) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
