"""Scales rewards by the running spread of discounted returns, as the PPO family does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from robopo.errors import ShapeError


class RewardScaler:
    """reward -> clip(reward / std(G), -10, 10), G the running discounted return of each environment.

    The reward scaling of Engstrom et al. 2020 (arXiv 2005.12729) in the form that DPPO's results were made with: the
    discount is 0.99 whatever the learner's, the mean is not subtracted, all E environments share one variance.
    """

    DISCOUNT = 0.99
    CLIP = 10.0
    EPS = 1e-8

    def __init__(self) -> None:
        self._mean = torch.zeros((), dtype=torch.float64)
        self._var = torch.ones((), dtype=torch.float64)
        self._count = 1e-4  # a prior of next to no weight, so that the first batch is not divided by nothing
        self._running: Tensor | None = None  # G of each environment, carried from batch to batch, [E]

    def __call__(self, reward: Tensor, first: Tensor, follow: Tensor | None = None) -> Tensor:
        """Reward and first are [T, E]; returns a new [T, E] tensor and takes the batch into the statistics.

        follow [T, E] bool: rows that count, see ``followed``; the others are scaled all the same. None: all.
        """
        running = torch.zeros_like(reward[0]) if self._running is None else self._running.to(reward.device)
        if running.shape != reward[0].shape:
            raise ShapeError(
                f"rewards come from {len(reward[0])} environments, the scaler has followed {len(running)}; "
                "keep num_envs through the run"
            )
        carry = self.DISCOUNT * (~first).to(reward.dtype)  # G_t = r_t + 0.99 (1 - first_t) G_{t-1}
        rows: list[Tensor] = []
        for n, (step_reward, step_carry) in enumerate(zip(reward, carry, strict=True)):
            after = torch.addcmul(step_reward, step_carry, running)
            running = after if follow is None else torch.where(follow[n], after, running)
            rows.append(running)
        self._running = running
        returns = torch.stack(rows).double()
        self._merge(returns if follow is None else returns[follow])
        return (reward / self.std(reward)).clamp(-self.CLIP, self.CLIP)

    def std(self, like: Tensor) -> Tensor:
        """The divisor, a scalar with the dtype and device of ``like``."""
        return (self._var + self.EPS).sqrt().to(like.device, like.dtype)

    def _merge(self, returns: Tensor) -> None:
        """Chan's parallel update of mean and variance; the divisor is n - 1."""
        count = returns.numel()
        if count == 0:
            return
        total = self._count + count
        mean, var = self._mean.to(returns.device), self._var.to(returns.device)
        shift = returns.mean() - mean
        squares = var * self._count + returns.var(correction=0) * count + shift.square() * self._count * count / total
        self._mean = mean + shift * count / total
        self._var = squares / (total - 1.0)
        self._count = total

    def state_dict(self) -> dict[str, Any]:
        """Statistics and the running returns."""
        running = None if self._running is None else self._running.clone()
        return {"mean": self._mean.clone(), "var": self._var.clone(), "count": self._count, "running": running}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly from ``state_dict()``."""
        self._mean, self._var, self._count = state["mean"].clone(), state["var"].clone(), float(state["count"])
        self._running = None if state["running"] is None else state["running"].clone()


def followed(extras: Mapping[str, Tensor]) -> Tensor | None:
    """The rows [T, E] of a batch with these extras that running returns follow; None: all.

    Not those in which an environment waits for others, nor a vine's continuations: the next batch goes on from the
    plain rows.
    """
    use, vine = extras.get("use"), extras.get("vine")
    if vine is None:
        return use
    return vine < 0 if use is None else (vine < 0) & use
