"""Group-relative advantages: an episode is as good as it beats the others that started from the same state.

GRPO (Shao et al. 2024, arXiv 2402.03300) on the decisions of a robot, as Flow-GRPO (Liu et al. 2025, arXiv 2505.05470)
uses it on images. For sparse success and simulators that can start many environments in the same state; with dense
rewards GAE tells more. Every decision (j, k) of an episode gets the episode's advantage.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from robopo.algos.choices import Advantages, RolloutKind
from robopo.algos.gae_advantage import GAE
from robopo.errors import ConfigError, ShapeError
from robopo.losses.group_relative import group_advantage
from robopo.named_choice import named_choice
from robopo.types import RolloutBatch


class GroupStd(StrEnum):
    """Which spread divides the advantages."""

    GROUP = "group"
    """Of each group: hard and easy starts weigh the same."""
    BATCH = "batch"
    """Of all episodes of the iteration: a start where the policy is undecided weighs more (Flow-GRPO)."""


@dataclass(frozen=True, slots=True)
class GroupRelative:
    """A = (R - mean of the group) / (std + eps), R the undiscounted return of the episode within the batch.

    The batch has to come from a GroupCollector: it needs extras ``group`` [E] and ``use`` [T, E]. R sums the batch's
    own rewards, not scaled ones, over the decisions in use; an episode that was not over after T decisions counts with
    its return so far. Decisions after the end, and groups whose members all got the same return, are not learned from.
    Switch ``norm_adv`` off: the advantages are normalised already. The advantage reads no critic; ``returns`` are
    those of GAE, so that a critic can be trained beside it (for a later switch to GAE) or ignored.
    """

    std: GroupStd = GroupStd.GROUP
    """``group`` or ``batch``: what divides the advantages."""
    clamp: float | None = 5.0
    """Advantages are limited to +-clamp; greater than 0. None: no limit."""
    eps: float = 1e-4
    """Added to the standard deviation; greater than 0."""
    gamma: float = 0.999
    """Discount per decision of the critic's target; 0 to 1."""
    lam: float = 0.95
    """Lambda of the critic's target; 0 to 1. 1 with gamma 1 is the plain return."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "std", named_choice(GroupStd, "std", self.std))
        if self.clamp is not None and not self.clamp > 0.0:
            raise ConfigError(f"clamp={self.clamp}: expected more than 0, or null for no limit")
        if not self.eps > 0.0:
            raise ConfigError(f"eps={self.eps}: expected more than 0")
        for name in ("gamma", "lam"):
            value = getattr(self, name)
            if not 0.0 <= value <= 1.0:
                raise ConfigError(f"{name}={value}: expected 0 to 1")

    @property
    def rollout(self) -> RolloutKind:
        """Groups."""
        return RolloutKind.GROUPS

    def __call__(self, batch: RolloutBatch, reward: Tensor, value: Tensor, next_value: Tensor) -> Advantages:
        """See AdvantageEstimator. A batch without groups is a ShapeError."""
        missing = [name for name in ("group", "use") if name not in batch.extras]
        if missing:
            raise ShapeError(
                f"the batch has no extras {missing}: group-relative advantages need episodes that start together; "
                "collect with GroupCollector (advantage.rollout is 'groups')"
            )
        use = batch.extras["use"]  # [T, E]
        episode_return = torch.where(use, batch.reward, 0.0).sum(dim=0)  # [E]
        out = group_advantage(
            episode_return=episode_return,
            group=batch.extras["group"],
            batch_std=self.std is GroupStd.BATCH,
            clamp=self.clamp,
            eps=self.eps,
        )
        use = use & out.use
        target = GAE(gamma=self.gamma, lam=self.lam)(batch, reward, value, next_value)
        return Advantages(advantage=torch.where(use, out.advantage, 0.0), returns=target.returns, use=use)
