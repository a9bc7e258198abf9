"""Diffusion Q-learning (DQL): Wang et al. 2023, arXiv 2208.06193, as a baseline of Ren et al. 2024 (DPPO).

L = E[denoising error on the buffer's actions] + alpha L_q, L_q = -Q(s, pi(s)) / mean |Q|, with the gradient of Q
through every denoising step of pi. The published baseline regressed on the policy's own samples
instead: ``bc_target=self``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor

from robopo.algos.denoising import (
    DifferentiablePolicy,
    check_learns_everywhere,
    check_ranges,
    denoising_errors,
    explored,
    updates_for,
)
from robopo.algos.stepping import GuardedAdamW
from robopo.algos.twin_q import TwinQ
from robopo.critics.q_ensemble import QEnsemble
from robopo.data.replay import ReplayBuffer, Transitions
from robopo.errors import ConfigError
from robopo.losses.q import normalized_q_loss
from robopo.policies.base import PolicySpec
from robopo.types import Observation


class BCTarget(StrEnum):
    """What the denoising term regresses on."""

    BUFFER = "buffer"
    """Actions that were taken, as in the method's paper: stay near what worked."""
    SELF = "self"
    """The policy's own fresh samples, without their gradient: only keeps the policy a diffusion."""


@dataclass(frozen=True, slots=True)
class DQLConfig:
    """Defaults: Robomimic states of Ren et al. 2024."""

    gamma: float = 0.999
    """Discount per decision."""
    alpha: float = 1.0
    """Weight of Q against the denoising error (the paper's eta)."""
    bc_target: BCTarget = BCTarget.BUFFER
    """What the denoising term regresses on."""
    actor_lr: float = 1e-5
    """AdamW's learning rate of the policy; 1e-4 on locomotion."""
    critic_lr: float = 1e-3
    """AdamW's learning rate of Q."""
    tau: float = 0.005
    """Rate at which the target Q follows."""
    batch_size: int = 1000
    """Decisions per gradient step; memory grows with batch_size times the denoising steps."""
    replay_ratio: float = 16.0
    """How often the gradient steps use each new decision, on average."""
    reward_scale: float = 1.0
    """Factor on rewards; 0.01 on locomotion."""
    critic_warmup_iterations: int = 0
    """Iterations in which Q alone learns; 5 on locomotion."""
    max_grad_norm: float | None = None
    """Bound on the policy's gradient norm; None: no bound."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.alpha < 0.0:
            raise ConfigError(f"alpha={self.alpha}: must not be negative")


class DQLMetrics(NamedTuple):
    """Means over the gradient steps of one iteration, on the device; the actor's are 0 while Q warms up."""

    bc_loss: Tensor
    actor_q_loss: Tensor
    q_loss: Tensor
    mean_q: Tensor


class DQL:
    """config -> explore, update -> state_dict. ``acting`` is the policy to evaluate and to export."""

    def __init__(self, policy: DifferentiablePolicy, critic: QEnsemble, config: DQLConfig | None = None) -> None:
        check_learns_everywhere(policy, "dql")
        if critic.config.heads != 2:
            raise ConfigError(f"the critic has {critic.config.heads} heads: dql scales one of 2 by the other")
        c = self.config = DQLConfig() if config is None else config
        self.acting = policy
        self.q = TwinQ(critic, lr=c.critic_lr, tau=c.tau, gamma=c.gamma, reward_scale=c.reward_scale)
        self.actor_optimizer = GuardedAdamW(policy.net.parameters(), lr=c.actor_lr)
        self._iterations = 0

    @property
    def spec(self) -> PolicySpec:
        """The policy's."""
        return self.acting.spec

    def explore(self, obs: Observation, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Entries [B, To, D] -> a chunk [B, H, A] with exploration noise, physical and normalised."""
        return explored(self.acting, obs, generator)

    def num_updates(self, decisions: int) -> int:
        """Gradient steps after ``decisions`` new ones."""
        return updates_for(decisions, replay_ratio=self.config.replay_ratio, batch_size=self.config.batch_size)

    def update(self, buffer: ReplayBuffer, *, updates: int, generator: torch.Generator) -> DQLMetrics:
        """Take ``updates`` steps of Q and, after the warm-up, of the policy."""
        learns = self._iterations >= self.config.critic_warmup_iterations
        steps = [
            self._step(buffer.sample(self.config.batch_size, generator), learns, generator) for _ in range(updates)
        ]
        self._iterations += 1
        return DQLMetrics(*torch.stack(steps).mean(0).unbind())

    def actor_loss(self, batch: Transitions, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Denoising term and Q term, scalars with a graph through the policy alone."""
        action = self.acting.sample_differentiable(batch.obs, generator)
        head = torch.randint(2, (1,), generator=generator, device=generator.device).to(action.device)
        q_loss = normalized_q_loss(self.q.critic(batch.obs, action), head)
        target = batch.action if self.config.bc_target is BCTarget.BUFFER else action.detach()
        return denoising_errors(self.acting, batch.obs, target, generator).mean(), q_loss

    def _step(self, batch: Transitions, learns: bool, generator: torch.Generator) -> Tensor:
        _, next_action = explored(self.acting, batch.next_obs, generator)
        next_value = self.q.target_value(batch.next_obs, next_action)
        q_loss = self.q.step(batch, next_value)
        bc = climb = q_loss.new_zeros(())
        if learns:
            bc, climb = self.actor_loss(batch, generator)
            self.actor_optimizer.zero_grad(set_to_none=True)
            (bc + self.config.alpha * climb).backward()  # the critic's gradients are dropped before its next step
            self.actor_optimizer.guarded_step(max_grad_norm=self.config.max_grad_norm)
        return torch.stack([bc.detach(), climb.detach(), q_loss, next_value.mean()])

    def state_dict(self) -> dict[str, Any]:
        """Optimisers, the target Q and the count of iterations."""
        return {
            "q": self.q.state_dict(),
            "actor_optimizer": self.actor_optimizer.state_dict(),
            "iterations": self._iterations,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state_dict()``; load the weights of policy and critic as well."""
        self.q.load_state_dict(state["q"])
        self.actor_optimizer.load_state_dict(dict(state["actor_optimizer"]))
        self._iterations = int(state["iterations"])
