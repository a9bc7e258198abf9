"""Imitation-bootstrapped reinforcement learning (IBRL): Hu et al. 2023, arXiv 2311.02198.

A cloned policy stays as it is; beside it a second one learns by reinforcement. Both propose an action, and the critics
choose: when acting, and in the target of the critics themselves. Here the critics that choose are the ones that learn;
the published code of the baseline acts with copies that never see an update.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor

from robopo.algos.stepping import GuardedAdamW
from robopo.critics.q_ensemble import QEnsemble
from robopo.data.replay import ReplayBuffer, Transitions
from robopo.errors import ConfigError
from robopo.losses.q import boltzmann_weights, choose, clipped_double_q, draw, min_of_random_heads, td_loss, td_target
from robopo.nn.gaussian_mlp import GaussianMLP
from robopo.nn.target import TargetNetwork
from robopo.policies.base import Policy, PolicySpec
from robopo.policies.gaussian import GaussianPolicy
from robopo.policies.obs_encoding import ACTION
from robopo.types import Observation


class Selection(StrEnum):
    """How the critics choose between the two proposals while exploring."""

    GREEDY = "greedy"
    """The one of larger Q."""
    SOFT = "soft"
    """Drawn with the weights softmax(beta Q)."""


@dataclass(frozen=True, slots=True)
class IBRLConfig:
    """Optimisation of IBRL. Defaults: the baseline of Ren et al. 2024 on Robomimic."""

    gamma: float = 0.99
    """Discount per decision."""
    actor_lr: float = 1e-4
    """Learning rate of the policy."""
    critic_lr: float = 1e-4
    """Learning rate of the critics."""
    tau: float = 0.01
    """Step of target policy and target critics towards the learning ones, per critic update."""
    batch_size: int = 256
    """Decisions per critic update."""
    updates_per_decision: float = 1.5
    """Critic updates for each new decision (published: 3 every 2 steps; 5 on Gym and Kitchen)."""
    critic_updates: int = 3
    """Critic updates between two of the policy, which uses the last one's batch."""
    target_heads: int = 2
    """Critics drawn for each target, of which the smallest counts."""
    selection: Selection = Selection.SOFT
    """How to choose between the two proposals while exploring."""
    beta: float = 10.0
    """Inverse temperature of the soft choice."""

    def __post_init__(self) -> None:
        for name in ("actor_lr", "critic_lr", "updates_per_decision", "beta"):
            if getattr(self, name) <= 0.0:
                raise ConfigError(f"{name}={getattr(self, name)}: must be positive")
        for name in ("batch_size", "critic_updates", "target_heads"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: at least 1 is needed")
        if not 0.0 <= self.gamma <= 1.0 or not 0.0 < self.tau <= 1.0:
            raise ConfigError(f"gamma={self.gamma}, tau={self.tau}: expected 0 <= gamma <= 1 and 0 < tau <= 1")


class IBRLMetrics(NamedTuple):
    """Means over an update's gradient steps, scalars on the device; actor_loss: 0 where no step was taken.

    cloned_share: of the targets, those whose best next action was the cloned policy's.
    """

    critic_loss: Tensor
    q_data: Tensor
    cloned_share: Tensor
    actor_loss: Tensor


class IBRL:
    """config -> update -> state_dict. Owns the optimisers and both target networks; ``cloned`` never changes."""

    def __init__(
        self, cloned: Policy, policy: GaussianPolicy, critic: QEnsemble, config: IBRLConfig | None = None
    ) -> None:
        """cloned: any policy of the same sizes. policy: learns, perhaps from a copy of a cloned Gaussian.

        critic: several heads. The buffer of ``update`` is meant to start with the demonstrations.
        """
        self.cloned, self.policy, self.critic = cloned, policy, critic
        self.config = c = IBRLConfig() if config is None else config
        if c.target_heads > critic.config.heads:
            raise ConfigError(f"target_heads={c.target_heads}, but the critic has {critic.config.heads} heads")
        _check_alike(cloned.spec, policy.spec)
        self.actor_optimizer = GuardedAdamW(policy.trainable(), lr=c.actor_lr)
        self.critic_optimizer = GuardedAdamW(critic.parameters(), lr=c.critic_lr)
        self.target = TargetNetwork(critic, c.tau)
        self.target_actor = TargetNetwork(policy.net, c.tau)
        policy.net.eval()
        self.step = 0
        """Critic updates so far."""

    @property
    def spec(self) -> PolicySpec:
        """Of both policies."""
        return self.policy.spec

    @torch.no_grad()
    def explore(self, obs: Observation, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Entries [B, To, D] -> the chosen chunk [B, H, A] in physical units, and the same normalised."""
        proposals = torch.stack([self._cloned(obs, generator), self._noisy(self.policy.net, obs, generator)])
        q = clipped_double_q(self.critic.each_of(obs, proposals))  # [2, B]
        if self.config.selection is Selection.GREEDY:
            index = q.argmax(0)
        else:
            index = draw(boltzmann_weights(q=q, temperature=1.0 / self.config.beta), generator)
        action = choose(proposals, index)
        return self.policy.normalizer.invert(ACTION, action), action

    @torch.no_grad()
    def act(self, obs: Observation, *, deterministic: bool = True, generator: torch.Generator | None = None) -> Tensor:
        """The better of the two proposals without noise, [B, H, A] physical; otherwise as explored."""
        if not deterministic:
            return self.explore(obs, generator)[0]
        own = self.policy.squashed(self.policy.net(self.policy.encode(obs)))
        proposals = torch.stack([self._cloned(obs, generator), own])
        q = clipped_double_q(self.critic.each_of(obs, proposals))
        return self.policy.normalizer.invert(ACTION, choose(proposals, q.argmax(0)))

    def num_updates(self, decisions: int) -> int:
        """Critic updates after ``decisions`` new ones."""
        return max(1, round(self.config.updates_per_decision * decisions))

    def update(self, buffer: ReplayBuffer, *, updates: int, generator: torch.Generator) -> IBRLMetrics:
        """Take ``updates`` critic steps, and a policy step after every ``critic_updates``-th of the run."""
        if updates < 1:
            raise ConfigError(f"updates={updates}: at least 1 is needed")
        critic_log: list[tuple[Tensor, Tensor, Tensor]] = []
        actor_log: list[Tensor] = []
        for _ in range(updates):
            batch = buffer.sample(self.config.batch_size, generator)
            critic_log.append(self._critic_step(batch, generator))
            self.step += 1
            if self.step % self.config.critic_updates == 0:
                actor_log.append(self._actor_step(batch.obs, generator))
            self.target.update()
            self.target_actor.update()
        critic_loss, q, share = (torch.stack(values).mean() for values in zip(*critic_log, strict=True))
        actor_loss = torch.stack(actor_log).mean() if actor_log else torch.zeros_like(critic_loss)
        return IBRLMetrics(critic_loss, q, share, actor_loss)

    def _critic_step(self, batch: Transitions, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        c = self.config
        with torch.no_grad():
            own = self._noisy(self.target_actor.module, batch.next_obs, generator)
            proposals = torch.stack([self._cloned(batch.next_obs, generator), own])
            q_next = self.target.module.each_of(batch.next_obs, proposals)  # [heads, 2, B]
            value = min_of_random_heads(q_next, c.target_heads, generator)
            target = td_target(
                reward=batch.reward, terminated=batch.terminated, next_value=value.amax(0), gamma=c.gamma
            )
        q = self.critic(batch.obs, batch.action)
        loss = td_loss(q=q, target=target)
        self.critic_optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.critic_optimizer.guarded_step()
        return loss.detach(), q.detach().mean(), (value[0] >= value[1]).to(loss.dtype).mean()

    def _actor_step(self, obs: Observation, generator: torch.Generator) -> Tensor:
        self.policy.net.train()  # for dropout
        loss = -clipped_double_q(self.critic(obs, self._noisy(self.policy.net, obs, generator))).mean()
        self.actor_optimizer.zero_grad(set_to_none=True)
        loss.backward()  # also fills the critics' gradients, which their next step clears
        self.actor_optimizer.guarded_step()
        self.policy.net.eval()
        return loss.detach()

    def _cloned(self, obs: Observation, generator: torch.Generator | None) -> Tensor:
        """What the cloned policy would do, as deterministically as it can, normalised [B, H, A]."""
        return self.policy.normalizer.apply(ACTION, self.cloned.act(obs, deterministic=True, generator=generator))

    def _noisy(self, net: GaussianMLP, obs: Observation, generator: torch.Generator | None) -> Tensor:
        """The Gaussian policy's exploration with the weights of ``net``, inside [-1, 1], [B, H, A]."""
        mean = self.policy.squashed(net(self.policy.encode(obs)))
        noise = self.policy.clipped_noise(mean, generator)
        return (mean + net.config.initial_std * noise).clamp(-1.0, 1.0)

    def state_dict(self) -> dict[str, Any]:
        """Optimisers, targets of policy and all critics, counter; their weights belong to the modules."""
        return {
            "actor_optimizer": self.actor_optimizer.state_dict(),
            "critic_optimizer": self.critic_optimizer.state_dict(),
            "target": self.target.state_dict(),
            "target_actor": self.target_actor.state_dict(),
            "step": self.step,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state_dict()``; load the weights of policy and critic as well."""
        self.actor_optimizer.load_state_dict(dict(state["actor_optimizer"]))
        self.critic_optimizer.load_state_dict(dict(state["critic_optimizer"]))
        self.target.load_state_dict(state["target"])
        self.target_actor.load_state_dict(state["target_actor"])
        self.step = int(state["step"])


def _check_alike(cloned: PolicySpec, learner: PolicySpec) -> None:
    for name in ("obs", "obs_steps", "action_dim", "horizon", "action_steps"):
        if getattr(cloned, name) != getattr(learner, name):
            raise ConfigError(
                f"{name}: the cloned policy has {getattr(cloned, name)}, the learning one {getattr(learner, name)}; "
                "both must see and do the same"
            )
