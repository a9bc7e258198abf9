"""DPPO's minibatch loss written as the published algorithm reads: sample by sample, nothing shared with ours."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn


def reference_losses(
    policy: Any,
    critic: nn.Module,
    obs: dict[str, Tensor],
    latents: Tensor,
    log_probs: Tensor,
    advantage: Tensor,
    returns: Tensor,
    pairs: list[int],
    config: Any,
) -> tuple[Tensor, Tensor]:
    """obs [N, To, D], latents [N, K'+1, H, A], log_probs [N, K'], advantage, returns [N] -> actor and critic loss."""
    K = log_probs.shape[1]
    picked = [divmod(pair, K) for pair in pairs]
    chosen = torch.stack([advantage[n] for n, _ in picked])
    chosen = (chosen - chosen.mean()) / (chosen.std(correction=0) + 1e-8)
    low, high = torch.quantile(chosen, config.adv_quantile_low), torch.quantile(chosen, config.adv_quantile_high)
    chosen = torch.clamp(chosen, min=low, max=high)
    actor_terms, critic_terms = [], []
    for (n, i), adv in zip(picked, chosen, strict=True):
        row = {key: value[n : n + 1] for key, value in obs.items()}
        new = policy.step_log_prob(row, latents[n : n + 1, i], latents[n : n + 1, i + 1], torch.tensor([i]))[0]
        ratio = torch.exp(new - log_probs[n, i])
        weighted = adv * config.gamma_denoise ** (K - 1 - i)
        if K == 1:
            eps = config.clip_coef
        else:
            ramp = (math.exp(config.clip_rate * i / (K - 1)) - 1) / (math.exp(config.clip_rate) - 1)
            eps = config.clip_base + (config.clip_coef - config.clip_base) * ramp
        actor_terms.append(torch.max(-weighted * ratio, -weighted * torch.clamp(ratio, 1 - eps, 1 + eps)))
        critic_terms.append(0.5 * (critic(row)[0] - returns[n]) ** 2)
    return torch.stack(actor_terms).mean(), torch.stack(critic_terms).mean()
