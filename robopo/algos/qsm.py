"""Q-score matching (QSM): Psenka et al. 2024, arXiv 2312.11752, as a baseline of Ren et al. 2024 (DPPO).

The score of the policy is made proportional to the action gradient of Q: L = E |-eps_theta(a_t, t, s) - c grad_a Q|^2
at noised buffer actions a_t. Fast, and it overwrites what cloning taught.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from robopo.algos.denoising import check_learns_everywhere, check_ranges, explored, updates_for
from robopo.algos.stepping import GuardedAdamW
from robopo.algos.twin_q import TwinQ
from robopo.critics.q_ensemble import QEnsemble
from robopo.data.replay import ReplayBuffer, Transitions
from robopo.errors import ConfigError
from robopo.losses.q import action_gradient
from robopo.policies.base import PolicySpec
from robopo.policies.chunk_policy import ChunkPolicy
from robopo.processes.base import DiffusionProcess, Prediction
from robopo.types import Observation


@dataclass(frozen=True, slots=True)
class QSMConfig:
    """Defaults: Robomimic states of Ren et al. 2024."""

    gamma: float = 0.999
    """Discount per decision."""
    grad_coef: float = 10.0
    """c, the factor on the action gradient: the inverse temperature of the policy that is aimed at."""
    actor_lr: float = 1e-5
    """AdamW's learning rate of the policy; 1e-4 on locomotion."""
    critic_lr: float = 1e-3
    """AdamW's learning rate of Q."""
    tau: float = 0.005
    """Rate at which the target Q follows."""
    batch_size: int = 1000
    """Decisions per gradient step."""
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
        if not self.grad_coef > 0.0:
            raise ConfigError(f"grad_coef={self.grad_coef}: must be positive")


class QSMMetrics(NamedTuple):
    """Means over the gradient steps of one iteration, on the device; the actor's are 0 while Q warms up."""

    actor_loss: Tensor
    q_loss: Tensor
    mean_q: Tensor
    action_grad: Tensor


class QSM:
    """config -> explore, update -> state_dict. ``acting`` is the policy to evaluate and to export."""

    def __init__(self, policy: ChunkPolicy, critic: QEnsemble, config: QSMConfig | None = None) -> None:
        """Raises ConfigError for a flow, or a diffusion that predicts clean actions: neither has a score as output."""
        check_learns_everywhere(policy, "qsm")
        process = policy.process
        if not isinstance(process, DiffusionProcess):
            raise ConfigError(
                f"qsm fits the score of a diffusion, this policy is a {process.kind.value}: "
                "use policy=diffusion_mlp or diffusion_unet, or another algorithm"
            )
        if process.config.prediction is not Prediction.NOISE:
            raise ConfigError(
                f"qsm fits the predicted noise, this policy has prediction={process.config.prediction.value}: "
                "use prediction=noise, or another algorithm"
            )
        c = self.config = QSMConfig() if config is None else config
        self.acting, self._process = policy, process
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

    def update(self, buffer: ReplayBuffer, *, updates: int, generator: torch.Generator) -> QSMMetrics:
        """Take ``updates`` steps of Q and, after the warm-up, of the policy."""
        learns = self._iterations >= self.config.critic_warmup_iterations
        steps = [
            self._step(buffer.sample(self.config.batch_size, generator), learns, generator) for _ in range(updates)
        ]
        self._iterations += 1
        return QSMMetrics(*torch.stack(steps).mean(0).unbind())

    def actor_loss(self, batch: Transitions, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Score-matching loss, a scalar with a graph, and the mean norm of the action gradients, detached."""
        clean, process = batch.action, self._process
        level = process.draw_levels(len(clean), generator)
        noise = torch.randn(clean.shape, generator=generator, device=clean.device, dtype=clean.dtype)
        x = process.add_noise(clean, noise, level)
        with torch.no_grad():
            cond = self.q.critic.encode(batch.obs)
        gradient = action_gradient(lambda a: self.q.critic.score(cond, a).mean(0), x)
        predicted = self.acting.net(x, process.network_time(level), self.acting.encode(batch.obs))
        # The rows that don't run have no gradient: pulling their noise to 0 would only blur them.
        rows = self.acting.spec.action_steps
        error = (-predicted - self.config.grad_coef * gradient)[:, :rows]
        return error.square().mean(), gradient.flatten(1).norm(dim=1).mean()

    def _step(self, batch: Transitions, learns: bool, generator: torch.Generator) -> Tensor:
        _, next_action = explored(self.acting, batch.next_obs, generator)
        next_value = self.q.target_value(batch.next_obs, next_action)
        q_loss = self.q.step(batch, next_value)
        loss = size = q_loss.new_zeros(())
        if learns:
            loss, size = self.actor_loss(batch, generator)
            self.actor_optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.actor_optimizer.guarded_step(max_grad_norm=self.config.max_grad_norm)
        return torch.stack([loss.detach(), q_loss, next_value.mean(), size])

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
