"""Advantage-weighted regression of a denoising policy (DAWR), a baseline of Ren et al. 2024 (DPPO), arXiv 2409.00588.

Peng et al. 2019 (AWR), arXiv 1910.00177: a short buffer of recent decisions, a state value fitted to TD(lambda), and
imitation weighted by the exponentiated advantage: L = E[min(exp(beta A), w_max) |denoising error|^2].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from robopo.algos.denoising import (
    DenoisingPolicy,
    check_learns_everywhere,
    check_ranges,
    denoising_errors,
    updates_for,
)
from robopo.algos.stepping import GuardedAdamW
from robopo.losses.gae import GAE, gae
from robopo.losses.q import exponential_weights, standardize
from robopo.types import RolloutBatch

ADVANTAGE_EPS = 1e-6

type Rows = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class DAWRConfig:
    """Defaults: Robomimic states of Ren et al. 2024."""

    gamma: float = 0.999
    """Discount per decision, of the targets and of the advantages alike."""
    lam: float = 0.95
    """TD(lambda)."""
    beta: float = 10.0
    """Sharpness of the weights, on standardised advantages."""
    max_weight: float = 100.0
    """Bound on one decision's weight, w_max."""
    actor_lr: float = 1e-5
    """AdamW's learning rate of the policy; 1e-4 on locomotion."""
    critic_lr: float = 1e-3
    """AdamW's learning rate of the value."""
    batch_size: int = 1000
    """Decisions per gradient step."""
    replay_ratio: float = 64.0
    """How often the policy's steps use each new decision, on average."""
    critic_replay_ratio: float = 16.0
    """How often the value's steps use each new decision, on average; 4 is slower."""
    buffer_steps: int = 3000
    """Decisions per environment that are kept; 5000 on locomotion."""
    reward_scale: float = 1.0
    """Factor on rewards."""
    max_grad_norm: float | None = None
    """Bound on the policy's gradient norm; None: no bound."""

    def __post_init__(self) -> None:
        check_ranges(self)


class DAWRMetrics(NamedTuple):
    """Of one iteration. buffer: decisions learned from. capped: share of them at ``max_weight``."""

    actor_loss: float | Tensor
    critic_loss: float | Tensor
    mean_value: float | Tensor
    mean_weight: float | Tensor
    capped: float | Tensor
    buffer: float | Tensor
    grad_norm: float | Tensor


