"""Batches that travel between the collector, the algorithms and the losses.

Letters: B batch, E environments, T decisions, H predicted chunk, Ta executed rows, K denoising steps,
K' fine-tuned steps, A action dim, To observation history.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

Observation = Mapping[str, Tensor]
"""Named observation entries in physical units, each [B, To, D]; the newest row is last."""


@dataclass(frozen=True, slots=True)
class DenoisingChain:
    """The latents of one decision that fine-tuning sees, and the likelihood of every recorded step.

    latents [B, K'+1, H, A]: input of the first fine-tuned step, then each fine-tuned output (the last one is the
    action, normalised). log_probs [B, K']: reduced over the executed rows as the policy's config says.
    """

    latents: Tensor
    log_probs: Tensor


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """One on-policy iteration: T decisions in E environments, on the learner's device.

    obs and next_obs: each entry [T, E, To, D]; next_obs is the TRUE following observation (before any autoreset).
    latents [T, E, K'+1, H, A]; log_probs [T, E, K'] under the policy that acted.
    reward [T, E]: sum over the executed rows of the chunk, unscaled. terminated, truncated, first [T, E] bool;
    first marks the first decision of an episode.
    """

    obs: Mapping[str, Tensor]
    next_obs: Mapping[str, Tensor]
    latents: Tensor
    log_probs: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    first: Tensor
