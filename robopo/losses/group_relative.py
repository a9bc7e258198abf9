"""Advantages by comparison within groups of episodes that started from the same state.

GRPO (Shao et al. 2024, arXiv 2402.03300, section 4.1.2) with the batch-wide spread of Flow-GRPO (Liu et al. 2025,
arXiv 2505.05470) and the filter of DAPO (Yu et al. 2025, arXiv 2503.14476): no critic, one number per episode.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class GroupAdvantage(NamedTuple):
    """advantage [E]; use [E] bool: False where every member of the group got the same return."""

    advantage: Tensor
    use: Tensor


def zero_spread(*, episode_return: Tensor, group: Tensor) -> Tensor:
    """[E] bool: whether all members of an episode's group have the same return. Both inputs are [E].

    Such a group teaches nothing: every advantage in it is 0 (DAPO, section 3.2).
    """
    same = group[:, None] == group[None, :]  # [E, E]
    highest = torch.where(same, episode_return, -torch.inf).amax(dim=1)
    lowest = torch.where(same, episode_return, torch.inf).amin(dim=1)
    return highest == lowest


def group_advantage(
    *, episode_return: Tensor, group: Tensor, batch_std: bool = False, clamp: float | None = None, eps: float = 1e-4
) -> GroupAdvantage:
    """A = (R - mean of the group) / (std + eps), once per episode [GRPO, section 4.1.2].

    episode_return [E]; group [E] integers, equal ones started from the same state. std is that of the group, or with
    ``batch_std`` that of all E returns around their common mean (Flow-GRPO); both divide by the count, not count - 1.
    ``clamp`` limits A to +-clamp. Without a clamp the advantages of a group sum to 0.
    """
    same = group[:, None] == group[None, :]  # [E, E]
    count = same.sum(dim=1)
    # Masked sums, not a matrix product: a GPU may round its factors to fewer bits.
    mean = torch.where(same, episode_return, 0.0).sum(dim=1) / count
    centred = episode_return - mean  # [E]
    if batch_std:
        std = episode_return.std(correction=0)
    else:
        std = (torch.where(same, centred.square(), 0.0).sum(dim=1) / count).sqrt()
    use = ~zero_spread(episode_return=episode_return, group=group)
    advantage = torch.where(use, centred / (std + eps), 0.0)  # rounding of the mean must not make a signal
    if clamp is not None:
        advantage = advantage.clamp(-clamp, clamp)
    return GroupAdvantage(advantage=advantage, use=use)
