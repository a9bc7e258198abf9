"""Reinforcement learning with prior data (RLPD): Ball et al. 2023, arXiv 2302.02948.

Soft actor-critic from scratch whose every batch is half demonstrations, half own experience. LayerNorm in the critics
keeps unseen actions from being worth more than seen ones; targets take the smaller of two critics drawn from many.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from robopo.algos.mixed_batch import symmetric_batch
from robopo.algos.stepping import GuardedAdamW
from robopo.algos.temperature import Temperature
from robopo.critics.q_ensemble import QEnsemble
from robopo.data.replay import ReplayBuffer, Transitions
from robopo.errors import ConfigError
from robopo.losses.q import min_of_random_heads, td_loss, td_target
from robopo.losses.soft_q import soft_actor_loss
from robopo.nn.target import TargetNetwork
from robopo.policies.base import PolicySpec
from robopo.policies.obs_encoding import ACTION
from robopo.policies.tanh_gaussian import TanhGaussianPolicy
from robopo.types import Observation


@dataclass(frozen=True, slots=True)
class RLPDConfig:
    """Optimisation of RLPD. Defaults: the baseline of Ren et al. 2024 on Robomimic states (Ta = 1)."""

    gamma: float = 0.99
    """Discount per decision."""
    actor_lr: float = 1e-4
    """Learning rate of the policy."""
    critic_lr: float = 1e-4
    """Learning rate of the critics."""
    alpha_lr: float = 1e-4
    """Learning rate of log alpha."""
    initial_alpha: float = 1.0
    """Weight of the entropy at the start."""
    target_entropy: float | None = None
    """Entropy of a chunk that alpha is adjusted to, in nats; None: -Ta * A."""
    tau: float = 0.01
    """Step of the target critics towards the critics, per critic update."""
    batch_size: int = 256
    """Decisions per critic update, half of them from demonstrations."""
    updates_per_decision: float = 3.0
    """Critic updates for each new decision."""
    critic_updates: int = 3
    """Critic updates between two of policy and alpha, which use the last one's batch."""
    target_heads: int = 2
    """Critics drawn for each target, of which the smallest counts."""
    entropy_backup: bool = True
    """Targets count the entropy of the next decision."""

    def __post_init__(self) -> None:
        for name in ("actor_lr", "critic_lr", "alpha_lr", "initial_alpha", "updates_per_decision"):
            if getattr(self, name) <= 0.0:
                raise ConfigError(f"{name}={getattr(self, name)}: must be positive")
        for name in ("batch_size", "critic_updates", "target_heads"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: at least 1 is needed")
        if not 0.0 <= self.gamma <= 1.0 or not 0.0 < self.tau <= 1.0:
            raise ConfigError(f"gamma={self.gamma}, tau={self.tau}: expected 0 <= gamma <= 1 and 0 < tau <= 1")


class RLPDMetrics(NamedTuple):
    """Means over an update's gradient steps, scalars on the device; actor and entropy: 0 where none was taken."""

    critic_loss: Tensor
    q_data: Tensor
    actor_loss: Tensor
    entropy: Tensor
    alpha: Tensor


class RLPD:
    """config -> update -> state_dict. Owns the optimisers, the target critics and alpha."""

    def __init__(
        self, policy: TanhGaussianPolicy, critic: QEnsemble, demos: ReplayBuffer, config: RLPDConfig | None = None
    ) -> None:
        """critic: several heads with LayerNorm. demos: decisions of the demonstrations, on the learner's device."""
        self.policy, self.critic, self.demos = policy, critic, demos
        self.config = c = RLPDConfig() if config is None else config
        if c.target_heads > critic.config.heads:
            raise ConfigError(f"target_heads={c.target_heads}, but the critic has {critic.config.heads} heads")
        spec = policy.spec
        dims = spec.action_steps * spec.action_dim
        self.actor_optimizer = GuardedAdamW(policy.net.parameters(), lr=c.actor_lr)
        self.critic_optimizer = GuardedAdamW(critic.parameters(), lr=c.critic_lr)
        self.target = TargetNetwork(critic, c.tau)
        self.temperature = Temperature(
            initial=c.initial_alpha,
            target_entropy=-float(dims) if c.target_entropy is None else c.target_entropy,
            lr=c.alpha_lr,
            device=next(policy.parameters()).device,
        )
        self.step = 0
        """Critic updates so far."""

    @property
    def spec(self) -> PolicySpec:
        """Of the policy."""
        return self.policy.spec

    @torch.no_grad()
    def explore(self, obs: Observation, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Entries [B, To, D] -> a chunk [B, H, A] drawn from the policy in physical units, and the same normalised."""
        action = self.policy.rsample(self.policy.encode(obs), generator).action
        return self.policy.normalizer.invert(ACTION, action), action

    def num_updates(self, decisions: int) -> int:
        """Critic updates after ``decisions`` new ones."""
        return max(1, round(self.config.updates_per_decision * decisions))

    def update(self, buffer: ReplayBuffer, *, updates: int, generator: torch.Generator) -> RLPDMetrics:
        """Take ``updates`` critic steps, and a policy step after every ``critic_updates``-th of the run."""
        if updates < 1:
            raise ConfigError(f"updates={updates}: at least 1 is needed")
        critic_log: list[tuple[Tensor, Tensor]] = []
        actor_log: list[tuple[Tensor, Tensor]] = []
        for _ in range(updates):
            batch = symmetric_batch(buffer, self.demos, self.config.batch_size, generator)
            critic_log.append(self._critic_step(batch, generator))
            self.target.update()
            self.step += 1
            if self.step % self.config.critic_updates == 0:
                actor_log.append(self._actor_step(batch.obs, generator))
        alpha = self.temperature.alpha
        zeros = [(torch.zeros_like(alpha), torch.zeros_like(alpha))]
        critic_loss, q_data = (torch.stack(x).mean() for x in zip(*critic_log, strict=True))
        actor_loss, entropy = (torch.stack(x).mean() for x in zip(*(actor_log or zeros), strict=True))
        return RLPDMetrics(critic_loss, q_data, actor_loss, entropy, alpha)

    def _critic_step(self, batch: Transitions, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        c = self.config
        with torch.no_grad():
            action, log_prob = self.policy.rsample(self.policy.encode(batch.next_obs), generator)
            value = min_of_random_heads(self.target.module(batch.next_obs, action), c.target_heads, generator)
            if c.entropy_backup:
                value = value - self.temperature.alpha * log_prob
            target = td_target(reward=batch.reward, terminated=batch.terminated, next_value=value, gamma=c.gamma)
        q = self.critic(batch.obs, batch.action)
        loss = td_loss(q=q, target=target)
        self.critic_optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.critic_optimizer.guarded_step()
        return loss.detach(), q.detach().mean()

    def _actor_step(self, obs: Observation, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        action, log_prob = self.policy.rsample(self.policy.encode(obs), generator)
        loss = soft_actor_loss(q=self.critic(obs, action).mean(0), log_prob=log_prob, alpha=self.temperature.alpha)
        self.actor_optimizer.zero_grad(set_to_none=True)
        loss.backward()  # also fills the critics' gradients, which their next step clears
        self.actor_optimizer.guarded_step()
        self.temperature.update(log_prob)
        return loss.detach(), -log_prob.detach().mean()

    def state_dict(self) -> dict[str, Any]:
        """Optimisers, all target critics, alpha and counters; weights of policy and critic belong to the modules."""
        return {
            "actor_optimizer": self.actor_optimizer.state_dict(),
            "critic_optimizer": self.critic_optimizer.state_dict(),
            "target": self.target.state_dict(),
            "temperature": self.temperature.state_dict(),
            "step": self.step,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state_dict()``; load the weights of policy and critic as well."""
        self.actor_optimizer.load_state_dict(dict(state["actor_optimizer"]))
        self.critic_optimizer.load_state_dict(dict(state["critic_optimizer"]))
        self.target.load_state_dict(state["target"])
        self.temperature.load_state_dict(state["temperature"])
        self.step = int(state["step"])
