"""Batches that are half demonstrations and half own experience."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from robopo.data.replay import ReplayBuffer, Transitions
from robopo.errors import DataError


def symmetric_batch(
    online: ReplayBuffer,
    offline: ReplayBuffer,
    n: int,
    generator: torch.Generator,
    *,
    extras: Mapping[str, float] | None = None,
) -> Transitions:
    """Draw n decisions, half from each buffer (Ball et al. 2023, arXiv 2302.02948, section 4.1).

    All of them from the other where one is empty; an odd one comes from ``online``. extras: columns [n] that are
    wanted, and the number that stands where a buffer lacks one. Raises DataError when both are empty.
    """
    if len(online) == 0 and len(offline) == 0:
        raise DataError("there is neither own experience nor a demonstration to learn from; load demonstrations first")
    if len(online) == 0:
        parts = [(offline, n)]
    elif len(offline) == 0 or n == 1:
        parts = [(online, n)]
    else:
        parts = [(online, n - n // 2), (offline, n // 2)]
    return _concatenated([buffer.sample(count, generator) for buffer, count in parts], extras or {})


def _concatenated(parts: Sequence[Transitions], extras: Mapping[str, float]) -> Transitions:
    """One batch after the other. Row numbers belong to different buffers, so there are none."""
    return Transitions(
        obs=_joined([part.obs for part in parts]),
        action=torch.cat([part.action for part in parts]),
        reward=torch.cat([part.reward for part in parts]),
        terminated=torch.cat([part.terminated for part in parts]),
        next_obs=_joined([part.next_obs for part in parts]),
        extras={
            name: torch.cat([part.extras.get(name, torch.full_like(part.reward, value)) for part in parts])
            for name, value in extras.items()
        },
        index=torch.empty(0, dtype=torch.long),
    )


def _joined(entries: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {key: torch.cat([entry[key] for entry in entries]) for key in entries[0]}
