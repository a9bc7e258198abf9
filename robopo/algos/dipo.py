"""DIPO: Yang et al. 2023, arXiv 2305.13122, as a baseline of Ren et al. 2024 (DPPO), arXiv 2409.00588.

The buffer's actions climb Q by a few gradient steps and are written back; the policy is cloned from them. They lie
beside the actions that were taken, which Q goes on learning from: the rewards belong to those. What acts, in the
targets, in the simulator and after training, is a slow copy of the network that learns.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from robopo.algos.denoising import check_learns_everywhere, check_ranges, denoising_errors, explored, updates_for
from robopo.algos.stepping import GuardedAdamW
from robopo.algos.twin_q import TwinQ
from robopo.critics.q_ensemble import QEnsemble
from robopo.data.replay import ReplayBuffer
from robopo.errors import ConfigError
from robopo.losses.q import action_gradient, clipped_double_q
from robopo.nn.target import TargetNetwork
from robopo.policies.base import PolicySpec
from robopo.policies.chunk_policy import ChunkPolicy
from robopo.types import Observation

ACTION_ADAM_EPS = 1e-5


@dataclass(frozen=True, slots=True)
class DIPOConfig:
    """Defaults: Robomimic states of Ren et al. 2024."""

    gamma: float = 0.999
    """Discount per decision."""
    action_steps: int = 10
    """Adam steps on each drawn action."""
    action_lr: float = 1e-4
    """Their learning rate, in normalised units: an action moves by about action_steps * action_lr per draw."""
    action_grad_norm: float = 0.1
    """Bound on the norm of one action's gradient, times the Ta * A numbers that run."""
    actor_lr: float = 1e-5
    """AdamW's learning rate of the policy; 1e-4 on locomotion."""
    critic_lr: float = 1e-3
    """AdamW's learning rate of Q."""
    tau: float = 0.005
    """Rate at which the target Q and the acting network follow."""
    batch_size: int = 1000
    """Decisions per gradient step."""
    replay_ratio: float = 16.0
    """How often the gradient steps use each new decision, on average; 64 on locomotion."""
    reward_scale: float = 1.0
    """Factor on rewards; 0.01 on locomotion."""
    critic_warmup_iterations: int = 0
    """Iterations in which Q alone learns; 5 on locomotion."""
    max_grad_norm: float | None = None
    """Bound on the policy's gradient norm; None: no bound."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.action_steps < 1:
            raise ConfigError(f"action_steps={self.action_steps}: at least 1 is needed")
        if not self.action_lr > 0.0 or not self.action_grad_norm > 0.0:
            raise ConfigError(
                f"action_lr={self.action_lr}, action_grad_norm={self.action_grad_norm}: both must be positive"
            )


class DIPOMetrics(NamedTuple):
    """Means over the gradient steps of one iteration, on the device; moved: root mean square change of an action."""

    actor_loss: Tensor
    q_loss: Tensor
    mean_q: Tensor
    moved: Tensor


class DIPO:
    """config -> explore, update -> state_dict. ``acting`` is the policy to evaluate and to export."""

    def __init__(self, policy: ChunkPolicy, critic: QEnsemble, config: DIPOConfig | None = None) -> None:
        """policy: its network becomes the slow one that acts; the one that learns is a copy, kept by this object."""
        check_learns_everywhere(policy, "dipo")
        c = self.config = DIPOConfig() if config is None else config
        self.acting = policy
        self.learner = copy.deepcopy(policy).train(policy.training)
        self.learner.net.requires_grad_(True)
        self.actor_target = TargetNetwork(self.learner.net, c.tau, into=policy.net)
        self.q = TwinQ(critic, lr=c.critic_lr, tau=c.tau, gamma=c.gamma, reward_scale=c.reward_scale)
        self.actor_optimizer = GuardedAdamW(self.learner.net.parameters(), lr=c.actor_lr)
        self._iterations = 0

    @property
    def spec(self) -> PolicySpec:
        """The policy's."""
        return self.acting.spec

    def explore(self, obs: Observation, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Entries [B, To, D] -> a chunk [B, H, A] of the slow network, physical and normalised."""
        return explored(self.acting, obs, generator)

    def num_updates(self, decisions: int) -> int:
        """Gradient steps after ``decisions`` new ones."""
        return updates_for(decisions, replay_ratio=self.config.replay_ratio, batch_size=self.config.batch_size)

    def update(self, buffer: ReplayBuffer, *, updates: int, generator: torch.Generator) -> DIPOMetrics:
        """Take ``updates`` steps of Q and, after the warm-up, of the actions (written back) and the policy."""
        learns = self._iterations >= self.config.critic_warmup_iterations
        steps = [self._step(buffer, learns, generator) for _ in range(updates)]
        self._iterations += 1
        return DIPOMetrics(*torch.stack(steps).mean(0).unbind())

    def improve(self, obs: Observation, action: Tensor) -> Tensor:
        """Actions [B, H, A] after ``action_steps`` Adam steps up the smallest Q, within [-1, 1]."""
        c, spec = self.config, self.acting.spec
        bound = c.action_grad_norm * spec.action_steps * spec.action_dim
        with torch.no_grad():
            cond = self.q.critic.encode(obs)
        climbing = action.detach().clone().requires_grad_(True)
        optimizer = torch.optim.Adam([climbing], lr=c.action_lr, eps=ACTION_ADAM_EPS)
        for _ in range(c.action_steps):
            gradient = action_gradient(lambda a: clipped_double_q(self.q.critic.score(cond, a)), climbing)
            norm = gradient.flatten(1).norm(dim=1).view(-1, 1, 1)
            # Each decision's own norm: its step must not depend on which others share the batch.
            climbing.grad = -gradient * (bound / norm.clamp(min=1e-12)).clamp(max=1.0)
            optimizer.step()
        return climbing.detach().clamp(-1.0, 1.0)

    def _step(self, buffer: ReplayBuffer, learns: bool, generator: torch.Generator) -> Tensor:
        batch = buffer.sample(self.config.batch_size, generator)
        _, next_action = explored(self.acting, batch.next_obs, generator)
        next_value = self.q.target_value(batch.next_obs, next_action)
        q_loss = self.q.step(batch, next_value)
        actor_loss = moved = q_loss.new_zeros(())
        if learns:
            start = buffer.improved_actions(batch.index)
            action = self.improve(batch.obs, start)
            buffer.improve_actions(batch.index, action)
            moved = (action - start).square().mean().sqrt()
            loss = denoising_errors(self.learner, batch.obs, action, generator).mean()
            self.actor_optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.actor_optimizer.guarded_step(max_grad_norm=self.config.max_grad_norm)
            self.actor_target.update()
            actor_loss = loss.detach()
        return torch.stack([actor_loss, q_loss, next_value.mean(), moved])

    def state_dict(self) -> dict[str, Any]:
        """The network that learns, optimisers, the target Q and the count of iterations."""
        return {
            "learner": {name: value.clone() for name, value in self.learner.net.state_dict().items()},
            "q": self.q.state_dict(),
            "actor_optimizer": self.actor_optimizer.state_dict(),
            "iterations": self._iterations,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state_dict()``; load the weights of policy (the slow network) and critic as well."""
        self.learner.net.load_state_dict(dict(state["learner"]))
        self.q.load_state_dict(state["q"])
        self.actor_optimizer.load_state_dict(dict(state["actor_optimizer"]))
        self._iterations = int(state["iterations"])
