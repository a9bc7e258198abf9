"""Generalised advantage estimation over decisions, with terminations and truncations kept apart.

Schulman et al. 2016 (arXiv 1506.02438), eq. 16, on the outer MDP of DPPO (Ren et al. 2024, arXiv 2409.00588): one time
index is one decision (an action chunk), its reward is the sum over the executed rows, gamma counts per decision.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class GAE(NamedTuple):
    """advantage and returns [T, E]; returns = advantage + value, the critic's regression target."""

    advantage: Tensor
    returns: Tensor


def gae(
    *,
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    lam: float,
    legacy: bool = False,
) -> GAE:
    """Advantages of T decisions in E environments.

    All inputs are [T, E]. ``next_value[t]`` is V of the TRUE observation that followed decision t (before any
    autoreset), so a truncated episode bootstraps from its own last observation, a terminated one from 0, and the
    recursion stops at either flag.

    ``legacy`` reproduces the published implementation, which ignores truncation: the next value is ``value[t + 1]``,
    even when that belongs to a new episode, and its advantage leaks back across the boundary. It takes only the last
    row of ``next_value``.
    """
    running = (~terminated).to(value.dtype)  # [T, E]
    if legacy:
        bootstrap = torch.cat([value[1:], next_value[-1:]])
        trace = running
    else:
        bootstrap = next_value
        trace = running * (~truncated).to(value.dtype)
    delta = reward + gamma * bootstrap * running - value  # [T, E], the TD error
    decay = gamma * lam * trace  # [T, E]
    rows: list[Tensor] = []
    last = torch.zeros_like(value[0])
    for step_delta, step_decay in zip(delta.flip(0), decay.flip(0), strict=True):
        last = torch.addcmul(step_delta, step_decay, last)  # A_t = delta_t + gamma lambda A_{t+1}
        rows.append(last)
    advantage = torch.stack(rows).flip(0)
    return GAE(advantage=advantage, returns=advantage + value)
