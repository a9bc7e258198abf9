"""Batches that travel between the collector, the algorithms and the losses.

Letters: B batch, E environments, T decisions, H predicted chunk, Ta executed rows, K denoising steps,
K' fine-tuned steps, A action dim, To observation history.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

Observation = Mapping[str, Tensor]
"""Named observation entries, the newest row last: numbers [B, To, D] in physical units on the learner's device, and
pictures [B, To, height, width, 3] uint8, which stay on the host until an encoder reads them."""


def pick_rows(obs: Observation, index: Tensor) -> dict[str, Tensor]:
    """The rows ``index`` [B] long of every entry [N, ...], each where it lies."""
    return {key: value.index_select(0, index.to(value.device)) for key, value in obs.items()}


class Moments(NamedTuple):
    """Mean [N, H, A] and standard deviation ([N, 1, 1] or [N, H, A]) of Gaussian steps."""

    mean: Tensor
    std: Tensor


@dataclass(frozen=True, slots=True)
class DenoisingChain:
    """The latents of one decision that fine-tuning sees, and the likelihood of every recorded step.

    latents [B, K'+1, H, A]: input of the first fine-tuned step, then each fine-tuned output (the last one is the
    action, normalised). log_probs [B, K']: reduced over the executed rows as the policy's config says.
    means [B, K', H, A], stds [B, K', 1 or H, 1 or A]: the Gaussians that were sampled from; None where steps have none
    (a mixture). active [B, K'] bool: False where a step was deterministic and has no likelihood; None: all are active.
    """

    latents: Tensor
    log_probs: Tensor
    means: Tensor | None = None
    stds: Tensor | None = None
    active: Tensor | None = None


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """One on-policy iteration: T decisions in E environments, on the learner's device.

    obs and next_obs: each entry [T, E, To, D]; next_obs is the TRUE following observation (before any autoreset).
    latents [T, E, K'+1, H, A]; log_probs [T, E, K'] under the policy that acted; means, stds, active: as in
    DenoisingChain, with [T, E] in front.
    reward [T, E]: sum over the executed rows of the chunk, unscaled. terminated, truncated, first [T, E] bool;
    first marks the first decision of an episode.
    extras: what only some collectors know, by name: ``group`` [E] long (equal numbers started from the same state),
    ``use`` [T, E] bool (False: not to be learned from), and the vine collector's entries.
    """

    obs: Mapping[str, Tensor]
    next_obs: Mapping[str, Tensor]
    latents: Tensor
    log_probs: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    first: Tensor
    means: Tensor | None = None
    stds: Tensor | None = None
    active: Tensor | None = None
    extras: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
