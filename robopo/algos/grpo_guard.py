"""GRPO-Guard's ratio: arXiv 2510.22319.

With d = mean_new - mean_old and x' = mean_old + sd z, the per-step log-ratio averaged over the D executed numbers is
z.d / (sd D) - |d|^2 / (2 sd^2 D): below 0 on average, and the more so the smaller sd. Positive samples then escape the
clip. GRPO-Guard takes the bias out and the scale with it:

    log r~ = sd (log r + |d|^2 / (2 sd^2 D)) = z.d / D            and weighs the loss of step k by 1 / h_k, h = t - t'.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from robopo.algos.choices import ChainPolicy, RatioBatch, Samples
from robopo.algos.gaussian_steps import (
    check_gaussian,
    joint_factor,
    kernel_name,
    reduce_step,
    step_pair,
    step_rank,
    used_steps,
)
from robopo.errors import ConfigError
from robopo.losses.divergence import gaussian_kl


@dataclass(frozen=True, slots=True)
class NormalizedRatio:
    """Ratio per denoising step without the bias of its noise level; unit = decision * K' + i.

    A mean over the executed rows whatever the policy's ``reduce``, which scales the divergence alone.
    """

    step_weight: bool = True
    """Weigh the loss of a step by 1 / h_k, as published; false where steps have no length (diffusion)."""

    def check(self, policy: ChainPolicy) -> None:
        """Raise ConfigError for policies without Gaussian steps, with a learned std, or whose steps have no length."""
        check_gaussian("NormalizedRatio", policy)
        if policy.learns_std:
            raise ConfigError(
                f"ratio=NormalizedRatio with a {type(policy).__name__} whose std is learned (kernel="
                f"{kernel_name(policy)}): this ratio sees the means alone, so the std would never learn; use "
                "ratio=Chain or PerStep, or a flow with kernel=FlowSDE"
            )
        if self.step_weight and _step_sizes(policy) is None:
            raise ConfigError(
                f"ratio=NormalizedRatio weighs steps by 1 / h, and the steps of this {type(policy).__name__} have no "
                "length; use a flow policy (policy=flow_mlp), or set ratio.step_weight=false"
            )

    def units(self, data: Samples) -> Tensor:
        """Active steps of the decisions in use [M]."""
        return used_steps(data)

    def decision(self, data: Samples, unit: Tensor) -> Tensor:
        """Decision [B] of each step [B]."""
        return unit // data.log_probs.shape[1]

    def anchor(self, policy: ChainPolicy, data: Samples, generator: torch.Generator) -> dict[str, Tensor]:  # noqa: ARG002
        """Nothing: the rollout kept the moments."""
        return {}

    def joint_kl_factor(self, policy: ChainPolicy) -> float | None:
        """Ta * A where the policy averages."""
        return joint_factor(policy)

    def evaluate(self, policy: ChainPolicy, data: Samples, unit: Tensor) -> RatioBatch:
        """Log-ratio z.d / D, divergence, and weight 1 / h of the loss, [B, 1]."""
        K = data.log_probs.shape[1]
        decision, i = unit // K, unit % K
        x, old, new = step_pair(policy, data, decision, i)
        log_ratio = ((x - old.mean) / old.std * (new.mean - old.mean)).mean((1, 2))[:, None]
        divergence = gaussian_kl(old_mean=old.mean, old_std=old.std, new_mean=new.mean, new_std=new.std)
        weight, sizes = None, _step_sizes(policy)
        if self.step_weight and sizes is not None:
            # sizes [S]: the fine-tuned steps are the last K'
            weight = 1.0 / sizes[-K:].to(log_ratio)[i][:, None]
        return RatioBatch(
            log_ratio,
            reduce_step(policy, divergence)[:, None],
            loss_weight=weight,
            step=i,
            rank=step_rank(data, decision, i),
            # <grad log r~, grad KL> is z.d times something positive: without the bias the border is log r~ = 0.
            pivot=torch.zeros_like(log_ratio),
        )


def _step_sizes(policy: ChainPolicy) -> Tensor | None:
    """Lengths h of the sampler's steps [S]; None where the process has no time (diffusion) or there is no process."""
    return getattr(getattr(policy, "process", None), "step_sizes", None)
