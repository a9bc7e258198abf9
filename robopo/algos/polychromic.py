"""Polychromic advantages (arXiv 2509.25424) at the states of a vine, generalised advantage estimation elsewhere.

From some states of the rollout several continuations are drawn, which only a simulator that restores its state can do:
never the arm. Sets of them are rewarded for earning and for differing, which keeps a policy from collapsing onto one
way of doing the task. Every ratio and trust region goes with it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from robopo.algos.choices import Advantages, RolloutKind
from robopo.algos.gae_advantage import GAE
from robopo.errors import ConfigError
from robopo.losses.polychromic import polychromic_advantage
from robopo.types import RolloutBatch


@dataclass(frozen=True, slots=True)
class Polychromic:
    """The first ``window`` decisions of every continuation get the advantage of its sets INSTEAD of GAE's.

    The batch comes from a VineCollector, whose extras are read: ``use``, ``vine``, ``vine_step`` [T, E],
    ``vine_label`` [p, N, E] and ``vine_sets`` [p, M, n, E]. A continuation's return is the undiscounted sum of its
    rewards (as the update scales them) to its end or to where the collector cut it; a cut one isn't bootstrapped.
    Rewards should not be negative. Without vine data the result is GAE's, bit for bit.
    """

    window: int = 5
    """W, decisions of a continuation that get the set's advantage; 1 or more."""
    gamma: float = 0.999
    """Discount per decision of GAE; 0 to 1."""
    lam: float = 0.95
    """Lambda of GAE; 0 to 1."""

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ConfigError(f"window={self.window}: expected 1 or more decisions")
        for name in ("gamma", "lam"):
            value = getattr(self, name)
            if not 0.0 <= value <= 1.0:
                raise ConfigError(f"{name}={value}: expected 0 to 1")

    @property
    def rollout(self) -> RolloutKind:
        """A vine."""
        return RolloutKind.VINE

    def __call__(self, batch: RolloutBatch, reward: Tensor, value: Tensor, next_value: Tensor) -> Advantages:
        """See AdvantageEstimator."""
        target = GAE(gamma=self.gamma, lam=self.lam)(batch, reward, value, next_value)
        advantage, use = target.advantage, batch.extras.get("use")
        if "vine" in batch.extras:
            advantage = self._replace(batch, reward, advantage)
        return Advantages(advantage=advantage, returns=target.returns, use=use)

    def _replace(self, batch: RolloutBatch, reward: Tensor, advantage: Tensor) -> Tensor:
        """Put the advantages of the sets where they belong; [T, E]."""
        vine, sets, labels = batch.extras["vine"], batch.extras["vine_sets"], batch.extras["vine_label"]
        states, count, envs = labels.shape  # p, N, E
        earned = torch.where(batch.extras["use"], reward, 0.0)  # [T, E]
        # One pass per continuation: scatter_add would sum in an order of its own on a GPU.
        returns = torch.stack([torch.where(vine == c, earned, 0.0).sum(dim=0) for c in range(states * count)])
        out = polychromic_advantage(
            returns=returns.view(states, count, envs).movedim(1, 0).flatten(1),  # [N, p * E]
            labels=labels.movedim(1, 0).flatten(1),
            sets=sets.movedim(0, 2).flatten(2),  # [M, n, p * E]
        )
        by_vine = out.advantage.view(count, states, envs).movedim(0, 1).reshape(states * count, envs)
        member = out.member.view(count, states, envs).movedim(0, 1).reshape(states * count, envs)
        row = vine.clamp_min(0)
        replaced = (vine >= 0) & (batch.extras["vine_step"] < self.window) & member.gather(0, row)
        return torch.where(replaced, by_vine.gather(0, row).to(advantage.dtype), advantage)
