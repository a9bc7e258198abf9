"""Implicit diffusion Q-learning (IDQL): Hansen-Estruch et al. 2023, arXiv 2304.10573, as a baseline of DPPO.

Values by expectile regression (Kostrikov et al. 2022, arXiv 2110.06169) on decisions that were taken; the policy is
cloned from the buffer without weights, and acts by the best of M samples under Q.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from robopo.algos.denoising import check_learns_everywhere, check_ranges, denoising_errors, updates_for
from robopo.algos.stepping import GuardedAdamW
from robopo.algos.twin_q import TwinQ
from robopo.critics.q_ensemble import QEnsemble
from robopo.data.replay import ReplayBuffer, Transitions
from robopo.errors import ConfigError
from robopo.losses.q import boltzmann_weights, choose, draw, expectile_loss, two_level_weights
from robopo.policies.base import PolicySpec
from robopo.policies.best_of_n import BestOfN
from robopo.policies.chunk_policy import ChunkPolicy
from robopo.types import Observation


class Exploration(StrEnum):
    """How a chunk is drawn among the M candidates while collecting."""

    TWO_LEVEL = "two_level"
    """Weight ``expectile_weight`` where Q > V, the rest elsewhere: the published code."""
    BOLTZMANN = "boltzmann"
    """Softmax of Q / temperature: the published text."""
    GREEDY = "greedy"
    """The best, as in evaluation."""


@dataclass(frozen=True, slots=True)
class IDQLConfig:
    """Defaults: Robomimic states of Ren et al. 2024."""

    gamma: float = 0.999
    """Discount per decision."""
    expectile: float = 0.8
    """Of Q over the buffer's actions that V estimates; 0.5 is the mean."""
    candidates: int = 10
    """M, chunks drawn per decision; 20 on locomotion."""
    exploration: Exploration = Exploration.TWO_LEVEL
    """How the collector chooses among them."""
    expectile_weight: float = 0.7
    """Weight of candidates with Q > V, 1 minus it elsewhere; of the two-level exploration."""
    temperature: float = 0.1
    """Of the Boltzmann exploration, in units of the scaled return."""
    actor_lr: float = 1e-5
    """AdamW's learning rate of the policy; 1e-4 on locomotion."""
    critic_lr: float = 1e-3
    """AdamW's learning rate of Q and V."""
    tau: float = 0.001
    """Rate at which the target Q follows."""
    batch_size: int = 1000
    """Decisions per gradient step."""
    replay_ratio: float = 128.0
    """How often the gradient steps use each new decision, on average."""
    reward_scale: float = 1.0
    """Factor on rewards; 0.01 on locomotion."""
    critic_warmup_iterations: int = 0
    """Iterations in which the values alone learn; 5 on locomotion."""
    max_grad_norm: float | None = None
    """Bound on the policy's gradient norm; None: no bound."""

    def __post_init__(self) -> None:
        check_ranges(self)
        for name in ("expectile", "expectile_weight"):
            if not 0.0 < (value := getattr(self, name)) < 1.0:
                raise ConfigError(f"{name}={value}: expected 0 < {name} < 1")
        if not self.temperature > 0.0:
            raise ConfigError(f"temperature={self.temperature}: must be positive")


class IDQLMetrics(NamedTuple):
    """Means over the gradient steps of one iteration, on the device; actor_loss 0 while the values warm up."""

    actor_loss: Tensor
    q_loss: Tensor
    v_loss: Tensor
    mean_q: Tensor
    mean_v: Tensor


class IDQL:
    """config -> explore, update -> state_dict. ``acting`` is the policy to evaluate and to export."""

    def __init__(
        self, policy: ChunkPolicy, critic: QEnsemble, value: nn.Module, config: IDQLConfig | None = None
    ) -> None:
        """value: observations with entries [B, To, D] -> V [B]."""
        check_learns_everywhere(policy, "idql")
        c = self.config = IDQLConfig() if config is None else config
        self.policy, self.value = policy, value
        self.q = TwinQ(critic, lr=c.critic_lr, tau=c.tau, gamma=c.gamma, reward_scale=c.reward_scale)
        self.actor_optimizer = GuardedAdamW(policy.net.parameters(), lr=c.actor_lr)
        self.value_optimizer = GuardedAdamW(value.parameters(), lr=c.critic_lr)
        # The slow copy judges, in evaluation as in exploration: one rule for both.
        self.acting = BestOfN(policy, self.q.target.module, c.candidates)
        self._iterations = 0

    @property
    def spec(self) -> PolicySpec:
        """The policy's."""
        return self.policy.spec

    @torch.no_grad()
    def explore(self, obs: Observation, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Entries [B, To, D] -> one of M exploring chunks [B, H, A], physical and normalised."""
        actions = self.acting.propose(obs, deterministic=False, generator=generator)
        q, c = self.acting.judge(obs, actions), self.config
        match c.exploration:
            case Exploration.TWO_LEVEL:
                index = draw(two_level_weights(q=q, value=self.value(obs), high=c.expectile_weight), generator)
            case Exploration.BOLTZMANN:
                index = draw(boltzmann_weights(q=q, temperature=c.temperature), generator)
            case Exploration.GREEDY:
                index = q.argmax(0)
        action = choose(actions, index)
        return self.acting.physical(action), action

    def num_updates(self, decisions: int) -> int:
        """Gradient steps after ``decisions`` new ones."""
        return updates_for(decisions, replay_ratio=self.config.replay_ratio, batch_size=self.config.batch_size)

    def update(self, buffer: ReplayBuffer, *, updates: int, generator: torch.Generator) -> IDQLMetrics:
        """Take ``updates`` steps of V, Q and, after the warm-up, of the policy."""
        learns = self._iterations >= self.config.critic_warmup_iterations
        steps = [
            self._step(buffer.sample(self.config.batch_size, generator), learns, generator) for _ in range(updates)
        ]
        self._iterations += 1
        return IDQLMetrics(*torch.stack(steps).mean(0).unbind())

    def _step(self, batch: Transitions, learns: bool, generator: torch.Generator) -> Tensor:
        target_q = self.q.target_value(batch.obs, batch.action)
        value: Tensor = self.value(batch.obs)
        v_loss = expectile_loss(target_q - value, self.config.expectile)
        self.value_optimizer.zero_grad(set_to_none=True)
        v_loss.backward()
        self.value_optimizer.guarded_step()
        with torch.no_grad():
            next_value = self.value(batch.next_obs)
        q_loss = self.q.step(batch, next_value)
        actor_loss = q_loss.new_zeros(())
        if learns:
            actor_loss = denoising_errors(self.policy, batch.obs, batch.action, generator).mean()
            self.actor_optimizer.zero_grad(set_to_none=True)
            actor_loss.backward()
            self.actor_optimizer.guarded_step(max_grad_norm=self.config.max_grad_norm)
        return torch.stack([actor_loss.detach(), q_loss, v_loss.detach(), target_q.mean(), value.detach().mean()])

    def state_dict(self) -> dict[str, Any]:
        """Optimisers, target and the count of iterations."""
        return {
            "q": self.q.state_dict(),
            "actor_optimizer": self.actor_optimizer.state_dict(),
            "value_optimizer": self.value_optimizer.state_dict(),
            "iterations": self._iterations,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state_dict()``; load the weights of policy, critic and value as well."""
        self.q.load_state_dict(state["q"])
        self.actor_optimizer.load_state_dict(dict(state["actor_optimizer"]))
        self.value_optimizer.load_state_dict(dict(state["value_optimizer"]))
        self._iterations = int(state["iterations"])
