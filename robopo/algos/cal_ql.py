"""Calibrated conservative Q-learning (Cal-QL): Nakamoto et al. 2023, arXiv 2303.05479.

An offline phase on demonstrations alone, then online batches that are half demonstrations, half own experience. A
conservative penalty lowers Q where the data doesn't say anything, but never below the return that was really had: so
the first own experience isn't worth more than what was learned offline, and nothing is unlearned.
"""

from __future__ import annotations

import math
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
from robopo.errors import ConfigError, DataError
from robopo.losses.q import clipped_double_q, reward_to_go, td_loss, td_target
from robopo.losses.soft_q import conservative_penalty, soft_actor_loss
from robopo.nn.target import TargetNetwork
from robopo.policies.base import PolicySpec
from robopo.policies.obs_encoding import ACTION
from robopo.policies.tanh_gaussian import Drawn, TanhGaussianPolicy
from robopo.types import Observation, RolloutBatch

MC_RETURN = "mc_return"
"""Column of the buffers: discounted reward to the end of the episode, per decision."""


@dataclass(frozen=True, slots=True)
class CalQLConfig:
    """Optimisation of Cal-QL. Defaults: the baseline of Ren et al. 2024."""

    gamma: float = 0.99
    """Discount per decision; must be that of the buffers' ``mc_return``."""
    actor_lr: float = 1e-4
    """Learning rate of the policy."""
    critic_lr: float = 3e-4
    """Learning rate of the critics."""
    alpha_lr: float = 1e-4
    """Learning rate of log alpha."""
    initial_alpha: float = 1.0
    """Weight of the entropy at the start."""
    target_entropy: float | None = None
    """Entropy of a chunk that alpha is adjusted to, in nats; None: -Ta * A."""
    tau: float = 0.005
    """Step of the target critics towards the critics, per update."""
    batch_size: int = 256
    """Decisions per update; half of them from demonstrations once there is own experience."""
    reward_scale: float = 1.0
    """Factor on rewards and returns. The penalty has no scale of its own: where returns are below 1, as with a sparse
    reward, it drowns them; Nakamoto et al. scale such rewards by 10."""
    updates_per_decision: float = 1.0
    """Updates for each new decision."""
    penalty: float = 5.0
    """Weight of the conservative penalty; 0: soft actor-critic."""
    random_actions: int = 4
    """Uniform actions in the penalty, per decision."""
    policy_actions: int = 4
    """The policy's actions in the penalty, from each of s and s', per decision."""
    target_actions: int = 10
    """The policy's next actions, of which the best counts in the target."""

    def __post_init__(self) -> None:
        for name in ("actor_lr", "critic_lr", "alpha_lr", "initial_alpha", "reward_scale", "updates_per_decision"):
            if getattr(self, name) <= 0.0:
                raise ConfigError(f"{name}={getattr(self, name)}: must be positive")
        for name in ("batch_size", "random_actions", "policy_actions", "target_actions"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: at least 1 is needed")
        if not 0.0 <= self.gamma <= 1.0 or not 0.0 < self.tau <= 1.0:
            raise ConfigError(f"gamma={self.gamma}, tau={self.tau}: expected 0 <= gamma <= 1 and 0 < tau <= 1")
        if self.penalty < 0.0:
            raise ConfigError(f"penalty={self.penalty}: must not be negative")


class CalQLMetrics(NamedTuple):
    """Means over an update's gradient steps, scalars on the device. td_loss and penalty: summed over heads."""

    td_loss: Tensor
    penalty: Tensor
    q_data: Tensor
    actor_loss: Tensor
    entropy: Tensor
    alpha: Tensor


class CalQL:
    """config -> update -> state_dict. Owns the optimisers, the target critics and alpha."""

    def __init__(
        self, policy: TanhGaussianPolicy, critic: QEnsemble, demos: ReplayBuffer, config: CalQLConfig | None = None
    ) -> None:
        """demos: decisions of the demonstrations with the column ``mc_return``, on the learner's device."""
        self.policy, self.critic, self.demos = policy, critic, demos
        self.config = c = CalQLConfig() if config is None else config
        if len(demos) and MC_RETURN not in demos.rows(torch.zeros(1, dtype=torch.long, device=demos.device)).extras:
            raise DataError(f"the demonstrations have no {MC_RETURN!r}: build them with gamma={c.gamma}")
        self.dims = policy.spec.action_steps * policy.spec.action_dim
        self.actor_optimizer = GuardedAdamW(policy.net.parameters(), lr=c.actor_lr)
        self.critic_optimizer = GuardedAdamW(critic.parameters(), lr=c.critic_lr)
        self.target = TargetNetwork(critic, c.tau)
        self.temperature = Temperature(
            initial=c.initial_alpha,
            target_entropy=-float(self.dims) if c.target_entropy is None else c.target_entropy,
            lr=c.alpha_lr,
            device=next(policy.parameters()).device,
        )
        self.step = 0
        """Updates so far, offline ones included."""

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
        """Updates after ``decisions`` new ones."""
        return max(1, round(self.config.updates_per_decision * decisions))

    def columns(self, batch: RolloutBatch) -> dict[str, Tensor]:
        """Further columns of the replay buffer for a rollout: ``mc_return`` [T, E].

        It is known where the episode ended within the rollout, so a rollout should be longer than an episode; elsewhere
        it is -inf, and the decision is not calibrated.
        """
        to_go = reward_to_go(
            reward=batch.reward, terminated=batch.terminated, truncated=batch.truncated, gamma=self.config.gamma
        )
        return {MC_RETURN: torch.where(to_go.finished, to_go.returns, -math.inf)}

    def pretrain(self, *, updates: int, generator: torch.Generator) -> CalQLMetrics:
        """``updates`` steps of the offline phase: on the demonstrations alone."""
        return self.update(self.demos, updates=updates, generator=generator)

    def update(self, buffer: ReplayBuffer, *, updates: int, generator: torch.Generator) -> CalQLMetrics:
        """Take ``updates`` steps of critics, policy and alpha. buffer: own experience; empty: as ``pretrain``.

        Its column ``mc_return`` calibrates the penalty; without it own decisions are not calibrated.
        """
        if updates < 1:
            raise ConfigError(f"updates={updates}: at least 1 is needed")
        log: list[tuple[Tensor, ...]] = []
        for _ in range(updates):
            batch = symmetric_batch(
                buffer, self.demos, self.config.batch_size, generator, extras={MC_RETURN: -math.inf}
            )
            critic = self._critic_step(batch, generator)
            self.target.update()
            log.append((*critic, *self._actor_step(batch.obs, generator)))
            self.step += 1
        error, penalty, q, actor_loss, entropy = (torch.stack(values).mean() for values in zip(*log, strict=True))
        return CalQLMetrics(error, penalty, q, actor_loss, entropy, self.temperature.alpha)

    def _critic_step(self, batch: Transitions, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        c = self.config
        with torch.no_grad():
            proposals = self._draw(batch.next_obs, c.target_actions, generator).action
            value = clipped_double_q(self.target.module.each_of(batch.next_obs, proposals)).amax(0)
            target = td_target(
                reward=c.reward_scale * batch.reward, terminated=batch.terminated, next_value=value, gamma=c.gamma
            )
        q = self.critic(batch.obs, batch.action)
        error = td_loss(q=q, target=target)
        penalty = self._penalty(batch, q, generator) if c.penalty > 0.0 else torch.zeros_like(error)
        self.critic_optimizer.zero_grad(set_to_none=True)
        (error + c.penalty * penalty).backward()
        self.critic_optimizer.guarded_step()
        return error.detach(), penalty.detach(), q.detach().mean()

    def _penalty(self, batch: Transitions, q_data: Tensor, generator: torch.Generator) -> Tensor:
        c = self.config
        with torch.no_grad():
            here, there = (self._draw(obs, c.policy_actions, generator) for obs in (batch.obs, batch.next_obs))
            shape = (c.random_actions, *here.action.shape[1:])
            device = here.action.device
            uniform = torch.rand(shape, generator=generator, device=device) * 2.0 - 1.0
        # All of them are actions in s: those drawn for s' are merely other proposals, as in CQL.
        q = self.critic.each_of(batch.obs, torch.cat([uniform, here.action, there.action]))
        return conservative_penalty(
            q_data=q_data,
            q_random=q[:, : c.random_actions],
            q_policy=q[:, c.random_actions :],
            log_prob=torch.cat([here.log_prob, there.log_prob]),
            floor=c.reward_scale * batch.extras[MC_RETURN],
            dims=self.dims,
        )

    def _actor_step(self, obs: Observation, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        action, log_prob = self.policy.rsample(self.policy.encode(obs), generator)
        q = clipped_double_q(self.critic(obs, action))
        loss = soft_actor_loss(q=q, log_prob=log_prob, alpha=self.temperature.alpha)
        self.actor_optimizer.zero_grad(set_to_none=True)
        loss.backward()  # also fills the critics' gradients, which their next step clears
        self.actor_optimizer.guarded_step()
        self.temperature.update(log_prob)
        return loss.detach(), -log_prob.detach().mean()

    def _draw(self, obs: Observation, count: int, generator: torch.Generator) -> Drawn:
        """``count`` chunks for every observation: action [M, B, H, A], log_prob [M, B]."""
        return self.policy.rsample(self.policy.encode(obs).expand(count, -1, -1), generator)

    def state_dict(self) -> dict[str, Any]:
        """Optimisers, all target critics, alpha and counter; weights of policy and critic belong to the modules."""
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
