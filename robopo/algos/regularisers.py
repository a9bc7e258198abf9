"""Terms that a policy-gradient loss may carry besides the surrogate. All are off by default.

Each is a mean over the units of the minibatch at hand, so its weight means the same whatever the batch size.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from robopo.algos.choices import ChainPolicy, Samples
from robopo.algos.gaussian_steps import check_noisy, has_velocity, kernel_name, reduce_step
from robopo.algos.policy_gradient_config import PolicyGradientConfig
from robopo.errors import ConfigError
from robopo.losses.divergence import gaussian_kl
from robopo.losses.entropy import gaussian_entropy, knn_entropy
from robopo.types import DenoisingChain, Observation


class Units(NamedTuple):
    """The minibatch at hand: decision and denoising step [B] of each unit, step None where units are not steps."""

    decision: Tensor
    step: Tensor | None
    generator: torch.Generator


class Regulariser(Protocol):
    """A weighted term of the actor's loss."""

    @property
    def name(self) -> str:
        """In the metrics."""
        ...

    @property
    def coef(self) -> float:
        """Its weight."""
        ...

    def begin(self, policy: ChainPolicy, data: Samples, generator: torch.Generator) -> None:
        """Draw or freeze what is the same for the whole iteration; called before any update."""
        ...

    def loss(self, policy: ChainPolicy, data: Samples, at: Units) -> Tensor:
        """Scalar to be minimised, before its weight, with a graph."""
        ...


class Window(Protocol):
    """Demonstrations: obs entries [B, To, D], action [B, H, A] physical, pad_mask [B, H], True where padded."""

    @property
    def obs(self) -> Observation: ...
    @property
    def action(self) -> Tensor: ...
    @property
    def pad_mask(self) -> Tensor: ...


class Demonstrations(Protocol):
    """Windows of demonstrations by number, such as ``robopo.data.sampler.WindowDataset``."""

    def __len__(self) -> int: ...

    def gather(self, index: Tensor) -> Window:
        """The windows [B], on the policy's device."""
        ...


@contextmanager
def as_pretrained(policy: ChainPolicy) -> Generator[None]:
    """Every fine-tuned step uses the frozen, pre-trained network; a learned noise stays as it is now."""
    if policy.frozen_net is None:
        raise ConfigError(NO_BASE)
    holder: Any = policy  # the protocol only reads the network
    net = policy.net
    holder.net = policy.frozen_net
    try:
        yield
    finally:
        holder.net = net


NO_BASE = "kl_coef or bc_coef > 0 needs the pre-trained network: call policy.begin_finetuning(...) first"


@dataclass(slots=True)
class ReferenceKL:
    """KL(policy || pre-trained policy) of the minibatch's denoising steps, exact, reduced as log-probs are.

    The pre-trained network has no noise of its own: it gets the policy's, without a gradient.
    """

    coef: float
    name: str = field(default="kl_reference", init=False)

    def begin(self, policy: ChainPolicy, data: Samples, generator: torch.Generator) -> None:
        """Nothing to draw."""

    def loss(self, policy: ChainPolicy, data: Samples, at: Units) -> Tensor:
        """Mean over the units."""
        i = active_step(data.active, data.log_probs, at) if at.step is None else at.step
        obs, x_in = data.rows(at.decision), _inputs(data.latents, at.decision, i)
        now = policy.step_moments(obs, x_in, i)
        with torch.no_grad(), as_pretrained(policy):
            base = policy.step_moments(obs, x_in, i)
        kl = gaussian_kl(old_mean=now.mean, old_std=now.std, new_mean=base.mean, new_std=base.std)
        return reduce_step(policy, kl[:, : policy.spec.action_steps]).mean()


@dataclass(slots=True)
class BaseChains:
    """-log p of chains that the pre-trained policy draws at the iteration's observations (DPPO's BC term).

    Keeps likely what the pre-trained policy would have done: the units' steps i of its own chains.
    """

    coef: float
    name: str = field(default="bc", init=False)
    _chain: DenoisingChain | None = field(default=None, init=False)

    def begin(self, policy: ChainPolicy, data: Samples, generator: torch.Generator) -> None:
        """Draw the chains."""
        with torch.no_grad(), as_pretrained(policy):
            self._chain = policy.sample_chain(data.obs, generator=generator)[1]

    def loss(self, policy: ChainPolicy, data: Samples, at: Units) -> Tensor:
        """Mean over the units."""
        chain = self._chain
        if chain is None:
            raise RuntimeError("BaseChains.loss before begin")
        step = at.step
        if step is None or chain.active is not None:  # where the noise sits may differ from chain to chain
            step = active_step(chain.active, chain.log_probs, at)
        x_in, x_out = (_inputs(chain.latents, at.decision, i) for i in (step, step + 1))
        return -policy.step_log_prob(data.rows(at.decision), x_in, x_out, step).mean()


@dataclass(slots=True)
class DemonstrationLoss:
    """The policy's own cloning loss on random windows, as many as the minibatch has units."""

    coef: float
    demonstrations: Demonstrations
    name: str = field(default="demo", init=False)

    def begin(self, policy: ChainPolicy, data: Samples, generator: torch.Generator) -> None:
        """Nothing to draw: the windows follow from the generator of the update, so that a resumed run sees the same."""

    def loss(self, policy: ChainPolicy, data: Samples, at: Units) -> Tensor:  # noqa: ARG002
        """Of one batch of windows."""
        count = len(self.demonstrations)
        index = torch.randint(count, (len(at.decision),), generator=at.generator, device=at.generator.device)
        window = self.demonstrations.gather(index)
        cloning: Any = policy
        return cloning.bc_loss(window.obs, window.action, at.generator, window.pad_mask)


