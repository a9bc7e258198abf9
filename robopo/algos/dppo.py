"""Diffusion Policy Policy Optimization (DPPO): Ren et al. 2024, arXiv 2409.00588.

PPO over two nested decision processes. The outer one is the robot's: one decision per action chunk, its reward summed
over the chunk, gamma per decision. The inner one is the denoising chain that draws the chunk: step i has the state
(s, x_i), the action x_{i+1} and the Gaussian policy N(mu_theta(x_i, i, s), sigma_i^2 I); only its last step is
followed by a reward. Each of the N = T * E decisions of an iteration gives K' pairs (decision, i), i = 0 the noisiest
fine-tuned step, and PPO runs on all M = N * K' of them:

    r = exp(log p_theta(x_{i+1} | x_i, s) - log p_old(x_{i+1} | x_i, s))                  PerStep (units, log-ratio)
    A(s, a, i) = gamma_denoise^(K'-1-i) A(s, a),  A(s, a) by GAE over decisions           PerStep (weight), GAE
    L = mean max(-A r, -A clip(r, 1 - eps_i, 1 + eps_i)),  eps_i a ramp over the steps    Clip

The critic V(s) sees no denoising step. ``policy_gradient.PolicyGradient`` does what all methods of the family share:
targets, minibatches, optimiser steps, metrics.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from robopo.algos.choices import AdvantageEstimator, ChainPolicy, Ratio, RatioBatch, Samples, Surrogate, TrustRegion
from robopo.algos.gae_advantage import GAE
from robopo.algos.gaussian_steps import (
    check_gaussian,
    check_noisy,
    joint_factor,
    reduce_step,
    step_pair,
    step_rank,
    used_steps,
)
from robopo.algos.optimizers import AdamW, OptimizerChoice
from robopo.algos.policy_gradient import PolicyGradient
from robopo.algos.policy_gradient_config import PolicyGradientConfig
from robopo.algos.regularisers import Demonstrations
from robopo.errors import ConfigError
from robopo.losses.divergence import gaussian_kl, gaussian_log_ratio
from robopo.losses.trust_region import clip_schedule, denoising_discount, ppo_clip


@dataclass(frozen=True, slots=True)
class PerStep:
    """One ratio per denoising step, unit = decision * K' + i; reduced over the executed rows as the policy says."""

    gamma_denoise: float = 0.99
    """Discount per denoising step, in [0, 1]: early steps decide less about the chunk. 0 trains the last step alone."""
    divergence: bool = False
    """Also give KL(old || new), exact. Switched on where a trust region or max_chain_kl needs it."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.gamma_denoise <= 1.0:
            raise ConfigError(f"gamma_denoise={self.gamma_denoise}: expected a number in [0, 1]")

    def check(self, policy: ChainPolicy) -> None:
        """Raise ConfigError where no step has noise, or the KL is asked for and the policy's steps have none."""
        check_noisy("ratio=PerStep", policy)
        if self.divergence:
            check_gaussian("PerStep with a KL (for the trust region, max_chain_kl or ratio.divergence)", policy)

    def units(self, data: Samples) -> Tensor:
        """All active pairs of the decisions in use [M]."""
        N, K = data.log_probs.shape
        if data.active is None and data.use is None:
            return torch.arange(N * K, device=data.log_probs.device)
        return used_steps(data)

    def decision(self, data: Samples, unit: Tensor) -> Tensor:
        """Decision [B] of each pair [B]."""
        return unit // data.log_probs.shape[1]

    def anchor(self, policy: ChainPolicy, data: Samples, generator: torch.Generator) -> dict[str, Tensor]:  # noqa: ARG002
        """Nothing: the batch has the log-probs and moments that the policy acted with."""
        return {}

    def joint_kl_factor(self, policy: ChainPolicy) -> float | None:
        """Ta * A where the policy averages."""
        return joint_factor(policy)

    def evaluate(self, policy: ChainPolicy, data: Samples, unit: Tensor) -> RatioBatch:
        """Log-ratio and KL [B, 1] of the pairs [B]."""
        K = data.log_probs.shape[1]
        decision, i = unit // K, unit % K
        divergence = None
        if self.divergence:
            x, (old_mean, old_std), (mean, std) = step_pair(policy, data, decision, i)
            both = {"old_mean": old_mean, "old_std": old_std, "new_mean": mean, "new_std": std}
            log_ratio = reduce_step(policy, gaussian_log_ratio(x, **both))
            divergence = reduce_step(policy, gaussian_kl(**both))[:, None]
        else:  # any likelihood will do, also a mixture's
            row = unit + decision  # of latents: decision * (K'+1) + i
            latents = data.latents.flatten(0, 1)
            x_in, x_out = latents.index_select(0, row), latents.index_select(0, row + 1)
            old = data.log_probs.flatten().index_select(0, unit)
            log_ratio = policy.step_log_prob(data.rows(decision), x_in, x_out, i) - old
        weight = _discount(K, self.gamma_denoise, unit.device).index_select(0, i)
        weight, rank = weight[:, None].to(log_ratio.dtype), step_rank(data, decision, i)
        return RatioBatch(log_ratio[:, None], divergence, weight=weight, step=i, rank=rank)


