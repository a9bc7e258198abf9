"""Acts by drawing several chunks and taking the one that a critic likes best.

Hansen-Estruch et al. 2023 (IDQL), arXiv 2304.10573, algorithm 2 with the greedy choice.
"""

from __future__ import annotations

from typing import Protocol, cast

import torch
from torch import Tensor, nn

from robopo.errors import ConfigError
from robopo.policies.base import PolicySpec
from robopo.policies.chunk_policy import ACTION, ChunkPolicy
from robopo.types import DenoisingChain, Observation


class ChunkCritic(Protocol):
    """Q of several chunks for each observation."""

    def each_of(self, obs: Observation, actions: Tensor) -> Tensor:
        """Entries [B, To, D] and normalised chunks [M, B, H, A] -> [heads, M, B]."""
        ...


class BestOfN(nn.Module):
    """``policy`` proposes M chunks, the smallest head of ``critic`` judges them."""

    def __init__(self, policy: ChunkPolicy, critic: nn.Module, candidates: int = 10) -> None:
        """critic: a ChunkCritic on the policy's device. candidates: M, at least 1."""
        super().__init__()
        if candidates < 1:
            raise ConfigError(f"candidates={candidates}: at least 1 chunk must be drawn")
        self.policy, self.critic, self.candidates = policy, critic, candidates

    @property
    def spec(self) -> PolicySpec:
        """The policy's."""
        return self.policy.spec

    def reset(self) -> None:
        """Nothing to forget: every decision depends on its observations alone."""

    @torch.no_grad()
    def propose(self, obs: Observation, *, deterministic: bool, generator: torch.Generator | None) -> Tensor:
        """M normalised chunks for each observation [M, B, H, A], from M initial latents each."""
        B, M = next(iter(obs.values())).shape[0], self.candidates
        repeated = {key: value.expand(M, *value.shape).flatten(0, 1) for key, value in obs.items()}
        if deterministic:
            chunk = self.policy.act(repeated, deterministic=True, generator=generator)
            actions = self.policy.normalizer.apply(ACTION, chunk)
        else:
            actions = self.policy.sample_chain(repeated, generator=generator)[1].latents[:, -1]
        return actions.unflatten(0, (M, B))

    @torch.no_grad()
    def judge(self, obs: Observation, actions: Tensor) -> Tensor:
        """Smallest head of the critic for actions [M, B, H, A] -> [M, B]."""
        return cast("ChunkCritic", self.critic).each_of(obs, actions).amin(0)

    @torch.no_grad()
    def act(self, obs: Observation, *, deterministic: bool = True, generator: torch.Generator | None = None) -> Tensor:
        """Entries [B, To, D] -> the best of M chunks [B, H, A], physical.

        deterministic: the proposals carry as little noise as the sampler allows after their initial latents, which
        come from ``generator``: with several initial latents this policy is never a function of the observation alone.
        """
        actions = self.propose(obs, deterministic=deterministic, generator=generator)
        best = self.judge(obs, actions).argmax(0)
        return self.physical(actions[best, torch.arange(len(best), device=best.device)])

    def physical(self, action: Tensor) -> Tensor:
        """Normalised chunks [B, H, A] in physical units."""
        return self.policy.normalizer.invert(ACTION, action)

    @torch.no_grad()
    def sample_chain(
        self, obs: Observation, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, DenoisingChain]:
        """Best of M exploring proposals, and a chain of that action alone: a choice among samples has no likelihood."""
        actions = self.propose(obs, deterministic=False, generator=generator)
        best = self.judge(obs, actions).argmax(0)
        action = actions[best, torch.arange(len(best), device=best.device)]
        chain = DenoisingChain(latents=action[:, None], log_probs=action.new_zeros(len(action), 0))
        return self.physical(action), chain

    def replay(self, obs: Observation, latents: Tensor) -> Tensor:
        """No steps, no log-probabilities: [B, 0]."""
        del obs
        return latents.new_zeros(len(latents), 0)