@dataclass(slots=True)
class StepEntropy:
    """Minus the entropy of the minibatch's denoising steps, per dimension: ReinFlow's, for a learned std."""

    coef: float
    name: str = field(default="entropy", init=False)

    def begin(self, policy: ChainPolicy, data: Samples, generator: torch.Generator) -> None:
        """Nothing to draw."""

    def loss(self, policy: ChainPolicy, data: Samples, at: Units) -> Tensor:
        """Mean over units and executed numbers."""
        i = active_step(data.active, data.log_probs, at) if at.step is None else at.step
        moments = policy.step_moments(data.rows(at.decision), _inputs(data.latents, at.decision, i), i)
        std = moments.std.expand_as(moments.mean)[:, : policy.spec.action_steps]
        return -gaussian_entropy(std).mean()


@dataclass(slots=True)
class SampledEntropy:
    """Minus the estimated entropy, per dimension, of a flow's one-step samples e - v(e, t=1, s): keeps modes apart.

    Kozachenko and Leonenko's estimate from ``samples`` draws at each of the minibatch's first ``states`` decisions.
    """

    coef: float
    samples: int = 16
    states: int = 32
    name: str = field(default="knn_entropy", init=False)

    def begin(self, policy: ChainPolicy, data: Samples, generator: torch.Generator) -> None:
        """Nothing to draw."""

    def loss(self, policy: ChainPolicy, data: Samples, at: Units) -> Tensor:
        """Mean over the states."""
        rows = at.decision[: self.states].repeat_interleave(self.samples)
        shape = (len(rows), *data.latents.shape[2:])
        noise = torch.randn(shape, generator=at.generator, device=at.generator.device).to(data.latents)
        flow: Any = policy
        velocity: Tensor = flow.velocity(data.rows(rows), noise, noise.new_ones(len(rows)))
        chunk = (noise - velocity)[:, : policy.spec.action_steps].reshape(-1, self.samples, self._size(policy))
        return -knn_entropy(chunk).mean() / self._size(policy)

    @staticmethod
    def _size(policy: ChainPolicy) -> int:
        return policy.spec.action_steps * policy.spec.action_dim


def configured(
    policy: ChainPolicy, config: PolicyGradientConfig, demonstrations: Demonstrations | None
) -> tuple[Regulariser, ...]:
    """The terms whose weight is not 0. ConfigError naming both sides where the policy can't give what one needs."""
    wanted: list[tuple[Regulariser, bool, str]] = []
    if config.kl_coef > 0.0:
        check_noisy("kl_coef > 0", policy)
        why = f"kl_coef > 0 needs Gaussian denoising steps, and {type(policy).__name__} has none; use bc_coef"
        wanted.append((ReferenceKL(config.kl_coef), policy.has_moments, why))
    if config.bc_coef > 0.0:
        check_noisy("bc_coef > 0", policy)
        wanted.append((BaseChains(config.bc_coef), policy.frozen_net is not None, NO_BASE))
    if config.demo_coef > 0.0:
        if demonstrations is None:
            raise ConfigError("demo_coef > 0 needs demonstrations: give demos=...")
        why = f"demo_coef > 0: a {type(policy).__name__} can't clone demonstrations"
        wanted.append((DemonstrationLoss(config.demo_coef, demonstrations), hasattr(policy, "bc_loss"), why))
    if config.entropy_coef > 0.0:
        why = (
            "entropy_coef > 0 needs Gaussian steps whose std is learned (kernel=LearnedNoise, or a Gaussian policy), "
            f"and this is a {type(policy).__name__} with kernel={kernel_name(policy)}; set it to 0"
        )
        wanted.append((StepEntropy(config.entropy_coef), policy.learns_std and policy.has_moments, why))
    if config.knn_coef > 0.0:
        why = (
            f"knn_coef > 0 looks at one-step samples of a flow, and this {type(policy).__name__} is none; "
            "use a flow policy (policy=flow_mlp), or set it to 0"
        )
        wanted.append((SampledEntropy(config.knn_coef), has_velocity(policy), why))
    for _, possible, why in wanted:
        if not possible:
            raise ConfigError(why)
    if config.kl_coef > 0.0 and policy.frozen_net is None:
        raise ConfigError(NO_BASE)
    return tuple(term for term, _, _ in wanted)


def active_step(active: Tensor | None, log_probs: Tensor, at: Units) -> Tensor:
    """A random active step [B] of each unit's decision; active, log_probs [N, K'].

    Raises ConfigError where a decision has none. Synchronises the device if ``active`` is given.
    """
    if active is not None and not bool(active.any(1).all()):
        raise ConfigError(
            "kl_coef, bc_coef and entropy_coef look at noisy denoising steps, and some decisions have none; "
            "set them to 0, or explore with a noisy kernel"
        )
    chance = torch.ones_like(log_probs) if active is None else active.to(log_probs.dtype)
    rows = chance.index_select(0, at.decision).to(at.generator.device)
    return torch.multinomial(rows, 1, generator=at.generator)[:, 0].to(at.decision.device)


def _inputs(latents: Tensor, decision: Tensor, i: Tensor) -> Tensor:
    """Latents [N, K'+1, H, A] at (decision, i) [B] -> [B, H, A]."""
    return latents.flatten(0, 1).index_select(0, decision * latents.shape[1] + i)
