"""Polychromic advantages: sets of continuations are judged by what they earn and by how much they differ.

Polychromic PPO (arXiv 2509.25424): from one state, N continuations are drawn and M sets of n formed; the objective of
a set is f = mean return * diversity, its advantage f minus the mean over the sets, and every member gets it. A policy
that solves the task in one way alone is pushed to keep the other ways alive.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class SetAdvantage(NamedTuple):
    """advantage [N, ...]: mean over the sets a continuation belongs to; member [N, ...] bool: it belongs to one."""

    advantage: Tensor
    member: Tensor


def cluster_labels(points: Tensor, *, radius: float) -> Tensor:
    """Single-linkage clusters of N paths, separately for each of the B columns.

    points [N, B, P, D]: P waypoints of D numbers. Two paths are linked when no waypoint is further than ``radius``
    from the other's. Returns labels [N, B]: the smallest number of a path in the cluster. Which paths share a label
    doesn't depend on their order, and no grid line separates neighbours.
    """
    distance = (points[:, None] - points[None, :]).norm(dim=-1).amax(dim=-1)  # [N, N, B]
    linked = distance <= radius
    count = len(points)
    number = torch.arange(count, device=points.device)
    labels = number[:, None].expand(count, points.shape[1])  # [N, B]
    for _ in range(count - 1):  # the longest chain of N paths has N - 1 links
        labels = torch.where(linked, labels[None, :], count).amin(dim=1)
        labels = torch.minimum(labels, number[:, None])  # a path that is not finite links to nothing, not to itself
    return labels


def diversity(labels: Tensor) -> Tensor:
    """Share of distinct labels among n, in [1/n, 1]: labels [n, ...] -> [...]. Independent of order and of names."""
    same = labels[:, None] == labels[None, :]  # [n, n, ...]
    earlier = torch.tril(torch.ones(len(labels), len(labels), dtype=torch.bool, device=labels.device), diagonal=-1)
    repeated = (same & earlier.view(*earlier.shape, *([1] * (labels.ndim - 1)))).any(dim=1)  # [n, ...]
    return (~repeated).float().mean(dim=0)


def polychromic_advantage(*, returns: Tensor, labels: Tensor, sets: Tensor) -> SetAdvantage:
    """A(g) = f(g) - mean over the sets of f, f(g) = mean return * diversity [Polychromic PPO].

    returns, labels [N, B] of the N continuations of B states; sets [M, n, B]: the members, numbers below N and
    different within a set. A continuation in several sets gets the mean of their advantages: the same gradient, up to
    its length, as if it stood in the batch once per set. Negative returns would turn diversity into a penalty: shift
    the rewards so that failing earns 0.
    """
    count, size, columns = sets.shape
    flat = sets.reshape(count * size, columns)  # [M * n, B]
    earned = returns.gather(0, flat).view(sets.shape).mean(dim=1)  # [M, B]
    differ = diversity(labels.gather(0, flat).view(sets.shape).movedim(1, 0)).to(returns.dtype)  # [M, B]
    objective = earned * differ
    advantage = objective - objective.mean(dim=0)  # [M, B]
    # Sets that are equal differ by the rounding of their mean at most: that is no signal.
    level = (objective == objective[:1]).all(dim=0)
    advantage = torch.where(level, 0.0, advantage)
    # [M, n, N, B]: whether a continuation is the given member of the given set
    chosen = sets[:, :, None] == torch.arange(len(returns), device=sets.device)[:, None]
    inside = chosen.any(dim=1)  # [M, N, B]
    times = inside.sum(dim=0)  # [N, B]
    total = torch.where(inside, advantage[:, None], 0.0).sum(dim=0)
    return SetAdvantage(advantage=total / times.clamp_min(1), member=times > 0)
