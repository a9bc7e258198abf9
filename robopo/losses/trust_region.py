"""The clipped policy-gradient objective of DPPO and the schedules over its fine-tuned denoising steps.

DPPO (Ren et al. 2024, arXiv 2409.00588) runs PPO (Schulman et al. 2017, arXiv 1707.06347) on (decision, i) pairs, where
i = 0..K'-1 counts the fine-tuned denoising steps and i = 0 is the noisiest. Everything here works on flat [N] tensors.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class PPOClip(NamedTuple):
    """loss [...] with a graph; blocked and outside [...] bool: gradient stopped, ratio outside its interval."""

    loss: Tensor
    blocked: Tensor
    outside: Tensor


def clip_schedule(*, ft_steps: int, base: float, coef: float, rate: float) -> Tensor:
    """Half-width of the ratio interval for each fine-tuned step, [K'] (DPPO, appendix).

    eps_i = base + (coef - base) (exp(rate u) - 1) / (exp(rate) - 1), u = i / (K' - 1): the noisiest step gets ``base``,
    the last one ``coef``. ``rate = 0`` is the linear limit. A single fine-tuned step gets ``coef`` (u would be 0/0).
    """
    if ft_steps <= 1:
        return torch.full((ft_steps,), coef)
    u = torch.arange(ft_steps, dtype=torch.float64) / (ft_steps - 1)
    ramp = u if rate == 0 else torch.expm1(rate * u) / math.expm1(rate)
    return (base + (coef - base) * ramp).float()


def denoising_discount(*, ft_steps: int, gamma: float) -> Tensor:
    """gamma^(K'-1-i) for i = 0..K'-1, [K'] (DPPO's denoising discount): early, noisy steps count less.

    ``gamma = 0`` trains the last step alone, since 0^0 = 1.
    """
    power = torch.arange(ft_steps - 1, -1, -1, dtype=torch.float64)
    return (gamma**power).float()


def normalize_advantage(adv: Tensor, *, eps: float = 1e-8) -> Tensor:
    """Zero mean and unit standard deviation over the minibatch [N]; a single sample becomes 0, never NaN."""
    return (adv - adv.mean()) / (adv.std(correction=0) + eps)


def clip_to_quantiles(adv: Tensor, *, low: float, high: float) -> Tensor:
    """Clamp [N] advantages to their own quantiles; (0, 1) returns the input itself."""
    if low <= 0.0 and high >= 1.0:
        return adv
    bounds = torch.quantile(adv, torch.tensor([low, high], dtype=adv.dtype, device=adv.device))
    return adv.clamp(bounds[0], bounds[1])


def kl_k3(log_ratio: Tensor) -> Tensor:
    """Mean of (r - 1) - log r, r = exp(log_ratio): an unbiased, non-negative estimate of KL(old || new).

    Log-ratios above 20 count as 20: a diagnostic must not overflow where the loss itself is finite.
    """
    log_ratio = log_ratio.clamp(max=20.0)
    return (log_ratio.exp() - 1.0 - log_ratio).mean()


def ppo_clip(*, log_ratio: Tensor, adv: Tensor, clip: Tensor, ratio_cap: float | None = None) -> PPOClip:
    """The clipped surrogate (PPO, eq. 7) of each value, to be minimised.

    log_ratio, adv [...]; clip: half-width of each value's interval, broadcast against them. adv is already normalised
    and discounted. loss = max(-A r, -A clip(r, 1 - eps, 1 + eps)). With ``ratio_cap`` (dual clip, Ye et al. 2020, arXiv
    1912.09729, eq. 5): not above -A ratio_cap where A < 0, so that a runaway ratio can't rule the gradient.
    """
    seen = log_ratio.detach().exp()
    stopped = -adv * seen.clamp(1.0 - clip, 1.0 + clip)
    blocked = torch.where(adv > 0.0, seen > 1.0 + clip, (seen < 1.0 - clip) & (adv < 0.0))
    outside = (seen - 1.0).abs() > clip
    if ratio_cap is not None:
        capped = (adv < 0.0) & (seen > ratio_cap)
        stopped, blocked = torch.where(capped, -adv * ratio_cap, stopped), blocked | capped
    # Before the exp: 0 times the infinite derivative of a stopped one would be NaN.
    loss = torch.where(blocked, stopped, -adv * torch.where(blocked | (adv == 0.0), 0.0, log_ratio).exp())
    return PPOClip(loss, blocked, outside)


def value_loss(*, value: Tensor, returns: Tensor, old_value: Tensor | None = None, clip: float | None = None) -> Tensor:
    """Half the mean squared error of the critic, a scalar; value and returns [N].

    With ``clip`` (PPO's value clipping): the worse of the plain error and the error of
    old_value + clamp(value - old_value, -clip, clip).
    """
    error = (value - returns).square()
    if clip is not None:
        if old_value is None:
            raise ValueError("value_loss got clip but no old_value: pass the values computed before the update")
        moved = old_value + (value - old_value).clamp(-clip, clip)
        error = torch.maximum(error, (moved - returns).square())
    return 0.5 * error.mean()
