"""Temporal-difference targets, weights and losses of the methods that learn Q(s, a).

One decision is one action chunk: rewards are summed over it and gamma counts per decision. Q values of several heads
are [heads, B], of M candidate actions [M, B].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class RewardToGo(NamedTuple):
    """returns [T, E]; finished [T, E] bool: the episode of the decision ended within the batch."""

    returns: Tensor
    finished: Tensor


def td_target(*, reward: Tensor, terminated: Tensor, next_value: Tensor, gamma: float) -> Tensor:
    """Return r + gamma (1 - terminated) V(s'), all [B], detached.

    ``terminated`` alone stops the sum: after a time limit the value of the true last observation counts.
    """
    # where, not a product: a terminated step may have a meaningless, even infinite, next value
    next_value = torch.where(terminated, torch.zeros_like(next_value), next_value)
    return (reward + gamma * next_value).detach()


def td_loss(*, q: Tensor, target: Tensor) -> Tensor:
    """Mean squared error of q [heads, B] to target [B], summed over the heads: each learns at its own pace."""
    return (q - target).square().mean(1).sum()


def clipped_double_q(q: Tensor) -> Tensor:
    """Smallest head of q [heads, ...] (Fujimoto et al. 2018, arXiv 1802.09477, eq. 10)."""
    return q.amin(0)


def min_of_random_heads(q: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    """Smallest of ``count`` heads of q [heads, ...], drawn anew in each call (Chen et al. 2021, arXiv 2101.05982)."""
    heads = q.shape[0]
    if not 1 <= count <= heads:
        raise ValueError(f"count={count}: expected 1 to the {heads} heads there are")
    device = q.device if generator is None else generator.device
    chosen = torch.randperm(heads, generator=generator, device=device)[:count]
    return q.index_select(0, chosen.to(q.device)).amin(0)


def expectile_loss(error: Tensor, expectile: float) -> Tensor:
    """Mean of |expectile - 1(error < 0)| error^2, error = Q - V [B].

    Kostrikov et al. 2022 (IQL), arXiv 2110.06169, eq. 5.
    """
    weight = torch.where(error < 0.0, 1.0 - expectile, expectile)
    return (weight * error.square()).mean()


def standardize(x: Tensor, *, eps: float) -> Tensor:
    """(x - mean) / (std + eps) over all elements; a single one becomes 0."""
    return (x - x.mean()) / (x.std(correction=0) + eps)


def exponential_weights(x: Tensor, *, beta: float, cap: float) -> Tensor:
    """min(exp(beta x), cap), detached (Peng et al. 2019, arXiv 1910.00177); finite whatever x is."""
    return (beta * x.detach()).clamp(max=math.log(cap)).exp()


def two_level_weights(*, q: Tensor, value: Tensor, high: float) -> Tensor:
    """IDQL's published exploration: ``high`` where Q(s, a) > V(s), 1 - high elsewhere, normalised over M.

    q [M, B], value [B] -> [M, B]. The weights of the expectile's optimum, Hansen-Estruch et al. 2023, arXiv 2304.10573.
    """
    weight = torch.where(q > value, high, 1.0 - high)
    return weight / weight.sum(0)


def boltzmann_weights(*, q: Tensor, temperature: float) -> Tensor:
    """Softmax of Q / temperature over M; q [M, B] -> [M, B]."""
    return (q / temperature).softmax(0)


def choose(candidates: Tensor, index: Tensor) -> Tensor:
    """Candidates [M, B, ...] and index [B] -> [B, ...]."""
    return candidates[index, torch.arange(len(index), device=index.device)]


def draw(weights: Tensor, generator: torch.Generator | None) -> Tensor:
    """Index [B] drawn by the weights [M, B]."""
    return torch.multinomial(weights.T, 1, generator=generator).squeeze(1)


def action_gradient(q: Callable[[Tensor], Tensor], action: Tensor) -> Tensor:
    """Gradient of each row's value with respect to its own action: q maps [B, H, A] -> [B]; returns [B, H, A]."""
    with torch.enable_grad():
        variable = action.detach().requires_grad_(True)
        (gradient,) = torch.autograd.grad(q(variable).sum(), variable)
    return gradient


def normalized_q_loss(q: Tensor, head: int | Tensor) -> Tensor:
    """-mean Q_head / mean |Q_other| of q [2, B] (Wang et al. 2023, arXiv 2208.06193, eq. 3 and its implementation).

    The scale is detached: it only makes one weight fit tasks with different rewards. head: 0 or 1, also as a tensor
    [1] on q's device, which spares a synchronisation.
    """
    scale = q[1 - head].detach().abs().mean().clamp(min=1e-6)
    return -q[head].mean() / scale


def reward_to_go(*, reward: Tensor, terminated: Tensor, truncated: Tensor, gamma: float) -> RewardToGo:
    """Discounted sum of the rewards to the end of the episode; all [T, E].

    Decisions whose episode hasn't ended by the last row are marked unfinished: their sum is only a part.
    """
    done = terminated | truncated
    running, ended = torch.zeros_like(reward[0]), torch.zeros_like(done[0])
    returns: list[Tensor] = []
    finished: list[Tensor] = []
    for step_reward, step_done in zip(reward.flip(0), done.flip(0), strict=True):
        running = step_reward + gamma * torch.where(step_done, torch.zeros_like(running), running)
        ended = ended | step_done
        returns.append(running)
        finished.append(ended)
    return RewardToGo(torch.stack(returns).flip(0), torch.stack(finished).flip(0))
