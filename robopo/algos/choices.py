"""The axes of the policy-gradient family: an algorithm is one choice on each.

ratio x advantage x trust region (x kernel, which belongs to the policy). ``policy_gradient.PolicyGradient`` runs any
combination that fits together; configs/algo names the published ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from robopo.policies.base import PolicySpec
from robopo.policies.config import Reduce
from robopo.types import DenoisingChain, Moments, Observation, RolloutBatch, pick_rows


class LikelihoodConfig(Protocol):
    """How a policy scores its steps."""

    @property
    def reduce(self) -> Reduce:
        """Mean or sum over the executed numbers."""
        ...

    @property
    def compat_published(self) -> bool:
        """Whether log-probabilities are clamped as in DPPO's published code."""
        ...


class ChainPolicy(Protocol):
    """What the family needs of a policy: the network that learns, a frozen copy, and the likelihood of its steps."""

    @property
    def spec(self) -> PolicySpec: ...

    @property
    def config(self) -> LikelihoodConfig: ...

    @property
    def net(self) -> nn.Module: ...

    @property
    def frozen_net(self) -> nn.Module | None: ...

    @property
    def ft_steps(self) -> int:
        """K', the denoising steps that learn."""
        ...

    @property
    def has_moments(self) -> bool:
        """Whether every fine-tuned step is a Gaussian whose moments ``step_moments`` gives."""
        ...

    @property
    def learns_std(self) -> bool:
        """Whether the noise of its steps is among what learns, instead of a number of the kernel."""
        ...

    def trainable(self) -> list[nn.Parameter]:
        """What the actor's optimiser changes: the network, and a learned noise if there is one."""
        ...

    def step_moments(self, obs: Observation, x_in: Tensor, i: Tensor) -> Moments:
        """Moments of the steps i [N] from x_in [N, H, A], differentiable."""
        ...

    def step_log_prob(self, obs: Observation, x_in: Tensor, x_out: Tensor, i: Tensor) -> Tensor:
        """Log-prob [N] of x_in -> x_out [N, H, A] at the steps i [N], differentiable, reduced over executed rows."""
        ...

    def end_iteration(self, done: int) -> None:
        """After ``done`` iterations of fine-tuning: move what follows a schedule."""
        ...

    def sample_chain(self, obs: Observation, *, generator: torch.Generator) -> tuple[Tensor, DenoisingChain]:
        """Sample a chunk [B, H, A] in physical units, and its chain."""
        ...


class VelocityPolicy(ChainPolicy, Protocol):
    """A flow: conditional flow matching needs its velocity anywhere, not only along its own chains."""

    def velocity(self, obs: Observation, x: Tensor, t: Tensor) -> Tensor:
        """v(x, t, s) [N, H, A] at x [N, H, A] and t [N] in [0, 1] (1 is noise), differentiable."""
        ...


@dataclass(frozen=True, slots=True)
class Samples:
    """A RolloutBatch flattened to N = T * E decisions (row n = t * E + e), with its targets."""

    obs: dict[str, Tensor]  # entries [N, To, D]; pictures [N, To, height, width, 3], on the host
    latents: Tensor  # [N, K'+1, H, A]
    log_probs: Tensor  # [N, K']
    means: Tensor | None  # [N, K', H, A]
    stds: Tensor | None  # [N, K', 1 or H, 1 or A]
    active: Tensor | None  # [N, K'] bool
    use: Tensor | None  # [N] bool: decisions to learn from; None: all
    value: Tensor  # [N], before the update
    advantage: Tensor  # [N]
    returns: Tensor  # [N]
    anchors: dict[str, Tensor]  # what the ratio froze before the update, entries [N, ...]

    def rows(self, decision: Tensor) -> dict[str, Tensor]:
        """Observations of the decisions [B]."""
        return pick_rows(self.obs, decision)


class RatioBatch(NamedTuple):
    """New against old policy for B units, V values each (V = 1 for most): tensors [B, V] unless said.

    log_ratio carries the graph. divergence: KL(old || new) of the same values, with a graph, or None where the ratio
    has no Gaussian behind it. weight: detached factor on each value's advantage (such as a denoising discount).
    loss_weight: detached factor on each value's loss. step [B]: denoising step of each unit, or None.
    rank [B]: place of the step among the active ones of its chain; None: that is ``step``.
    pivot: the log-ratio above which raising it raises the divergence, detached; None: the divergence itself, which is
    right for a Gaussian's own log-ratio.
    """

    log_ratio: Tensor
    divergence: Tensor | None
    weight: Tensor | None = None
    loss_weight: Tensor | None = None
    step: Tensor | None = None
    pivot: Tensor | None = None
    rank: Tensor | None = None


class Ratio(Protocol):
    """How likely the new policy is to do what the old one did, and over which units the update runs."""

    def check(self, policy: ChainPolicy) -> None:
        """Raise ConfigError (a ValueError), naming both options, when the policy can't give what this needs."""
        ...

    def units(self, data: Samples) -> Tensor:
        """Numbers [M] long of all units to learn from; inactive steps and unused decisions are left out."""
        ...

    def decision(self, data: Samples, unit: Tensor) -> Tensor:
        """Decision [B] of each unit [B]."""
        ...

    def anchor(self, policy: ChainPolicy, data: Samples, generator: torch.Generator) -> dict[str, Tensor]:
        """What is frozen once per rollout, before any update, entries [N, ...]."""
        ...

    def joint_kl_factor(self, policy: ChainPolicy) -> float | None:
        """Times its divergence, summed over a chain: the KL of all executed numbers together. None: it has none."""
        ...

    def evaluate(self, policy: ChainPolicy, data: Samples, unit: Tensor) -> RatioBatch:
        """Compare the policy of now with the one that acted, on the units [B]."""
        ...


class Surrogate(NamedTuple):
    """loss [B, V]: to be minimised, with a graph. blocked [B, V] bool: values whose gradient the region stopped.

    outside [B, V] bool: values beyond the region, whether or not their gradient was stopped; None: the blocked ones.
    """

    loss: Tensor
    blocked: Tensor
    outside: Tensor | None = None


class TrustRegion(Protocol):
    """Turns ratios and advantages into a loss that doesn't move too far."""

    @property
    def needs_divergence(self) -> bool:
        """Whether the ratio has to come with its KL."""
        ...

    def surrogate(self, ratio: RatioBatch, adv: Tensor, *, num_steps: int) -> Surrogate:
        """Adv [B, V]: normalised, times the ratio's weight. num_steps: active denoising steps of a decision."""
        ...


class RolloutKind(StrEnum):
    """How the simulator has to be run for an advantage."""

    PLAIN = "plain"
    """Episodes go on from one iteration to the next."""
    GROUPS = "groups"
    """Groups of environments start from the same state in every iteration."""
    VINE = "vine"
    """A plain rollout, and several continuations from some of its states."""


class Advantages(NamedTuple):
    """advantage and returns [T, E]; use [T, E] bool: decisions to learn from, None: all."""

    advantage: Tensor
    returns: Tensor
    use: Tensor | None = None


class AdvantageEstimator(Protocol):
    """Credit of each decision."""

    @property
    def rollout(self) -> RolloutKind:
        """How the batches have to be collected."""
        ...

    def __call__(self, batch: RolloutBatch, reward: Tensor, value: Tensor, next_value: Tensor) -> Advantages:
        """Reward [T, E]: the batch's, perhaps scaled; value, next_value [T, E]."""
        ...
