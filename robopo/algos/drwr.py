"""Reward-weighted regression of a denoising policy (DRWR), a baseline of Ren et al. 2024 (DPPO), arXiv 2409.00588.

Peters and Schaal 2007: act, weigh each decision by its exponentiated return, and imitate the weighted decisions. No
critic, no old data: L = E[min(exp(beta R), w_max) |denoising error|^2], R the standardised discounted reward to go.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from robopo.algos.denoising import DenoisingPolicy, check_learns_everywhere, check_ranges, denoising_errors
from robopo.algos.stepping import GuardedAdamW, minibatches, permutation
from robopo.losses.q import exponential_weights, reward_to_go, standardize
from robopo.types import RolloutBatch

log = logging.getLogger(__name__)

RETURN_EPS = 1e-3


@dataclass(frozen=True, slots=True)
class DRWRConfig:
    """Defaults: Robomimic states of Ren et al. 2024."""

    gamma: float = 0.999
    """Discount per decision."""
    beta: float = 10.0
    """Sharpness of the weights; with standardised returns 10 reaches ``max_weight`` at 0.46 standard deviations."""
    max_weight: float = 100.0
    """Bound on one decision's weight, w_max."""
    actor_lr: float = 1e-5
    """AdamW's learning rate; 1e-4 on locomotion."""
    epochs: int = 16
    """Passes over the decisions of an iteration."""
    batch_size: int = 1000
    """Decisions per gradient step."""
    max_grad_norm: float | None = None
    """Bound on the gradient's norm; None: no bound."""

    def __post_init__(self) -> None:
        check_ranges(self)


class DRWRMetrics(NamedTuple):
    """Of one iteration. used: share of the decisions whose episode ended. capped: share of those at ``max_weight``."""

    actor_loss: float | Tensor
    mean_weight: float | Tensor
    capped: float | Tensor
    used: float | Tensor
    grad_norm: float | Tensor


class DRWR:
    """config -> update -> state_dict. Works with diffusion and with flows: both regress on the chunk."""

    def __init__(self, policy: DenoisingPolicy, config: DRWRConfig | None = None) -> None:
        check_learns_everywhere(policy, "drwr")
        self.policy = policy
        self.config = DRWRConfig() if config is None else config
        self.optimizer = GuardedAdamW(policy.net.parameters(), lr=self.config.actor_lr)

    def update(self, batch: RolloutBatch, *, generator: torch.Generator) -> DRWRMetrics:
        """Imitate the weighted decisions of the episodes that ended; without one, nothing changes."""
        c = self.config
        to_go = reward_to_go(reward=batch.reward, terminated=batch.terminated, truncated=batch.truncated, gamma=c.gamma)
        use = to_go.finished if "use" not in batch.extras else to_go.finished & batch.extras["use"]
        chosen = use.flatten().nonzero().squeeze(1)  # [N] of the T * E decisions
        if len(chosen) == 0:
            log.warning(
                "no episode ended among %d decisions per environment: drwr learned nothing; raise num_decisions",
                len(batch.reward),
            )
            return DRWRMetrics(0.0, 0.0, 0.0, 0.0, 0.0)
        returns = standardize(to_go.returns.flatten()[chosen], eps=RETURN_EPS)
        weight = exponential_weights(returns, beta=c.beta, cap=c.max_weight)
        obs = {key: value.flatten(0, 1)[chosen] for key, value in batch.obs.items()}
        action = batch.latents[:, :, -1].flatten(0, 1)[chosen]
        losses: list[Tensor] = []
        norms: list[Tensor] = []
        for _ in range(c.epochs):
            order = permutation(len(chosen), generator, action.device)
            for index in minibatches(order, c.batch_size):
                rows = {key: value[index] for key, value in obs.items()}
                loss = (weight[index] * denoising_errors(self.policy, rows, action[index], generator)).mean()
                self.optimizer.zero_grad(set_to_none=True)
                loss.backward()
                norms.append(self.optimizer.guarded_step(max_grad_norm=c.max_grad_norm))
                losses.append(loss.detach())
        return DRWRMetrics(
            actor_loss=torch.stack(losses).mean(),
            mean_weight=weight.mean(),
            capped=(weight >= 0.999 * c.max_weight).float().mean(),
            used=use.float().mean(),
            grad_norm=torch.stack(norms).mean(),
        )

    def state_dict(self) -> dict[str, Any]:
        """The optimiser."""
        return {"optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state_dict()``; load the policy's weights as well."""
        self.optimizer.load_state_dict(dict(state["optimizer"]))
