"""Behaviour cloning: fits a policy's network to demonstrations and keeps an average of its weights.

For a diffusion policy the loss is the denoising loss of Ho et al. 2020; afterwards the averaged weights are used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from robopo.algos.learning_rate import warmup_cosine
from robopo.errors import ConfigError
from robopo.nn.ema import EMA
from robopo.types import Observation


@dataclass(frozen=True, slots=True)
class BCConfig:
    """Optimisation of behaviour cloning. Defaults: Robomimic states of Ren et al. 2024, with a warm-up in steps."""

    lr: float = 1e-4
    """Peak learning rate of AdamW."""
    min_lr: float = 1e-5
    """Learning rate at step 0 and at the end of the cosine; not above ``lr``."""
    warmup_steps: int = 500
    """Gradient steps of linear rise from ``min_lr`` to ``lr``."""
    steps: int = 20_000
    """Gradient steps of a whole run: where the cosine ends. It stays at ``min_lr`` after that."""
    batch_size: int = 256
    """Windows per gradient step."""
    weight_decay: float = 1e-6
    """AdamW's decoupled weight decay."""
    ema_decay: float = 0.995
    """Decay of the averaged weights per gradient step, reached through a warm-up."""
    grad_clip: float | None = 1.0
    """Bound on the gradient's norm; None: no bound."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.min_lr <= self.lr or self.lr <= 0.0:
            raise ConfigError(f"lr={self.lr}, min_lr={self.min_lr}: expected 0 <= min_lr <= lr and lr > 0")
        if self.steps < 1 or not 0 <= self.warmup_steps < self.steps:
            raise ConfigError(
                f"steps={self.steps}, warmup_steps={self.warmup_steps}: expected 0 <= warmup_steps < steps"
            )
        if self.batch_size < 1:
            raise ConfigError(f"batch_size={self.batch_size}: at least 1 is needed")
        if self.weight_decay < 0.0:
            raise ConfigError(f"weight_decay={self.weight_decay}: must not be negative")
        if not 0.0 <= self.ema_decay < 1.0:
            raise ConfigError(f"ema_decay={self.ema_decay}: expected 0 <= ema_decay < 1")
        if self.grad_clip is not None and self.grad_clip <= 0.0:
            raise ConfigError(f"grad_clip={self.grad_clip}: must be positive, or null for no bound")


class ClonablePolicy(Protocol):
    """What behaviour cloning needs of a policy: the network that learns, and its loss."""

    @property
    def net(self) -> nn.Module: ...

    def bc_loss(
        self, obs: Observation, action: Tensor, generator: torch.Generator | None, pad_mask: Tensor | None = None
    ) -> Tensor: ...


class BCMetrics(NamedTuple):
    """Of one gradient step, scalars on the learner's device. grad_norm: before clipping."""

    loss: Tensor
    grad_norm: Tensor
    lr: Tensor


class BC:
    """One gradient step per ``update``; ``finish`` puts the averaged weights into the policy."""

    def __init__(self, policy: ClonablePolicy, config: BCConfig | None = None) -> None:
        """policy: already on its device; its ``net`` is trained in place."""
        self.policy = policy
        self.config = BCConfig() if config is None else config
        self.ema = EMA(policy.net, self.config.ema_decay)
        self.step = 0
        self._optimizer = torch.optim.AdamW(
            policy.net.parameters(), lr=self.config.lr, weight_decay=self.config.weight_decay
        )

    @property
    def learning_rate(self) -> float:
        """Of the next gradient step."""
        c = self.config
        if self.step >= c.steps:
            return c.min_lr
        return warmup_cosine(self.step, low=c.min_lr, high=c.lr, warmup=c.warmup_steps, cycle=c.steps)

    def update(
        self, obs: Observation, action: Tensor, generator: torch.Generator | None, pad_mask: Tensor | None = None
    ) -> BCMetrics:
        """Take one gradient step.

        obs: entries [B, To, D]; action [B, H, A]; physical units. pad_mask [B, H]: True where a row is padding.
        generator: of the policy's device, draws levels and noise.
        """
        lr = self.learning_rate
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        loss = self.policy.bc_loss(obs, action, generator, pad_mask)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        bound = float("inf") if self.config.grad_clip is None else self.config.grad_clip
        grad_norm = nn.utils.clip_grad_norm_(self.policy.net.parameters(), bound)
        self._optimizer.step()
        self.ema.update()
        self.step += 1
        return BCMetrics(loss.detach(), grad_norm.detach(), loss.new_tensor(lr))

    def finish(self) -> None:
        """Overwrite the policy's network with the averaged weights; training may not go on afterwards."""
        self.ema.copy_to(self.policy.net)

    def state_dict(self) -> dict[str, Any]:
        """Optimiser, average and step. The network's own weights belong to the policy's state."""
        return {"optimizer": self._optimizer.state_dict(), "ema": self.ema.state_dict(), "step": self.step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state_dict()``; load the policy's weights as well."""
        self._optimizer.load_state_dict(dict(state["optimizer"]))
        self.ema.load_state_dict(state["ema"])
        self.step = int(state["step"])
