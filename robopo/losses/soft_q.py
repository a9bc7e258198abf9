"""Losses of maximum-entropy actor-critics, and the conservative penalty of Cal-QL.

SAC: Haarnoja et al. 2018, arXiv 1812.05905. CQL: Kumar et al. 2020, arXiv 2006.04779. Cal-QL: Nakamoto et al. 2023,
arXiv 2303.05479. One decision is one chunk of D = Ta * A numbers; Q of several heads is [heads, B].
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def soft_actor_loss(*, q: Tensor, log_prob: Tensor, alpha: Tensor) -> Tensor:
    """Mean of alpha log pi(a|s) - Q(s, a) (SAC, eq. 7) -> scalar.

    q, log_prob [B]: of the same reparametrised actions.
    """
    return (alpha.detach() * log_prob - q).mean()


def temperature_loss(*, log_alpha: Tensor, log_prob: Tensor, target_entropy: float) -> Tensor:
    """-alpha (log pi + target) (SAC, eq. 18) -> scalar; only ``log_alpha`` [] gets a gradient.

    Entropy below the target raises alpha.
    """
    return -log_alpha.exp() * (log_prob.detach() + target_entropy).mean()


def uniform_log_density(dims: int) -> float:
    """Log-density of one uniform draw from [-1, 1]^dims: dims log(1/2).

    The published code of DPPO's baseline takes (1/2)^dims, the density itself, which removes nearly all of the
    correction: 28 numbers give 4e-9 instead of -19.4.
    """
    return dims * math.log(0.5)


def conservative_penalty(
    *,
    q_data: Tensor,
    q_random: Tensor,
    q_policy: Tensor,
    log_prob: Tensor,
    floor: Tensor,
    dims: int,
) -> Tensor:
    """Importance-weighted log-sum-exp of Q over other actions, minus Q of the data; mean over B, sum over heads.

    CQL(H) (Kumar et al. 2020, eq. 4 and appendix F) with Cal-QL's calibration (Nakamoto et al. 2023, eq. 5.1): what the
    policy would do is never pushed below ``floor`` [B], the return that was really had from there (-inf: no floor).
    q_data [heads, B]; q_random [heads, M, B] of uniform actions; q_policy [heads, P, B] of the policy's actions with
    log_prob [P, B], detached.
    """
    calibrated = torch.maximum(q_policy, floor)
    others = torch.cat([q_random - uniform_log_density(dims), calibrated - log_prob.detach()], dim=1)
    return (torch.logsumexp(others, dim=1) - q_data).mean(1).sum()
