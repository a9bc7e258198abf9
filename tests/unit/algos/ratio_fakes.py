"""Policies and batches small enough to check ratios by hand, in float64."""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from robopo.algos.choices import Samples
from robopo.policies.config import ChunkPolicyConfig, Reduce
from robopo.types import DenoisingChain, Moments, Observation
from tests.helpers.fake_policy import FakeSpec

SPEC = FakeSpec(obs={"state": 2}, horizon=3, action_steps=2)
ROWS, DIMS = SPEC.action_steps, SPEC.action_steps * SPEC.action_dim


class FakeFlow(nn.Module):
    """A velocity net v(x, t, s), and K Euler steps with noise of std ``std`` (learned: of every number)."""

    def __init__(
        self, steps: int = 3, *, reduce: Reduce = Reduce.SUM, learned: bool = False, std: float = 0.2, seed: int = 0
    ) -> None:
        super().__init__()
        self.spec, self.ft_steps, self.has_moments = SPEC, steps, True
        self.config = ChunkPolicyConfig(ft_steps=steps, reduce=reduce)
        time = torch.linspace(1.0, 0.0, steps + 1, dtype=torch.float64).square()  # steps of different lengths
        self.time = time
        self.process = SimpleNamespace(step_sizes=time[:-1] - time[1:])
        numbers = SPEC.horizon * SPEC.action_dim
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.net = nn.Sequential(nn.Linear(numbers + 3, 16), nn.Tanh(), nn.Linear(16, numbers)).double()
        self.log_std = nn.Parameter(torch.full((SPEC.horizon, SPEC.action_dim), math.log(std), dtype=torch.float64))
        self.log_std.requires_grad_(learned)
        self.learns_std = learned
        self.frozen_net = copy.deepcopy(self.net).requires_grad_(False)
        self.std = std

    def trainable(self) -> list[nn.Parameter]:
        return [p for p in self.parameters() if p.requires_grad]

    def velocity(self, obs: Observation, x: Tensor, t: Tensor) -> Tensor:
        return self.net(torch.cat([obs["state"].flatten(1), t[:, None], x.flatten(1)], dim=1)).view_as(x)

    def step_moments(self, obs: Observation, x_in: Tensor, i: Tensor) -> Moments:
        h = (self.time[i] - self.time[i + 1]).view(-1, 1, 1)
        mean = x_in - h * self.velocity(obs, x_in, self.time[i])
        if not self.learns_std:
            return Moments(mean, torch.full((len(i), 1, 1), self.std, dtype=torch.float64))
        return Moments(mean, self.log_std.exp().expand_as(mean))

    def elementwise(self, obs: Observation, x_in: Tensor, x_out: Tensor, i: Tensor) -> Tensor:
        mean, std = self.step_moments(obs, x_in, i)
        return torch.distributions.Normal(mean, std.expand_as(mean)).log_prob(x_out)[:, :ROWS]

    def step_log_prob(self, obs: Observation, x_in: Tensor, x_out: Tensor, i: Tensor) -> Tensor:
        elements = self.elementwise(obs, x_in, x_out, i)
        return elements.mean((1, 2)) if self.config.reduce is Reduce.MEAN else elements.sum((1, 2))

    @torch.no_grad()
    def sample_chain(self, obs: Observation, *, generator: torch.Generator) -> tuple[Tensor, DenoisingChain]:
        B = len(obs["state"])
        x = torch.randn(B, SPEC.horizon, SPEC.action_dim, generator=generator, dtype=torch.float64)
        latents, means, stds, log_probs = [x], [], [], []
        for k in range(self.ft_steps):
            i = torch.full((B,), k)
            mean, std = self.step_moments(obs, x, i)
            x_out = mean + std * torch.randn(x.shape, generator=generator, dtype=torch.float64)
            log_probs.append(self.step_log_prob(obs, x, x_out, i))
            latents, means, stds, x = [*latents, x_out], [*means, mean], [*stds, std], x_out
        stack = [torch.stack(parts, dim=1) for parts in (latents, log_probs, means, stds)]
        return x, DenoisingChain(*stack)


def rollout(policy: FakeFlow, decisions: int = 6, *, seed: int = 0, **fields: Any) -> Samples:
    """Decisions at random observations, before any update."""
    generator = torch.Generator().manual_seed(seed)
    obs = {"state": torch.randn(decisions, 1, 2, generator=generator, dtype=torch.float64)}
    chain = policy.sample_chain(obs, generator=generator)[1]
    zeros = torch.zeros(decisions, dtype=torch.float64)
    parts: dict[str, Any] = {
        "latents": chain.latents,
        "log_probs": chain.log_probs,
        "means": chain.means,
        "stds": chain.stds,
        "active": None,
        "use": None,
        "anchors": {},
    }
    return Samples(obs=obs, value=zeros, advantage=zeros, returns=zeros, **(parts | fields))


def perturb(policy: FakeFlow, size: float = 0.1, *, seed: int = 9) -> None:
    """Move what learns at random."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.trainable():
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64), alpha=size)