@dataclass(frozen=True, slots=True)
class Clip:
    """PPO's clip, its half-width rising exponentially from the noisiest step to the last (DPPO, appendix).

    eps_i = base + (coef - base) (exp(rate u) - 1) / (exp(rate) - 1), u = i / (K' - 1); ``coef`` where there is one
    step, or where units are not steps. Ratios are of the policy's own log-probs: with ``reduce: mean`` 0.01 is far
    wider for a chunk of many numbers than for one of few.
    """

    base: float = 0.001
    """Half-width of the ratio interval at the noisiest step, in (0, 1)."""
    coef: float = 0.01
    """Half-width at the last step, in (0, 1); aim for a clip fraction of 10-20 %."""
    rate: float = 3.0
    """Curvature of the ramp between the two; 0 is linear."""
    ratio_cap: float | None = None
    """Dual clip (Ye et al. 2020, arXiv 1912.09729): ratios count as no more than this, above 1, where the advantage is
    negative; null: off, as in DPPO."""

    def __post_init__(self) -> None:
        for name in ("base", "coef"):
            if not 0.0 < getattr(self, name) < 1.0:
                raise ConfigError(f"{name}={getattr(self, name)}: expected a number in (0, 1)")
        if self.rate < 0.0:
            raise ConfigError(f"rate={self.rate}: expected 0 or more")
        if self.ratio_cap is not None and self.ratio_cap <= 1.0:
            raise ConfigError(f"ratio_cap={self.ratio_cap}: expected more than 1, or null for off")

    @property
    def needs_divergence(self) -> bool:
        """Ratios are enough."""
        return False

    def surrogate(self, ratio: RatioBatch, adv: Tensor, *, num_steps: int) -> Surrogate:
        """Clipped loss [B, V]."""
        ramp = _ramp(max(1, num_steps), self.base, self.coef, self.rate, adv.device)  # [K'], the last entry is coef
        place = ratio.step if ratio.rank is None else ratio.rank
        clip = ramp[-1] if place is None else ramp.index_select(0, place.clamp(max=len(ramp) - 1))[:, None]
        out = ppo_clip(log_ratio=ratio.log_ratio, adv=adv, clip=clip.to(adv.dtype), ratio_cap=self.ratio_cap)
        return Surrogate(out.loss, out.blocked, out.outside)


@functools.lru_cache(maxsize=16)
def _ramp(num_steps: int, base: float, coef: float, rate: float, device: torch.device) -> Tensor:
    """Half-widths [K'], kept: minibatches come by the hundred."""
    return clip_schedule(ft_steps=num_steps, base=base, coef=coef, rate=rate).to(device)


@functools.lru_cache(maxsize=16)
def _discount(num_steps: int, gamma: float, device: torch.device) -> Tensor:
    """gamma^(K'-1-i), [K'], kept likewise."""
    return denoising_discount(ft_steps=num_steps, gamma=gamma).to(device)


def dppo(
    policy: ChainPolicy,
    critic: nn.Module,
    config: PolicyGradientConfig | None = None,
    *,
    ratio: Ratio | None = None,
    advantage: AdvantageEstimator | None = None,
    trust_region: TrustRegion | None = None,
    optimizer: OptimizerChoice | None = None,
    demonstrations: Demonstrations | None = None,
) -> PolicyGradient:
    """DPPO with the published settings; any part may be replaced. The policy is already fine-tuning, on its device."""
    return PolicyGradient(
        policy,
        critic,
        config or PolicyGradientConfig(),
        ratio=ratio or PerStep(),
        advantage=advantage or GAE(),
        trust_region=trust_region or Clip(),
        optimizer=optimizer or AdamW(),
        demonstrations=demonstrations,
    )
