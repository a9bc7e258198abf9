"""Old and new Gaussian of denoising steps, side by side, for the ratios that need more than log-probabilities."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from robopo.algos.choices import ChainPolicy, Samples, TrustRegion
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
    check_noisy(f"ratio={ratio}", policy)


def check_noisy(option: str, policy: ChainPolicy) -> None:
    """Raise ConfigError, naming both options, where no fine-tuned step draws: nothing would ever learn."""
    active: tuple[bool, ...] = getattr(policy, "ft_active", ())
    if active and not any(active):
        raise ConfigError(
            f"{option} looks at noisy denoising steps, and with kernel={kernel_name(policy)} none of the "
            f"{len(active)} has noise; explore with kernel=FlowSDE or LearnedNoise (algo=flow_dppo), or use "
            "ratio=CfmRatio (algo=fpo_finetune)"
        )


def check_kl(policy: ChainPolicy, trust_region: TrustRegion, max_chain_kl: float | None) -> None:
    """Raise ConfigError, naming both options, where a KL is asked of steps that have none."""
    if policy.has_moments or (max_chain_kl is None and not trust_region.needs_divergence):
        return
    needs = f"trust_region={type(trust_region).__name__}"
    raise ConfigError(
        f"{needs if trust_region.needs_divergence else f'max_chain_kl={max_chain_kl}'} needs the KL of Gaussian steps, "
        f"and {type(policy).__name__} has none; use trust_region=Clip, SPO or SoftGate and max_chain_kl=null"
    )


def has_velocity(policy: ChainPolicy) -> bool:
    """Whether the policy is a flow: any policy over chunks has the method, but only a flow's steps have lengths."""
    process = getattr(policy, "process", None)
    diffusion = process is not None and getattr(process, "step_sizes", None) is None
    return not diffusion and callable(getattr(policy, "velocity", None))


def kernel_name(policy: ChainPolicy) -> str:
    """Name of the kernel that the policy explores with; null: its process's own noise, or none."""
    exploration: Any = getattr(policy, "exploration", None)
    return "null" if exploration is None else type(exploration.kernel).__name__


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


def joint_factor(policy: ChainPolicy) -> float:
    """What takes a number reduced as the policy reduces to the joint one of all Ta * A executed numbers."""
    return float(policy.spec.action_steps * policy.spec.action_dim) if policy.config.reduce is Reduce.MEAN else 1.0


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


def step_rank(data: Samples, decision: Tensor, i: Tensor) -> Tensor | None:
    """Place [B] of the steps i [B] among the active ones of their chains, 0 the noisiest; None where all are active."""
    if data.active is None:
        return None
    return data.active.cumsum(1)[decision, i] - 1
