"""Settings and metrics of the policy-gradient family; the update is in ``policy_gradient.py``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from robopo.errors import ConfigError
from robopo.policies.config import Reduce


class CriticBatches(StrEnum):
    """What the critic's minibatches are made of."""

    DECISIONS = "decisions"
    """Its own permutation of the N decisions, as many steps as the actor's: each state once per epoch."""
    PAIRS = "pairs"
    """The actor's minibatches, so each state K' times per epoch: published, and K' times the work."""


class NormAdv(StrEnum):
    """Over what advantages are standardised."""

    MINIBATCH = "minibatch"
    """Each minibatch by itself, as DPPO does."""
    ROLLOUT = "rollout"
    """Once, over all decisions of the iteration that are learned from."""
    NONE = "none"
    """Not at all, for estimators that have their own scale."""


@dataclass(frozen=True, slots=True)
class PolicyGradientConfig:
    """One row of the family: the choices, as configuration, and the numbers. Defaults: DPPO on state observations.

    The choices are for the command line, which builds them: ``PolicyGradient`` is handed objects and reads the numbers.
    """

    exploration: Any = None
    """How fine-tuned steps draw (robopo.processes.exploration); null: the sampler's own noise, raised to its floor."""
    rollout: Any = None
    """How the simulator is run (settings of a group or vine collector); null: episodes one after the other."""
    ratio: Any = None
    """What new and old policy are compared on."""
    advantage: Any = None
    """Credit of a decision."""
    trust_region: Any = None
    """What keeps the new policy near the old one."""
    optimizer: Any = None
    """Of the actor; null: AdamW."""
    accelerator: Any = None
    """A cheaper estimate of the actor's gradient; null: the exact one."""
    reduce: Reduce | None = None
    """Log-probability of a step: mean or sum over the executed numbers; null keeps the policy's own."""
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
    """Units of the ratio per optimiser step, for DPPO (decision, i) pairs; a remainder is dropped, a smaller batch is
    taken whole."""
    accumulate: int = 1
    """Parts in which a minibatch goes through the network, to save memory; the step is the same."""
    norm_adv: NormAdv = NormAdv.MINIBATCH
    """See NormAdv."""
    adv_quantile_low: float = 0.0
    """Advantages below this quantile of the minibatch are raised to it; 0 is off."""
    adv_quantile_high: float = 1.0
    """Advantages above this quantile are lowered to it; 1 is off."""
    vf_coef: float = 0.5
    """Weight of the value loss; the critic has its own optimiser, so Adam nearly cancels it. 0: the critic rests."""
    clip_vloss: float | None = None
    """PPO's value clipping; null: off."""
    critic_batches: CriticBatches = CriticBatches.DECISIONS
    """See CriticBatches."""
    critic_warmup_iterations: int = 2
    """First iterations in which the critic alone learns."""
    target_kl: float | None = None
    """Stop the iteration after an epoch whose last minibatch exceeds this ``approx_kl``, in the units of the ratio
    (per dimension if log-probs average, joint if they sum). Costs one device synchronisation per epoch; null: never."""
    max_chain_kl: float | None = None
    """The same with the KL of a whole chain, exact, in the units of the policy's log-probs; it needs Gaussian steps."""
    kl_coef: float = 0.0
    """Weight of KL(policy || pre-trained policy) per denoising step; 0 is off."""
    bc_coef: float = 0.0
    """Weight of -log p(chain of the pre-trained policy), sampled once per iteration at its observations; 0 is off."""
    demo_coef: float = 0.0
    """Weight of the cloning loss on demonstrations; 0 is off."""
    entropy_coef: float = 0.0
    """Weight of the entropy of a step, per dimension, which must have a learned std; 0 is off."""
    knn_coef: float = 0.0
    """Weight of the estimated entropy of one-step samples, of a flow; 0 is off."""
    max_grad_norm: float | None = None
    """Clips the actor's gradient; null: off."""
    scale_rewards: bool = True
    """Divide rewards by the running spread of returns (RewardScaler)."""

    def __post_init__(self) -> None:
        for name in ("adv_quantile_low", "adv_quantile_high"):
            _check(name, getattr(self, name), 0.0 <= getattr(self, name) <= 1.0, "a number in [0, 1]")
        for name in ("actor_lr", "critic_lr"):
            high, low = getattr(self, name), getattr(self, f"{name}_min")
            _check(name, high, high > 0.0, "more than 0")
            ordered = low is None or 0.0 <= low <= high
            _check(f"{name}_min", low, ordered, f"0 to {name}={high}: a higher minimum makes the rate rise")
        for name in ("epochs", "batch_size", "accumulate", "lr_cycle_iterations"):
            _check(name, getattr(self, name), getattr(self, name) >= 1, "1 or more")
        weights = ("vf_coef", "kl_coef", "bc_coef", "demo_coef", "entropy_coef", "knn_coef")
        for name in ("lr_warmup_iterations", "critic_warmup_iterations", *weights):
            _check(name, getattr(self, name), getattr(self, name) >= 0, "0 or more")
        warmup, cycle = self.lr_warmup_iterations, self.lr_cycle_iterations
        _check("lr_warmup_iterations", warmup, warmup < cycle, f"less than lr_cycle_iterations={cycle}")
        for name in ("clip_vloss", "target_kl", "max_chain_kl", "max_grad_norm"):
            _check(name, getattr(self, name), getattr(self, name) is None or getattr(self, name) > 0, "more than 0")
        low, high = self.adv_quantile_low, self.adv_quantile_high
        _check("adv_quantile_high", high, low < high, f"more than the low one, {low}")


def _check(name: str, value: float | None, ok: bool, expected: str) -> None:
    if not ok:
        raise ConfigError(f"{name}={value}: expected {expected}")


class PolicyGradientMetrics(NamedTuple):
    """One iteration, as floats: means over its minibatches, or over the decisions learned from where (d).

    None where the ratio has no such number.
    """

    actor_loss: float
    approx_kl: float
    """k3 estimate in the units of the log-ratio: what target_kl is compared with."""
    approx_kl_joint: float | None
    """Of all Ta * A executed elements of a denoising step together, if the log-ratio is of the policy's log-probs."""
    approx_kl_per_dim: float | None
    clip_frac: float
    """Ratios outside the trust region."""
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
    """(d) Before it is normalised."""
    reward_divisor: float
    """What the reward scaler divided by; 1 when it is off."""
    blocked_positive: float
    """Share of the values with advantage > 0 whose gradient the trust region stopped."""
    blocked_negative: float
    """The same, advantage < 0."""
    ratio_q01: float
    """1 % quantile of the ratios in the last minibatch."""
    ratio_q50: float
    ratio_q99: float
    chain_kl: float | None
    """Exact KL(old || new) of the last minibatch, summed over the active steps of a chain: how far the iteration went.
    max_chain_kl is compared with it."""
    chain_kl_joint: float | None
    """The same of all Ta * A executed numbers together, whatever the ratio's units: what methods are compared by."""
    std_mean: float | None
    """(d) Std of the active steps that were sampled from."""
    ratio_deviation: tuple[float, ...]
    """Mean |ratio - 1| of each fine-tuned step i, noisiest first; one number when units are not steps."""
    kl_per_step: tuple[float, ...]
    """Exact KL of each fine-tuned step, over all minibatches; empty when the ratio doesn't give it."""
    regularisers: Mapping[str, float]
    """Each term before its weight, by name."""
    actor_lr: float = 0.0
    critic_lr: float = 0.0
    epochs: int = 0
    """Fewer than configured after an early stop."""
    iteration: int = 0
