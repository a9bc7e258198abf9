"""Collects on-policy batches from episodes that go on from one iteration to the next."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

from robopo.errors import ConfigError
from robopo.policies.base import Policy
from robopo.rollout.episodes import RolloutStats
from robopo.rollout.runner import ChunkRunner, stack
from robopo.types import RolloutBatch
from sims.base import Seed, VecSim


class Collector:
    """Steps ``sim`` with ``policy``; episodes go on from one ``collect`` to the next."""

    def __init__(
        self, sim: VecSim, policy: Policy, *, device: torch.device | str = "cpu", also: Collection[str] = ()
    ) -> None:
        """device: where the policy computes and the batches lie. also: entries of ``sim`` that the critic sees."""
        self._runner = ChunkRunner(sim, policy, device=device, also=also)
        self.sim, self.policy, self.device = sim, policy, self._runner.device
        self.stats: RolloutStats | None = None
        """Of the last ``collect``."""

    @property
    def env_steps(self) -> int:
        """Control steps since construction (or since the run began, after a resume)."""
        return self._runner.env_steps

    def reset(self, seed: Seed = None) -> None:
        """Start new episodes everywhere; unfinished ones are dropped. ``seed`` as in ``VecSim.reset``."""
        self._runner.reset(seed)

    @torch.no_grad()
    def collect(self, num_decisions: int, generator: torch.Generator) -> RolloutBatch:
        """Run ``num_decisions`` (T) decisions in every environment. generator: of the policy's device."""
        if num_decisions < 1:
            raise ConfigError(f"num_decisions={num_decisions}: expected 1 or more")
        if not self._runner.started:
            self._runner.reset()
        self._runner.begin()
        batch = stack([self._runner.decide(generator) for _ in range(num_decisions)], self.device)
        self.stats = self._runner.summary(num_decisions * self.sim.num_envs)
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides the next batch, as arrays; the simulator's part only where it can be restored."""
        return self._runner.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly from ``state_dict()``; with a simulator that can't be restored, from new episodes."""
        self._runner.load_state_dict(state)
