"""Settings and metrics of DPPO; the algorithm is in ``dppo.py``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from robopo.errors import ConfigError


class CriticBatches(StrEnum):
    """What the critic's minibatches are made of."""

    DECISIONS = "decisions"
    """Its own permutation of the N decisions, batch_size / K' each: as many steps, each state once per epoch."""
    PAIRS = "pairs"
    """The actor's minibatches, so each state K' times per epoch: published, and K' times the work."""


@dataclass(frozen=True, slots=True)
class DPPOConfig:
    """Defaults are the published ones for state-based manipulation."""

    gamma: float = 0.999
    """Discount per decision (not per control step), in [0, 1]."""
    gae_lambda: float = 0.95
    """In [0, 1]; 0 is the TD error, 1 the Monte-Carlo return."""
    gamma_denoise: float = 0.99
    """Discount per denoising step, in [0, 1]; 0 trains the last step alone."""
    actor_lr: float = 1e-4
    """Peak learning rate of the actor."""
    actor_lr_min: float | None = None
    """Where warm-up starts and the cosine ends; null: constant."""
    critic_lr: float = 1e-3
    """Peak learning rate of the critic."""
    critic_lr_min: float | None = None
    """As actor_lr_min."""
    lr_warmup_iterations: int = 10
    """Iterations of linear warm-up, fewer than a cycle's; the actor's count starts after the critic's warm-up."""
    lr_cycle_iterations: int = 1000
    """Length of one warm-up and cosine cycle."""
    epochs: int = 10
    """Passes over the batch per iteration."""
    batch_size: int = 7500
    """(decision, i) pairs per optimiser step; a remainder is dropped, a smaller batch is taken whole."""
    accumulate: int = 1
    """Parts in which a minibatch goes through the network, to save memory; the step is the same."""
    clip_base: float = 0.001
    """Half-width of the ratio interval at the noisiest step, in (0, 1). Ratios are of the policy's own log-probs."""
    clip_coef: float = 0.01
    """Half-width at the last step; aim for a clip fraction of 10-20 %."""
    clip_rate: float = 3.0
    """Curvature of the ramp between the two; 0 is linear."""
    norm_adv: bool = True
    """Standardise advantages in every minibatch."""
    adv_quantile_low: float = 0.0
    """Advantages below this quantile of the minibatch are raised to it; 0 is off."""
    adv_quantile_high: float = 1.0
    """Advantages above this quantile are lowered to it; 1 is off."""
    vf_coef: float = 0.5
    """Weight of the value loss; the critic has its own optimiser, so Adam nearly cancels it."""
    clip_vloss: float | None = None
    """PPO's value clipping; null: off."""
    critic_batches: CriticBatches = CriticBatches.DECISIONS
    """See CriticBatches."""
    critic_warmup_iterations: int = 2
    """First iterations in which the critic alone learns."""
    target_kl: float | None = None
    """Stop the iteration after an epoch whose last minibatch exceeds this, in the units of the policy's log-probs
    (per dimension if it averages, joint if it sums). Costs one device synchronisation per epoch; null: never stop."""
    bc_coef: float = 0.0
    """Weight of -log p(chain of the pre-trained policy), sampled once per iteration at its observations; 0 is off."""
    max_grad_norm: float | None = None
    """Clips the actor's gradient; null: off."""
    scale_rewards: bool = True
    """Divide rewards by the running spread of returns (RewardScaler)."""
    legacy_gae: bool = False
    """Ignore truncation as the published code does, for reproduction only."""

    def __post_init__(self) -> None:
        for name in ("gamma", "gae_lambda", "gamma_denoise", "adv_quantile_low", "adv_quantile_high"):
            _check(name, getattr(self, name), 0.0 <= getattr(self, name) <= 1.0, "a number in [0, 1]")
        for name in ("actor_lr", "critic_lr"):
            high, low = getattr(self, name), getattr(self, f"{name}_min")
            _check(name, high, high > 0.0, "more than 0")
            ordered = low is None or 0.0 <= low <= high
            _check(f"{name}_min", low, ordered, f"0 to {name}={high}: a higher minimum makes the rate rise")
        for name in ("clip_base", "clip_coef"):
            _check(name, getattr(self, name), 0.0 < getattr(self, name) < 1.0, "a number in (0, 1)")
        for name in ("epochs", "batch_size", "accumulate", "lr_cycle_iterations"):
            _check(name, getattr(self, name), getattr(self, name) >= 1, "1 or more")
        for name in ("lr_warmup_iterations", "critic_warmup_iterations", "clip_rate", "vf_coef", "bc_coef"):
            _check(name, getattr(self, name), getattr(self, name) >= 0, "0 or more")
        warmup, cycle = self.lr_warmup_iterations, self.lr_cycle_iterations
        _check("lr_warmup_iterations", warmup, warmup < cycle, f"less than lr_cycle_iterations={cycle}")
        for name in ("clip_vloss", "target_kl", "max_grad_norm"):
            _check(name, getattr(self, name), getattr(self, name) is None or getattr(self, name) > 0, "more than 0")
        quantiles = self.adv_quantile_low < self.adv_quantile_high
        _check(
            "adv_quantile_high", self.adv_quantile_high, quantiles, f"more than the low one, {self.adv_quantile_low}"
        )


def _check(name: str, value: float | None, ok: bool, expected: str) -> None:
    if not ok:
        raise ConfigError(f"{name}={value}: expected {expected}")


class DPPOMetrics(NamedTuple):
    """One iteration, as floats: means over its minibatches, or over its decisions where marked (d)."""

    actor_loss: float
    bc_loss: float
    approx_kl: float
    """k3 estimate in the units of the policy's log-probs: what target_kl is compared with."""
    approx_kl_joint: float
    """Of all Ta * A executed elements together."""
    approx_kl_per_dim: float
    clip_frac: float
    ratio_mean: float
    actor_grad_norm: float
    value_loss: float
    critic_grad_norm: float
    explained_variance: float
    """(d) Of the returns by the values before the update; 0 when the returns are constant."""
    value_mean: float
    """(d)"""
    return_mean: float
    """(d)"""
    advantage_std: float
    """(d)"""
    reward_divisor: float
    """What the reward scaler divided by; 1 when it is off."""
    ratio_deviation: tuple[float, ...]
    """Mean |ratio - 1| of each fine-tuned step i, noisiest first."""
    actor_lr: float = 0.0
    critic_lr: float = 0.0
    epochs: int = 0
    """Fewer than configured after an early stop."""
    iteration: int = 0
