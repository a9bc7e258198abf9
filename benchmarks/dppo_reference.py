"""DPPO's update as the published algorithm is usually written, to measure and to check ours against.

Written from the paper (Ren et al. 2024, arXiv 2409.00588) and from what is known of its published implementation: the
frozen and the fine-tuned network are both evaluated on every pair, the denoising discount is a Python loop over the
samples of a minibatch, the critic sees each pair's state, log-probs are recomputed after the rollout and every
minibatch reads its metrics back. It shares no code with ``robopo``.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


@dataclass
class Rollout:
    """T decisions in E environments: cond, next_cond [T, E, C] normalised, chain [T, E, K'+1, H, A], flags 0 or 1."""

    cond: Tensor
    next_cond: Tensor
    chain: Tensor
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


def flat_settings(config: Any, gae: Any, ratio: Any, clip: Any) -> SimpleNamespace:
    """One namespace with the published names, from the choices that make up DPPO."""
    named = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    named |= {"gamma": gae.gamma, "gae_lambda": gae.lam, "gamma_denoise": ratio.gamma_denoise}
    return SimpleNamespace(**named, clip_base=clip.base, clip_coef=clip.coef, clip_rate=clip.rate)


class PublishedDPPO:
    """DDPM with K levels (cosine schedule), the last K' of them fine-tuned."""

    def __init__(self, ft_net: nn.Module, frozen_net: nn.Module, critic: nn.Module, config: Any, **sizes: Any) -> None:
        """sizes: levels, ft_steps, action_steps, std_floor, denoised_clip. config: from ``flat_settings``."""
        self.ft_net, self.frozen_net, self.critic, self.config = ft_net, frozen_net, critic, config
        self.K, self.ft_steps, self.action_steps = sizes["levels"], sizes["ft_steps"], sizes["action_steps"]
        self.std_floor, self.denoised_clip = sizes["std_floor"], sizes["denoised_clip"]
        u = np.linspace(0, 1, self.K + 1)
        f = np.cos((u + 0.008) / 1.008 * np.pi / 2) ** 2
        betas = np.minimum(1 - f[1:] / f[:-1], 0.999)
        abar = np.cumprod(1 - betas)
        previous = np.concatenate([[1.0], abar[:-1]])
        table = {
            "recip": np.sqrt(1 / abar),
            "recip_m1": np.sqrt(1 / abar - 1),
            "coef_clean": betas * np.sqrt(previous) / (1 - abar),
            "coef_x": (1 - previous) * np.sqrt(1 - betas) / (1 - abar),
            "var": np.maximum(betas * (1 - previous) / (1 - abar), 1e-20),
        }
        self.table = {key: torch.tensor(value, dtype=torch.float32) for key, value in table.items()}
        self.actor_optimizer = torch.optim.AdamW(ft_net.parameters(), lr=config.actor_lr, weight_decay=0)
        self.critic_optimizer = torch.optim.AdamW(critic.parameters(), lr=config.critic_lr, weight_decay=0)

    def log_prob(self, cond: Tensor, x: Tensor, x_next: Tensor, t: Tensor) -> Tensor:
        """For cond [B, C], x and x_next [B, H, A], t [B] -> [B], the mean over the executed rows."""
        noise = self.frozen_net(x, t, cond)
        tuned = torch.where(t < self.ft_steps)[0]
        noise[tuned] = self.ft_net(x[tuned], t[tuned], cond[tuned])

        def at(name: str) -> Tensor:
            return self.table[name].to(x.device)[t][:, None, None]

        clean = x * at("recip") - noise * at("recip_m1")
        clean = clean.clamp(-self.denoised_clip, self.denoised_clip)
        mean = at("coef_clean") * clean + at("coef_x") * x
        std = torch.clip(at("var").sqrt(), min=self.std_floor).expand_as(x)
        log_prob = torch.distributions.Normal(mean, std).log_prob(x_next)
        return log_prob[:, : self.action_steps].mean((-1, -2))

    def loss(
        self, cond: Tensor, x: Tensor, x_next: Tensor, i: Tensor, returns: Tensor, advantage: Tensor, old: Tensor
    ) -> tuple[Tensor, Tensor, float, float]:
        """All [B, ...] -> actor loss, critic loss, approx_kl, clip fraction."""
        c = self.config
        new = self.log_prob(cond, x, x_next, self.ft_steps - 1 - i)
        advantage = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
        low, high = torch.quantile(advantage, c.adv_quantile_low), torch.quantile(advantage, c.adv_quantile_high)
        advantage = advantage.clamp(low, high)
        discount = torch.tensor([c.gamma_denoise ** (self.ft_steps - step - 1) for step in i]).to(advantage)
        advantage = advantage * discount
        log_ratio = new - old
        ratio = log_ratio.exp()
        u = i.float() / (self.ft_steps - 1)
        clip = c.clip_base + (c.clip_coef - c.clip_base) * (torch.exp(c.clip_rate * u) - 1) / (
            math.exp(c.clip_rate) - 1
        )
        policy_loss = torch.max(-advantage * ratio, -advantage * torch.clamp(ratio, 1 - clip, 1 + clip)).mean()
        value_loss = 0.5 * ((self.critic(cond).view(-1) - returns) ** 2).mean()
        approx_kl = ((ratio - 1) - log_ratio).mean().item()
        return policy_loss, value_loss, approx_kl, ((ratio - 1.0).abs() > clip).float().mean().item()

    @torch.no_grad()
    def targets(self, data: Rollout) -> tuple[Tensor, Tensor, Tensor]:
        """Old log-probs [N, K'], advantage and returns [N], with the truncation rule of robopo."""
        T, E = data.reward.shape
        value = self.critic(data.cond.flatten(0, 1)).view(T, E).cpu().numpy()
        next_value = self.critic(data.next_cond.flatten(0, 1)).view(T, E).cpu().numpy()
        cond, chain = data.cond.flatten(0, 1), data.chain.flatten(0, 1)
        old = torch.stack(
            [
                self.log_prob(
                    cond, chain[:, i], chain[:, i + 1], torch.full((len(cond),), self.ft_steps - 1 - i).to(cond.device)
                )
                for i in range(self.ft_steps)
            ],
            dim=1,
        )
        advantage, last = np.zeros_like(value), np.zeros(E, np.float32)
        for n in reversed(range(T)):
            delta = data.reward[n] + self.config.gamma * next_value[n] * (1 - data.terminated[n]) - value[n]
            ends = np.maximum(data.terminated[n], data.truncated[n])
            last = delta + self.config.gamma * self.config.gae_lambda * (1 - ends) * last
            advantage[n] = last
        returns = advantage + value
        return old, torch.tensor(advantage).flatten().to(cond), torch.tensor(returns).flatten().to(cond)

    def update(self, data: Rollout) -> list[float]:
        """All epochs of one iteration."""
        c = self.config
        old, advantage, returns = self.targets(data)
        cond, chain = data.cond.flatten(0, 1), data.chain.flatten(0, 1)
        total, kls = len(cond) * self.ft_steps, []
        for _ in range(c.epochs):
            order = torch.randperm(total, device=cond.device)
            for n in range(max(1, total // c.batch_size)):
                pick = order[n * c.batch_size : (n + 1) * c.batch_size]
                d, i = torch.unravel_index(pick, (len(cond), self.ft_steps))
                losses = self.loss(cond[d], chain[d, i], chain[d, i + 1], i, returns[d], advantage[d], old[d, i])
                self.actor_optimizer.zero_grad()
                self.critic_optimizer.zero_grad()
                (losses[0] + c.vf_coef * losses[1]).backward()
                self.actor_optimizer.step()
                self.critic_optimizer.step()
                kls.append(losses[2])
        return kls
