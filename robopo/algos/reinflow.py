"""ReinFlow's ratio: arXiv 2505.22094 (NeurIPS 2025).

One ratio per decision, of the whole denoising chain: log r = sum_k log p_new(x_{k+1} | x_k) - log p_old(x_{k+1} | x_k).
The first latent is drawn from the same N(0, I) by both policies and drops out. The noise itself is the policy's kernel
(``LearnedNoise``), with its published decay; acting drops it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from robopo.algos.choices import ChainPolicy, RatioBatch, Samples
from robopo.algos.gaussian_steps import check_gaussian, joint_factor, reduce_step, step_pair, used_decisions
from robopo.losses.divergence import gaussian_kl, gaussian_log_ratio
from robopo.policies.config import Reduce


@dataclass(frozen=True, slots=True)
class Chain:
    """Ratio of whole chains, unit = decision, over the executed rows."""

    normalised: bool = True
    """Divide log-ratio and divergence of the joint density by (K' + 1) Ta A, as published: K' steps and the first
    latent, which counts though it cancels. This is so whatever the policy's ``reduce``. False: the sum over steps of
    what the policy's ``reduce`` makes of each (``sum``: the joint density; ``mean``: that divided by Ta A)."""

    def check(self, policy: ChainPolicy) -> None:
        """Raise ConfigError for a policy whose steps are no Gaussians."""
        check_gaussian("Chain", policy)

    def units(self, data: Samples) -> Tensor:
        """Decisions in use [M] that have at least one active step."""
        return used_decisions(data)

    def decision(self, data: Samples, unit: Tensor) -> Tensor:  # noqa: ARG002
        """The unit itself [B]."""
        return unit

    def anchor(self, policy: ChainPolicy, data: Samples, generator: torch.Generator) -> dict[str, Tensor]:  # noqa: ARG002
        """Nothing: the rollout kept the moments."""
        return {}

    def joint_kl_factor(self, policy: ChainPolicy) -> float | None:
        """What ``evaluate`` divided by."""
        dims = policy.spec.action_steps * policy.spec.action_dim
        return float((policy.ft_steps + 1) * dims) if self.normalised else joint_factor(policy)

    def evaluate(self, policy: ChainPolicy, data: Samples, unit: Tensor) -> RatioBatch:
        """Log-ratio and divergence [B, 1]; the K' steps of all chains go through the network at once."""
        B, K = len(unit), data.latents.shape[1] - 1
        decision = unit.repeat_interleave(K)
        i = torch.arange(K, device=unit.device).repeat(B)
        pair = step_pair(policy, data, decision, i)
        gaussians = {
            "old_mean": pair.old.mean,
            "old_std": pair.old.std,
            "new_mean": pair.new.mean,
            "new_std": pair.new.std,
        }
        both = torch.stack(
            [
                reduce_step(policy, gaussian_log_ratio(pair.x, **gaussians)),
                reduce_step(policy, gaussian_kl(**gaussians)),
            ]
        ).view(2, B, K)
        if data.active is not None:
            both = torch.where(data.active[unit], both, 0.0)
        chain = both.sum(-1, keepdim=True)  # [2, B, 1]
        if self.normalised:
            dims = 1 if policy.config.reduce is Reduce.MEAN else policy.spec.action_steps * policy.spec.action_dim
            chain = chain / ((K + 1) * dims)
        return RatioBatch(chain[0], chain[1])
