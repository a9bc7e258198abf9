"""Rollouts whose pictures are shifted at random before they are learned from.

As in the published code of DPPO (Ren et al. 2024, arXiv 2409.00588): the policy acts on clean pictures; then the stored
ones are shifted, once per iteration, and the chains are scored again on them. Values, old log-probabilities and updates
all see the same shifted pictures, so the ratio begins at 1. But the old log-probabilities are no longer those of the
policy that acted: for exact ratios switch it off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from robopo.nn.vision import VisionEncoder, vision_of
from robopo.policies.obs_encoding import shift_pictures
from robopo.types import DenoisingChain, Observation, RolloutBatch

BLOCK = 1024
"""Decisions that are shifted and scored at once."""


class Source(Protocol):
    """A collector."""

    stats: Any

    def collect(self, num_decisions: int, generator: torch.Generator) -> RolloutBatch: ...

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state_dict: Any, /) -> Any: ...


class Rescoring(Protocol):
    """A policy that scores its chains again."""

    @property
    def net(self) -> nn.Module: ...

    @property
    def ft_steps(self) -> int: ...

    def rescore(self, obs: Observation, latents: Tensor) -> DenoisingChain:
        """The chain of latents [B, K'+1, H, A] under the present weights."""
        ...


class AugmentedRollouts:
    """A collector's batches with shifted pictures; for a policy without pictures, the batches as they are."""

    def __init__(self, source: Source, policy: Rescoring) -> None:
        self.source, self.policy = source, policy

    @property
    def stats(self) -> Any:
        """Of the source's last ``collect``."""
        return self.source.stats

    def collect(self, num_decisions: int, generator: torch.Generator) -> RolloutBatch:
        """As the source's; generator: draws the shifts too."""
        return augmented(self.source.collect(num_decisions, generator), self.policy, generator)

    def state_dict(self) -> Any:
        """The source's."""
        return self.source.state_dict()

    def load_state_dict(self, state_dict: Any, /) -> None:
        """Continue from ``state_dict()``."""
        self.source.load_state_dict(state_dict)


@torch.no_grad()
def augmented(batch: RolloutBatch, policy: Rescoring, generator: torch.Generator) -> RolloutBatch:
    """``batch`` with shifted pictures in obs and next_obs, and its chains scored on those of obs."""
    vision = vision_of(policy.net)
    if vision is None or vision.config.shift == 0:
        return batch
    obs, next_obs = (_shifted(entries, vision, generator) for entries in (batch.obs, batch.next_obs))
    if policy.ft_steps == 0:
        return replace(batch, obs=obs, next_obs=next_obs)
    chain = _scored(obs, batch.latents.flatten(0, 1), policy)

    def rows(new: Tensor | None, old: Tensor | None) -> Tensor | None:
        """As the batch had it: [T, E, ...], and the old numbers where a step was not active."""
        if new is None or old is None:
            return old
        new = new.view(*batch.reward.shape, *new.shape[1:])
        if new.shape != old.shape:  # a std that is the same for the whole chunk is stored once
            new = new[..., : old.shape[-2], : old.shape[-1]]
        if batch.active is None:
            return new
        return torch.where(batch.active.view(*batch.active.shape, *[1] * (old.ndim - batch.active.ndim)), new, old)

    log_probs = rows(chain.log_probs, batch.log_probs)
    return replace(
        batch,
        obs=obs,
        next_obs=next_obs,
        log_probs=batch.log_probs if log_probs is None else log_probs,
        means=rows(chain.means, batch.means),
        stds=rows(chain.stds, batch.stds),
    )


def _shifted(entries: Observation, vision: VisionEncoder, generator: torch.Generator) -> dict[str, Tensor]:
    """Entries [T, E, ...], the pictures moved; they come back to where they lay, block by block."""
    out = dict(entries)
    for key in vision.images:
        flat = entries[key].flatten(0, 1)
        moved = torch.empty_like(flat)
        for part, into in zip(flat.split(BLOCK), moved.split(BLOCK), strict=True):
            into.copy_(shift_pictures(vision, {key: part}, generator)[key])
        out[key] = moved.view_as(entries[key])
    return out


def _scored(obs: Mapping[str, Tensor], latents: Tensor, policy: Rescoring) -> DenoisingChain:
    """Chains of all N decisions, block by block; latents [N, K'+1, H, A], obs entries [T, E, ...]."""
    flat = {key: value.flatten(0, 1) for key, value in obs.items()}
    parts = [
        policy.rescore(
            {key: value[start : start + BLOCK] for key, value in flat.items()}, latents[start : start + BLOCK]
        )
        for start in range(0, len(latents), BLOCK)
    ]

    def joined(pick: Callable[[DenoisingChain], Tensor | None]) -> Tensor | None:
        found = [entry for part in parts if (entry := pick(part)) is not None]
        return torch.cat(found) if found else None

    log_probs = torch.cat([part.log_probs for part in parts])
    return DenoisingChain(latents, log_probs, joined(lambda part: part.means), joined(lambda part: part.stds))
