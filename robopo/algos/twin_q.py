"""The critic of the off-policy diffusion methods: heads, their slow copy, their optimiser."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from robopo.algos.stepping import GuardedAdamW
from robopo.critics.q_ensemble import QEnsemble
from robopo.data.replay import Transitions
from robopo.errors import ConfigError
from robopo.losses.q import clipped_double_q, td_loss, td_target
from robopo.nn.target import TargetNetwork
from robopo.types import Observation


class TwinQ:
    """Clipped double Q learning (Fujimoto et al. 2018, arXiv 1802.09477) on decisions. The weights are the critic's."""

    def __init__(self, critic: QEnsemble, *, lr: float, tau: float, gamma: float, reward_scale: float = 1.0) -> None:
        if critic.config.heads < 2:
            raise ConfigError(f"the critic has {critic.config.heads} head: clipped double Q needs 2 or more")
        self.critic, self.gamma, self.reward_scale = critic, gamma, reward_scale
        self.target = TargetNetwork(critic, tau)
        self.optimizer = GuardedAdamW(critic.parameters(), lr=lr)

    @torch.no_grad()
    def target_value(self, obs: Observation, action: Tensor) -> Tensor:
        """Smallest head of the slow copy, [B]."""
        return clipped_double_q(self.target.module(obs, action))

    def smallest(self, obs: Observation, action: Tensor) -> Tensor:
        """Smallest head, [B], with a graph."""
        return clipped_double_q(self.critic(obs, action))

    def step(self, batch: Transitions, next_value: Tensor) -> Tensor:
        """One gradient step towards r + gamma V(s') of all heads; then the copy follows. The loss, detached."""
        target = td_target(
            reward=self.reward_scale * batch.reward,
            terminated=batch.terminated,
            next_value=next_value,
            gamma=self.gamma,
        )
        loss = td_loss(q=self.critic(batch.obs, batch.action), target=target)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.guarded_step()
        self.target.update()
        return loss.detach()

    def state_dict(self) -> dict[str, Any]:
        """Optimiser and slow copy; the critic's weights belong to the run's modules."""
        return {"optimizer": self.optimizer.state_dict(), "target": self.target.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state_dict()``."""
        self.optimizer.load_state_dict(dict(state["optimizer"]))
        self.target.load_state_dict(state["target"])