class DAWR:
    """config -> update -> state_dict. Keeps its short buffer, in time order, on the learner's device."""

    def __init__(self, policy: DenoisingPolicy, critic: nn.Module, config: DAWRConfig | None = None) -> None:
        """critic: observations with entries [B, To, D] -> value [B]."""
        check_learns_everywhere(policy, "dawr")
        self.policy, self.critic = policy, critic
        self.config = DAWRConfig() if config is None else config
        self.actor_optimizer = GuardedAdamW(policy.net.parameters(), lr=self.config.actor_lr)
        self.critic_optimizer = GuardedAdamW(critic.parameters(), lr=self.config.critic_lr)
        self._rows: Rows = {}  # [T, E, ...], the oldest first

    def update(self, batch: RolloutBatch, *, generator: torch.Generator) -> DAWRMetrics:
        """Take the new decisions in; fit the value to frozen targets; imitate by the value that came out."""
        c = self.config
        self._remember(batch)
        new, held = batch.reward.numel(), self._rows["reward"].numel()
        returns = self.targets().returns.flatten()  # before the first critic step, for all of them
        critic_steps = updates_for(new, replay_ratio=c.critic_replay_ratio, batch_size=c.batch_size)
        critic_losses = [self._critic_step(returns, self._draw(held, generator)) for _ in range(critic_steps)]
        advantage = standardize(self.targets().advantage.flatten(), eps=ADVANTAGE_EPS)
        weight = exponential_weights(advantage, beta=c.beta, cap=c.max_weight)
        losses: list[Tensor] = []
        norms: list[Tensor] = []
        for _ in range(updates_for(new, replay_ratio=c.replay_ratio, batch_size=c.batch_size)):
            index = self._draw(held, generator)
            error = denoising_errors(self.policy, self._obs("obs.", index), self._flat("action")[index], generator)
            loss = (weight[index] * error).mean()
            self.actor_optimizer.zero_grad(set_to_none=True)
            loss.backward()
            norms.append(self.actor_optimizer.guarded_step(max_grad_norm=c.max_grad_norm))
            losses.append(loss.detach())
        return DAWRMetrics(
            actor_loss=torch.stack(losses).mean(),
            critic_loss=torch.stack(critic_losses).mean(),
            mean_value=returns.mean(),
            mean_weight=weight.mean(),
            capped=(weight >= 0.999 * c.max_weight).float().mean(),
            buffer=float(held),
            grad_norm=torch.stack(norms).mean(),
        )

    @torch.no_grad()
    def targets(self) -> GAE:
        """Advantages and TD(lambda) returns [T, E] of the whole buffer under the present value.

        The last decision bootstraps from the value of what followed it, V(s'), as every other does.
        """
        rows, c = self._rows, self.config
        T, E = rows["reward"].shape
        index = torch.arange(T * E, device=rows["reward"].device)
        value: Tensor = self.critic(self._obs("obs.", index)).view(T, E)
        next_value: Tensor = self.critic(self._obs("next.", index)).view(T, E)
        return gae(
            reward=c.reward_scale * rows["reward"],
            value=value,
            next_value=next_value,
            terminated=rows["terminated"],
            truncated=rows["cut"],
            gamma=c.gamma,
            lam=c.lam,
        )

    def _remember(self, batch: RolloutBatch) -> None:
        new = {f"obs.{key}": value for key, value in batch.obs.items()}
        new |= {f"next.{key}": value for key, value in batch.next_obs.items()}
        new |= {"action": batch.latents[:, :, -1], "reward": batch.reward, "terminated": batch.terminated}
        new |= {"cut": batch.truncated, "first": batch.first}
        rows = {key: torch.cat([self._rows[key], value]) if self._rows else value for key, value in new.items()}
        rows = {key: value[-self.config.buffer_steps :] for key, value in rows.items()}
        # Where an episode opens, the decision before belongs to another one, even if it was dropped without an end.
        following = torch.cat([rows["first"][1:], torch.zeros_like(rows["first"][:1])])
        rows["cut"] = rows["cut"] | following
        self._rows = rows

    def _critic_step(self, returns: Tensor, index: Tensor) -> Tensor:
        loss = (self.critic(self._obs("obs.", index)) - returns[index]).square().mean()
        self.critic_optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.critic_optimizer.guarded_step()
        return loss.detach()

    def _draw(self, held: int, generator: torch.Generator) -> Tensor:
        """Numbers [batch_size] out of all T * E decisions."""
        index = torch.randint(held, (self.config.batch_size,), generator=generator, device=generator.device)
        return index.to(self._rows["reward"].device)

    def _flat(self, name: str) -> Tensor:
        return self._rows[name].flatten(0, 1)

    def _obs(self, prefix: str, index: Tensor) -> Rows:
        names = [name for name in self._rows if name.startswith(prefix)]
        return {name.removeprefix(prefix): self._flat(name)[index] for name in names}

    def state_dict(self) -> dict[str, Any]:
        """Optimisers and the buffer."""
        return {
            "actor_optimizer": self.actor_optimizer.state_dict(),
            "critic_optimizer": self.critic_optimizer.state_dict(),
            "rows": dict(self._rows),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state_dict()``; load the weights of policy and critic as well."""
        self.actor_optimizer.load_state_dict(dict(state["actor_optimizer"]))
        self.critic_optimizer.load_state_dict(dict(state["critic_optimizer"]))
        device = next(self.critic.parameters()).device
        self._rows = {name: value.to(device) for name, value in state["rows"].items()}
