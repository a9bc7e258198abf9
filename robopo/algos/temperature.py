"""The weight of the entropy in a soft actor-critic, adjusted so that the policy keeps a wanted entropy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from robopo.algos.stepping import GuardedAdamW
from robopo.losses.soft_q import temperature_loss


class Temperature:
    """alpha = exp(log_alpha), learned by gradient descent (Haarnoja et al. 2018, arXiv 1812.05905, section 5)."""

    def __init__(self, *, initial: float, target_entropy: float, lr: float, device: torch.device) -> None:
        """initial: alpha at the start, positive. target_entropy: of the whole chunk, in nats."""
        self.target_entropy = target_entropy
        self.log_alpha = nn.Parameter(torch.tensor(math.log(initial), device=device))
        self._optimizer = GuardedAdamW([self.log_alpha], lr=lr)

    @property
    def alpha(self) -> Tensor:
        """A scalar, detached."""
        return self.log_alpha.detach().exp()

    def update(self, log_prob: Tensor) -> None:
        """One step; log_prob [B] of the policy's fresh actions."""
        loss = temperature_loss(log_alpha=self.log_alpha, log_prob=log_prob, target_entropy=self.target_entropy)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._optimizer.guarded_step()

    def state_dict(self) -> dict[str, Any]:
        """log_alpha and its optimiser."""
        return {"log_alpha": self.log_alpha.detach().clone(), "optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state_dict()``."""
        with torch.no_grad():
            self.log_alpha.copy_(state["log_alpha"])
        self._optimizer.load_state_dict(dict(state["optimizer"]))
