"""Learning from what went well alone: the positive part of another estimator's advantages."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from robopo.algos.choices import AdvantageEstimator, Advantages, RolloutKind
from robopo.types import RolloutBatch


@dataclass(frozen=True, slots=True)
class PositivePart:
    """A+ = max(A, 0), with the critic's target of ``inner`` left as it is.

    For weighted regression (advantage-weighted objectives, drift towards good actions), where a negative weight would
    push without bound. Decisions with A <= 0 stay in the batch with weight 0, so the critic still learns from them.
    Switch ``norm_adv`` off: centring would undo it.
    """

    inner: AdvantageEstimator
    """What estimates A."""

    @property
    def rollout(self) -> RolloutKind:
        """As ``inner`` needs it."""
        return self.inner.rollout

    def __call__(self, batch: RolloutBatch, reward: Tensor, value: Tensor, next_value: Tensor) -> Advantages:
        """See AdvantageEstimator."""
        out = self.inner(batch, reward, value, next_value)
        return out._replace(advantage=out.advantage.clamp_min(0.0))
