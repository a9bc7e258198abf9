"""Old and new Gaussian of denoising steps, side by side, for the ratios that need more than log-probabilities."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from robopo.algos.choices import ChainPolicy, Samples
from robopo.errors import ConfigError, ShapeError
from robopo.policies.config import Reduce
from robopo.types import Moments


class StepPair(NamedTuple):
    """Executed rows of B steps, each [B, Ta, A]: the drawn output, and the Gaussians of then and now (with a graph)."""

    x: Tensor
    old: Moments
    new: Moments


def check_gaussian(ratio: str, policy: ChainPolicy) -> None:
    """Raise ConfigError, naming both options, unless every fine-tuned step is an unclamped Gaussian."""
    if not policy.has_moments:
        raise ConfigError(
            f"ratio={ratio} compares the Gaussians of denoising steps, and {type(policy).__name__} has none; "
            "use ratio=PerStep, which needs log-probabilities alone, or a diffusion, flow or Gaussian policy"
        )
    if getattr(policy.config, "compat_published", False):
        raise ConfigError(
            f"ratio={ratio} with compat_published=true: clamped likelihoods are no Gaussians; "
            "use ratio=PerStep, or set compat_published=false"
        )


def step_pair(policy: ChainPolicy, data: Samples, decision: Tensor, i: Tensor) -> StepPair:
    """The steps i [B] of the decisions [B]. Raises ShapeError when the rollout kept no moments.

    Inactive steps come back with the output equal to the old mean and a std of 1: finite in value and gradient, and for
    the caller to leave out.
    """
    if data.means is None or data.stds is None:
        raise ShapeError("the batch has no means and stds: collect it with a policy that keeps them in its chains")
    rows = policy.spec.action_steps
    new = policy.step_moments(data.rows(decision), data.latents[decision, i], i)
    old_mean, x = data.means[decision, i], data.latents[decision, i + 1]
    old_std, new_std = data.stds[decision, i].expand_as(x), new.std.expand_as(x)
    if data.active is not None:
        active = data.active[decision, i][:, None, None]
        x = torch.where(active, x, old_mean)
        old_std, new_std = torch.where(active, old_std, 1.0), torch.where(active, new_std, 1.0)
    return StepPair(
        x[:, :rows], Moments(old_mean[:, :rows], old_std[:, :rows]), Moments(new.mean[:, :rows], new_std[:, :rows])
    )


def reduce_step(policy: ChainPolicy, elements: Tensor) -> Tensor:
    """[B, Ta, A] -> [B], as the policy reduces its log-probabilities."""
    return elements.mean((1, 2)) if policy.config.reduce is Reduce.MEAN else elements.sum((1, 2))


def used_decisions(data: Samples) -> Tensor:
    """Numbers [M] of the decisions to learn from that have at least one active step."""
    keep = torch.ones_like(data.value, dtype=torch.bool) if data.use is None else data.use
    if data.active is not None:
        keep = keep & data.active.any(1)
    return keep.nonzero()[:, 0]


def used_steps(data: Samples) -> Tensor:
    """Numbers decision * K' + i [M] of the active steps of the decisions to learn from."""
    keep = torch.ones_like(data.log_probs, dtype=torch.bool) if data.active is None else data.active
    if data.use is not None:
        keep = keep & data.use[:, None]
    return keep.flatten().nonzero()[:, 0]
