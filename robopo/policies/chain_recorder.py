"""Keeps what fine-tuning needs of a sampled chain."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from robopo.processes.chain import Step
from robopo.processes.exploration import ExplorationSteps
from robopo.types import DenoisingChain


class ChainRecorder:
    """Sees every step of one chain; keeps latents, moments and likelihoods of the last K'."""

    def __init__(
        self, steps: ExplorationSteps, ft_steps: int, log_prob: Callable[[Tensor, Tensor, Tensor], Tensor]
    ) -> None:
        """log_prob(x, mean, std) -> [B], reduced as the policy reduces."""
        self._steps, self._log_prob = steps, log_prob
        self._first = len(steps.active) - ft_steps
        self._latents: list[Tensor] = []
        self._means: list[Tensor] = []
        self._stds: list[Tensor] = []
        self._log_probs: list[Tensor] = []

    def __call__(self, step: Step) -> None:
        """Record one step, as ``run_chain`` wants it."""
        k = step.k
        if k < self._first:
            return
        # Scored with the table that updates gather from; a learned std is the one that was sampled with.
        std = step.std if self._steps.learned(k) else self._steps.score.at(k).std
        active = self._steps.active[k]
        self._latents.append(step.x_in)
        self._means.append(step.mean)
        self._stds.append(std)
        self._log_probs.append(
            self._log_prob(step.x_out, step.mean, std) if active else step.x_in.new_zeros(step.x_in.shape[0])
        )

    def chain(self, x: Tensor, places: Tensor | None) -> DenoisingChain:
        """The chain that ends in x [B, H, A]; places [B, S]: where each chunk had noise, None: wherever steps have."""
        batch = x.shape[0]
        latents = torch.stack([*self._latents, x], dim=1)
        if not self._means:
            return DenoisingChain(latents, x.new_zeros(batch, 0))
        scores, active = torch.stack(self._log_probs, dim=1), None
        if places is not None:
            active = places[:, self._first :]
            scores = torch.where(active, scores, 0.0)
        elif not all(self._steps.active[self._first :]):
            active = torch.tensor(self._steps.active[self._first :], device=x.device).expand(batch, -1)
        # [B, 1, 1] where the table says the std, [B, H, A] where a network does
        shape = (batch, *max((std.shape[1:] for std in self._stds), key=lambda s: s.numel()))
        stds = torch.stack([std.expand(shape) for std in self._stds], dim=1)
        return DenoisingChain(latents, scores, torch.stack(self._means, dim=1), stds, active)
