"""Observation statistics for a policy that starts without data: they grow with every rollout.

The bounds of the policy's normaliser follow the running mean and standard deviation, moved between iterations only.
Within an iteration a rollout and its updates see the same bounds, so the ratio is 1 at the first minibatch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from robopo.errors import ConfigError, ShapeError
from robopo.policies.normalizer import MinMaxNormalizer
from robopo.types import Observation


@dataclass(frozen=True, slots=True)
class RunningObsConfig:
    """How bounds follow the statistics."""

    width: float = 1.0
    """Bounds lie this many standard deviations from the mean; 1 makes normalised observations standard ones."""
    min_std: float = 1e-2
    """Least standard deviation (physical units) of a dimension: less would turn noise into signal."""

    def __post_init__(self) -> None:
        if not self.width > 0.0 or not self.min_std > 0.0:
            raise ConfigError(f"width={self.width}, min_std={self.min_std}: both must be positive")


class RunningObsStats:
    """Count, mean and squared deviations per observation key, merged rollout by rollout in float64.

    Merging two samples: Chan, Golub and LeVeque 1979, "Updating formulae and a pairwise algorithm for computing sample
    variances".
    """

    def __init__(
        self, normalizer: MinMaxNormalizer, keys: Sequence[str], config: RunningObsConfig | None = None
    ) -> None:
        """normalizer: the policy's (and its critic's), whose bounds of ``keys`` are moved in place."""
        self.config = config or RunningObsConfig()
        self.normalizer = normalizer
        sizes = {key: normalizer.bounds(key)[0] for key in keys}  # unknown keys are an error here
        self.count = 0
        self._mean = {key: torch.zeros_like(like, dtype=_dtype(like)) for key, like in sizes.items()}
        self._m2 = {key: torch.zeros_like(like, dtype=_dtype(like)) for key, like in sizes.items()}

    @torch.no_grad()
    def update(self, obs: Observation) -> None:
        """Add the newest row of every decision, entries [..., To, D] of one leading shape, and move the bounds."""
        added = 0
        for key, mean in self._mean.items():
            rows = obs[key][..., -1, :].reshape(-1, obs[key].shape[-1])
            if rows.shape[1:] != mean.shape:
                raise ShapeError(f"{key!r} is {list(obs[key].shape)}, expected [..., To, {mean.shape[0]}]")
            added = rows.shape[0]
            fresh = rows.to(mean)
            fresh_mean = fresh.mean(0)
            delta, total = fresh_mean - mean, self.count + added
            self._m2[key] = (
                self._m2[key]
                + (fresh - fresh_mean).square().sum(0)
                + delta.square() * (self.count * added / max(total, 1))
            )
            self._mean[key] = mean + delta * (added / max(total, 1))
        self.count += added
        self._move_bounds()

    def std(self, key: str) -> Tensor:
        """[D] population standard deviation so far, at least ``min_std``."""
        return (self._m2[key] / max(self.count, 1)).sqrt().clamp_min(self.config.min_std)

    def mean(self, key: str) -> Tensor:
        """[D]."""
        return self._mean[key]

    def _move_bounds(self) -> None:
        for key, mean in self._mean.items():
            reach = self.config.width * self.std(key)
            self.normalizer.set_bounds(key, mean - reach, mean + reach)

    def state_dict(self) -> dict[str, Any]:
        """Count and moments; the bounds themselves are the normaliser's."""
        return {
            "count": self.count,
            "mean": {key: value.clone() for key, value in self._mean.items()},
            "m2": {key: value.clone() for key, value in self._m2.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state_dict()``; the bounds come with the policy's weights."""
        for name, now in (("mean", self._mean), ("m2", self._m2)):
            found = {key: tuple(value.shape) for key, value in state[name].items()}
            expected = {key: tuple(value.shape) for key, value in now.items()}
            if found != expected:
                raise ShapeError(f"saved statistics are of {found}, expected {expected}; resume in the same simulator")
            now.update({key: value.to(now[key]).clone() for key, value in state[name].items()})
        self.count = int(state["count"])


def _dtype(like: Tensor) -> torch.dtype:
    """Double precision where the device has it."""
    return torch.float32 if like.device.type == "mps" else torch.float64


def scratch_normalizer(
    obs: Mapping[str, int], action_low: Sequence[float], action_high: Sequence[float], *, obs_range: float = 1.0
) -> MinMaxNormalizer:
    """The normaliser of a policy without data: observations (key -> D) in [-obs_range, obs_range], actions as bounded.

    Raises ConfigError where an action has no finite bounds of its own.
    """
    low, high = torch.tensor(action_low, dtype=torch.float64), torch.tensor(action_high, dtype=torch.float64)
    if low.shape != high.shape or not bool((torch.isfinite(low) & torch.isfinite(high) & (high > low)).all()):
        raise ConfigError(
            f"action bounds {list(action_low)} to {list(action_high)}: training from scratch needs finite bounds with "
            "low < high; bound the action in the simulator, or fit the normaliser to demonstrations"
        )
    if not obs_range > 0.0:
        raise ConfigError(f"obs_range={obs_range}: must be positive")
    reach = {key: torch.full((size,), obs_range, dtype=torch.float64) for key, size in obs.items()}
    return MinMaxNormalizer({**{key: (-r, r) for key, r in reach.items()}, "action": (low, high)})
