"""What an update leaves behind for the log: sums on the device, one transfer to the host at the end."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from robopo.algos.choices import RatioBatch, Samples, Surrogate
from robopo.algos.policy_gradient_config import PolicyGradientMetrics
from robopo.losses.trust_region import kl_k3

APPROX_KL, CHAIN_KL = 1, 6
"""Columns of a minibatch's row."""

ROW = 7
"""Numbers of a row before those of the regularisers."""


class UpdateLog:
    """Rows of the actor's and the critic's minibatches, and sums over units. Nothing here carries a graph."""

    def __init__(
        self, data: Samples, *, num_steps: int, factors: tuple[float, float, float | None], terms: Sequence[str]
    ) -> None:
        """num_steps: active denoising steps of a decision; factors: of log-ratios, to the joint one and per dimension,
        and of the ratio's divergence to the joint KL.

        terms: names of the regularisers, in the order of a row.
        """
        like = data.value
        self._data, self._num_steps, self._factors, self._terms = data, num_steps, factors, tuple(terms)
        self._per_step = like.new_zeros(3, data.log_probs.shape[1])  # sums of |ratio - 1| and of KLs, and counts
        self._by_sign = like.new_zeros(4)  # blocked and all values with advantage > 0, the same with advantage < 0
        self._last_ratio = like.new_ones(1)
        self._has_kl = self._has_step = False
        self.actor: list[Tensor] = []
        self.critic: list[Tensor] = []

    @torch.no_grad()
    def row(self, out: RatioBatch, adv: Tensor, region: Surrogate, loss: Tensor) -> Tensor:
        """The row [7] of a minibatch with the advantages [B, V]; adds to the sums."""
        log_ratio, loss = out.log_ratio.detach(), loss.detach()
        ratio, joint, per_dim, chain_kl = log_ratio.exp(), *[torch.zeros_like(loss)] * 3
        deviation = (ratio - 1.0).abs().mean(1)
        kl = torch.zeros_like(deviation) if out.divergence is None else out.divergence.detach().mean(1)
        self._has_kl, self._has_step = out.divergence is not None, out.step is not None
        self._last_ratio = ratio
        if self._has_kl:
            chain_kl = kl.mean() * (self._num_steps if self._has_step else 1)
        sums = torch.stack([deviation, kl, torch.ones_like(kl)])
        if out.step is None:
            self._per_step[:, :1] += sums.sum(1, keepdim=True)
        else:
            self._per_step.index_add_(1, out.step, sums)
            joint, per_dim = (kl_k3(factor * log_ratio) for factor in self._factors[:2])
        positive, negative = adv > 0.0, adv < 0.0
        signs = [region.blocked & positive, positive, region.blocked & negative, negative]
        self._by_sign += torch.stack([sign.sum() for sign in signs])
        outside = region.blocked if region.outside is None else region.outside
        row = [loss, kl_k3(log_ratio), joint, per_dim, outside.to(ratio.dtype).mean(), ratio.mean(), chain_kl]
        return torch.stack(row)

    def metrics(self, summary: Tensor) -> PolicyGradientMetrics:
        """Summary [5]: explained variance, mean value and return, std of the advantage, divisor of the reward."""
        like = self._data.value
        actor = torch.stack(self.actor).mean(0) if self.actor else like.new_zeros(ROW + len(self._terms) + 1)
        moved = self.actor[-1][CHAIN_KL : CHAIN_KL + 1] if self.actor else like.new_zeros(1)
        critic = torch.stack(self.critic).mean(0) if self.critic else like.new_zeros(2)
        per_step = self._per_step / self._per_step[2].clamp_min(1.0)
        signs = self._by_sign[::2] / self._by_sign[1::2].clamp_min(1.0)
        levels = torch.tensor([0.01, 0.5, 0.99], dtype=like.dtype).to(like.device)
        quantiles = torch.quantile(self._last_ratio.flatten().to(like.dtype), levels)
        parts = [actor, critic, summary, signs, quantiles, moved, _mean_std(self._data), per_step[0], per_step[1]]
        numbers = iter(torch.cat(parts).tolist())
        a, c, s, blocked, q, chain_kl, std, deviation, kl = ([next(numbers) for _ in part] for part in parts)
        return PolicyGradientMetrics(
            actor_loss=a[0],
            approx_kl=a[APPROX_KL],
            approx_kl_joint=a[2] if self._has_step else None,
            approx_kl_per_dim=a[3] if self._has_step else None,
            clip_frac=a[4],
            ratio_mean=a[5],
            actor_grad_norm=a[-1],
            value_loss=c[0],
            critic_grad_norm=c[1],
            explained_variance=s[0],
            value_mean=s[1],
            return_mean=s[2],
            advantage_std=s[3],
            reward_divisor=s[4],
            blocked_positive=blocked[0],
            blocked_negative=blocked[1],
            ratio_q01=q[0],
            ratio_q50=q[1],
            ratio_q99=q[2],
            chain_kl=chain_kl[0] if self._has_kl else None,
            chain_kl_joint=chain_kl[0] * joint if self._has_kl and (joint := self._factors[2]) is not None else None,
            std_mean=None if self._data.stds is None else std[0],
            ratio_deviation=tuple(deviation if self._has_step or not self.actor else deviation[:1]),
            kl_per_step=tuple(kl) if self._has_kl and self._has_step else (),
            regularisers=dict(zip(self._terms, a[ROW:-1], strict=True)),
        )


def _mean_std(data: Samples) -> Tensor:
    """Mean std of the active steps [1]; 0 without stds."""
    if data.stds is None or data.stds.numel() == 0:
        return data.value.new_zeros(1)
    stds = data.stds.mean((2, 3))  # [N, K']
    share = torch.ones_like(stds) if data.active is None else data.active.to(stds.dtype)
    return ((stds * share).sum() / share.sum().clamp_min(1.0))[None]
