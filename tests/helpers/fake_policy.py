"""A policy with the likelihood interface of the diffusion policies and a network small enough for exact checks."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from robopo.policies.config import ChunkPolicyConfig
from robopo.types import DenoisingChain, Observation


@dataclass(frozen=True)
class FakeSpec:
    obs: dict[str, int] = field(default_factory=lambda: {"environment_state": 2, "state": 2})
    action_dim: int = 2
    action_names: tuple[str, ...] = ("vx", "vy")
    obs_steps: int = 1
    horizon: int = 2
    action_steps: int = 2
    control_hz: float = 10.0
    action_mode: str = "velocity"
    task: str = "point_mass"


class FakePolicy(nn.Module):
    """x_{i+1} ~ N(x_i + net(obs, x_i, i), 0.1^2) for K' steps from a unit Gaussian; log-probs averaged over Ta * A."""

    def __init__(self, ft_steps: int = 3, *, spec: FakeSpec | None = None, seed: int = 0, hidden: int = 32) -> None:
        super().__init__()
        self.spec = spec or FakeSpec()
        self.ft_steps, self.std = ft_steps, 0.1
        self.config = ChunkPolicyConfig()
        self.seen: list[tuple[int, ...]] = []
        inputs = self.spec.obs_steps * sum(self.spec.obs.values()) + self.spec.horizon * self.spec.action_dim + 1
        outputs = self.spec.horizon * self.spec.action_dim
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.net = nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs))
        self.frozen_net = copy.deepcopy(self.net).requires_grad_(False)

    def mean(self, obs: Observation, x_in: Tensor, i: Tensor) -> Tensor:
        parts = [obs[key].flatten(1) for key in sorted(obs)] + [x_in.flatten(1), i[:, None].to(x_in.dtype)]
        return x_in + self.net(torch.cat(parts, dim=1)).view_as(x_in)

    def step_log_prob(self, obs: Observation, x_in: Tensor, x_out: Tensor, i: Tensor) -> Tensor:
        z = (x_out - self.mean(obs, x_in, i))[:, : self.spec.action_steps] / self.std
        return (-0.5 * z.square() - math.log(self.std) - 0.5 * math.log(2 * math.pi)).mean((-1, -2))

    def replay(self, obs: Observation, latents: Tensor) -> Tensor:
        steps = [
            self.step_log_prob(obs, latents[:, i], latents[:, i + 1], torch.full((len(latents),), i))
            for i in range(self.ft_steps)
        ]
        return torch.stack(steps, dim=1) if steps else latents.new_zeros(len(latents), 0)

    def sample_chain(self, obs: Observation, *, generator: torch.Generator) -> tuple[Tensor, DenoisingChain]:
        self.seen.append(tuple(obs["state"].shape))
        batch = len(obs["state"])
        x = torch.randn(batch, self.spec.horizon, self.spec.action_dim, generator=generator)
        latents = [x]
        for i in range(self.ft_steps):
            mean = self.mean(obs, x, torch.full((batch,), i))
            x = mean + self.std * torch.randn(x.shape, generator=generator)
            latents.append(x)
        chain = torch.stack(latents, dim=1)
        return x, DenoisingChain(latents=chain, log_probs=self.replay(obs, chain))
