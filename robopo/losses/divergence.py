"""How far one Gaussian policy is from another: divergences, log-ratios, and what they say about a flow's velocity.

A denoising step is N(mean, std^2), elementwise. With d = mean_new - mean_old, equal std and x = mean_old + std z:
log r = z d / std - KL,  KL = d^2 / (2 std^2),  so E[log r] = -KL, Var[log r] = 2 KL, E[r] = 1.
Time convention: t = 1 is noise, t = 0 the action; a step goes from t to t_next = t - h. v is dx/dt.
"""

from __future__ import annotations

import math
from enum import StrEnum

import torch
from torch import Tensor


def gaussian_kl(*, old_mean: Tensor, old_std: Tensor, new_mean: Tensor, new_std: Tensor) -> Tensor:
    """KL(old || new) of every element; stds broadcast against the means [..., H, A].

    log(s_n / s_o) + (s_o^2 + d^2) / (2 s_n^2) - 1/2, written with u = log(s_o / s_n): the part of the stds is then
    exactly 0 where they are equal, in any precision.
    """
    u = old_std.log() - new_std.log()
    return ((new_mean - old_mean) / new_std).square() * 0.5 + (torch.expm1(2.0 * u) * 0.5 - u)


def gaussian_log_ratio(x: Tensor, *, old_mean: Tensor, old_std: Tensor, new_mean: Tensor, new_std: Tensor) -> Tensor:
    """Return log N(x; new) - log N(x; old) of every element; stds broadcast against x and the means [..., H, A].

    A product of sum and difference instead of two squares: near the old policy, where the ratio matters, the
    difference of two log-probabilities would be rounding noise.
    """
    z_old, z_new = (x - old_mean) / old_std, (x - new_mean) / new_std
    return (z_old - z_new) * (z_old + z_new) * 0.5 + (old_std.log() - new_std.log())


def flow_sde_kl_weight(t: Tensor, t_next: Tensor, eta: float) -> Tensor:
    """KL = weight * |v_new - v_old|^2 of a Flow-SDE step (Flow-GRPO, arXiv 2505.05470), elementwise in t and t_next.

    g = eta sqrt(t / (1 - t)), std = g sqrt(h): weight = h (1 + eta^2 / 2)^2 (1 - t) / (2 eta^2 t). At t = 1 the kernel
    replaces 1 - t in g by h, hence std = eta and weight = h^2 / (2 eta^2).
    """
    h = t - t_next
    inside = h * (1.0 + 0.5 * eta**2) ** 2 * (1.0 - t) / (2.0 * eta**2 * t)
    return torch.where(t >= 1.0, h.square() / (2.0 * eta**2), inside)


def cps_kl_weight(t: Tensor, t_next: Tensor, eta: float) -> Tensor:
    """KL = weight * |v_new - v_old|^2 of a coefficient-preserving step (Flow-CPS, arXiv 2509.05952); t_next > 0.

    The mean is (1 - t_next) a + t_next cos(th) e, std = t_next sin(th), th = eta pi / 2; a and e are linear in v.
    """
    angle = 0.5 * math.pi * eta
    slope = t * (1.0 - t_next) - (1.0 - t) * t_next * math.cos(angle)
    return slope.square() / (2.0 * (t_next * math.sin(angle)).square())


def learned_noise_kl_weight(h: Tensor, std: Tensor) -> Tensor:
    """KL = weight * (v_new - v_old)^2 of a ReinFlow step (arXiv 2505.22094): an Euler step of size h, plus std z."""
    return h.square() / (2.0 * std.square())


def proxy_kl_weight(t: Tensor, eta: float, *, low: float = 0.1, high: float = 0.9) -> Tensor:
    """Flow-SDE's KL weight per unit of time, for policies that sample without noise.

    w(t) = (1 + eta^2 / 2)^2 (1 - t) / (2 eta^2 t), t clipped to [low, high]: at t = 0 it would be infinite. With t
    uniform in [0, 1] the mean of w(t) |v_new - v_old|^2 estimates the KL of a whole chain of small Flow-SDE steps.
    """
    t = t.clamp(low, high)
    return (1.0 + 0.5 * eta**2) ** 2 * (1.0 - t) / (2.0 * eta**2 * t)


class MaskDirection(StrEnum):
    """Which samples a divergence mask or gate holds back, once the divergence is over its threshold."""

    EXACT = "exact"
    """Those whose policy-gradient step makes the divergence grow: A (log r - KL) > 0."""
    PAPER = "paper"
    """The published test: A > 0 and r > 1, or A < 0 and r < 1. Differs where 0 < log r < KL."""
    EITHER = "either"
    """Those that one of the two holds back. Where 0 < log r < KL the exact test passes A > 0 at any weight r, which
    runs away over many epochs; this one doesn't."""


def moves_away(
    *, adv: Tensor, log_ratio: Tensor, divergence: Tensor, direction: MaskDirection = MaskDirection.EXACT
) -> Tensor:
    """Whether maximising A r on a sample moves the policy further from the old one -> bool, like adv; detached.

    For a Gaussian of fixed std: <grad log r, grad KL> = (log r - KL) / std^2, so the sign of A (log r - KL) decides.
    Undecidable (infinite log-ratio and divergence) counts as moving away.
    """
    log_ratio, divergence = log_ratio.detach(), divergence.detach()
    by_ratio = (adv * log_ratio.sign()) > 0
    if direction is MaskDirection.PAPER:
        return by_ratio
    away = ~(adv * (log_ratio - divergence) <= 0)
    return away | by_ratio if direction is MaskDirection.EITHER else away
