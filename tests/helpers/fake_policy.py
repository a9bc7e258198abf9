"""A policy with the likelihood interface of the diffusion policies and a network small enough for exact checks."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from robopo.policies.config import ChunkPolicyConfig, Reduce
from robopo.types import DenoisingChain, Moments, Observation


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
    """x_{i+1} ~ N(x_i + net(obs, x_i, i), 0.1^2) for K' steps from a unit Gaussian; log-probs averaged over Ta * A.

    has_moments=False: as a mixture would, chains come without means and stds, and ``step_moments`` is refused.
    inactive: steps i that go to their mean without noise, and have no likelihood.
    learned_noise: the std is exp(noise_net) instead, one number per action dimension.
    """

    def __init__(
        self,
        ft_steps: int = 3,
        *,
        spec: FakeSpec | None = None,
        seed: int = 0,
        hidden: int = 32,
        has_moments: bool = True,
        inactive: tuple[int, ...] = (),
        learned_noise: bool = False,
    ) -> None:
        super().__init__()
        self.has_moments, self.inactive = has_moments, inactive
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
        log_std = torch.full((1, 1, self.spec.action_dim), math.log(self.std))
        self.noise_net = nn.ParameterList([nn.Parameter(log_std)]) if learned_noise else None

    @property
    def learns_std(self) -> bool:
        return self.noise_net is not None

    def end_iteration(self, done: int) -> None:
        """Nothing follows a schedule."""

    def trainable(self) -> list[nn.Parameter]:
        return [*self.net.parameters(), *(self.noise_net or [])]

    def mean(self, obs: Observation, x_in: Tensor, i: Tensor) -> Tensor:
        parts = [obs[key].flatten(1) for key in sorted(obs)] + [x_in.flatten(1), i[:, None].to(x_in.dtype)]
        return x_in + self.net(torch.cat(parts, dim=1)).view_as(x_in)

    def step_moments(self, obs: Observation, x_in: Tensor, i: Tensor) -> Moments:
        if not self.has_moments:
            raise NotImplementedError
        return self._moments(obs, x_in, i)

    def _moments(self, obs: Observation, x_in: Tensor, i: Tensor) -> Moments:
        mean = self.mean(obs, x_in, i)
        if self.noise_net is not None:
            return Moments(mean, self.noise_net[0].exp().expand_as(mean))
        quiet = torch.isin(i, torch.tensor(self.inactive, dtype=torch.long))
        return Moments(mean, torch.where(quiet, 0.0, torch.full((len(i),), self.std))[:, None, None])

    def step_log_prob(self, obs: Observation, x_in: Tensor, x_out: Tensor, i: Tensor) -> Tensor:
        mean, std = self._moments(obs, x_in, i)
        z = ((x_out - mean) / std)[:, : self.spec.action_steps]
        log_std = std.log().expand_as(mean)[:, : self.spec.action_steps]
        elements = -0.5 * z.square() - log_std - 0.5 * math.log(2 * math.pi)
        return elements.mean((-1, -2)) if self.config.reduce is Reduce.MEAN else elements.sum((-1, -2))

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
        latents, moments = [x], []
        for i in range(self.ft_steps):
            moments.append(self._moments(obs, x, torch.full((batch,), i)))
            x = moments[-1].mean + moments[-1].std * torch.randn(x.shape, generator=generator)
            latents.append(x)
        chain = torch.stack(latents, dim=1)
        active = None
        if self.inactive:
            active = torch.tensor([i not in self.inactive for i in range(self.ft_steps)]).expand(batch, -1)
        log_probs = self.replay(obs, chain)
        if active is not None:
            log_probs = log_probs.masked_fill(~active, 0.0)
        if not self.has_moments or not moments:
            return x, DenoisingChain(latents=chain, log_probs=log_probs, active=active)
        means, stds = (torch.stack(part, dim=1) for part in zip(*moments, strict=True))
        return x, DenoisingChain(latents=chain, log_probs=log_probs, means=means, stds=stds, active=active)
