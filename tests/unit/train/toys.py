"""A whole on-policy and a cloning run in a few lines: real optimiser, real generators, a stateful toy simulator."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from robopo.policies.normalizer import MinMaxNormalizer
from robopo.policies.running_stats import RunningObsStats
from robopo.train.seeding import SeedTree
from robopo.train.stages import CloningStage, OnPolicyStage
from robopo.types import RolloutBatch

E, D = 3, 2


@dataclass(frozen=True)
class ToyStats:
    env_steps: int
    mean_return: float
    episodes: tuple[int, ...] = (0, 1)
    success_rate: float = float("nan")
    mean_length: float = 4.0
    diverged: int = 0


class ToyCollector:
    """A drifting state per environment, pushed by the policy's output and by the simulator's own noise."""

    def __init__(self, policy: nn.Linear, seeds: SeedTree) -> None:
        self._policy = policy
        self._rng = seeds.numpy("sim")
        self._position = np.zeros((E, D))
        self.stats: ToyStats | None = None
        self.poison_at = -1
        self._calls = 0

    def collect(self, num_decisions: int, generator: torch.Generator) -> RolloutBatch:
        rows = []
        for _ in range(num_decisions):
            obs = torch.from_numpy(self._position.copy()).float()
            with torch.no_grad():
                action = self._policy(obs) + torch.randn(E, D, generator=generator)
            self._position = self._position + 0.1 * action.numpy() + self._rng.normal(size=(E, D))
            rows.append(obs)
        obs = torch.stack(rows)[:, :, None]  # [T, E, 1, D]
        reward = -obs.square().sum((-1, -2))  # [T, E]
        if self._calls == self.poison_at:
            reward[0, 1] = torch.nan
        self._calls += 1
        flag = torch.zeros_like(reward, dtype=torch.bool)
        self.stats = ToyStats(reward.numel(), float(reward.sum()))
        latents = torch.zeros(num_decisions, E, 2, 1, D)
        log_probs = torch.zeros(num_decisions, E, 1)
        return RolloutBatch({"state": obs}, {"state": obs}, latents, log_probs, reward, flag, flag, flag)

    def state_dict(self) -> dict[str, Any]:
        return {"position": self._position.copy(), "rng": self._rng.bit_generator.state, "calls": self._calls}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._position, self._calls = state["position"], state["calls"]
        self._rng.bit_generator.state = state["rng"]


class ToyAlgorithm:
    """AdamW, a running scale and a counter: one of each kind of state."""

    def __init__(self, policy: nn.Linear) -> None:
        self._policy = policy
        self._optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-2)
        self._scale, self._count = np.float64(1.0), 0

    def update(self, batch: RolloutBatch, *, generator: torch.Generator) -> dict[str, Any]:
        obs = batch.obs["state"].reshape(-1, D)
        self._scale = 0.9 * self._scale + 0.1 * np.float64(batch.reward.abs().mean())
        for index in torch.randperm(len(obs), generator=generator).split(4):
            self._step(obs[index], -obs[index] / float(self._scale))
        self._count += 1
        return {"loss": self._policy.weight.detach().square().sum(), "per_step": torch.arange(2.0)}

    def _step(self, x: Tensor, y: Tensor) -> Tensor:
        loss = (self._policy(x) - y).square().mean()
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return loss.detach()

    def state_dict(self) -> dict[str, Any]:
        return {"optimizer": self._optimizer.state_dict(), "scale": self._scale, "count": self._count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._optimizer.load_state_dict(state["optimizer"])
        self._scale, self._count = state["scale"], state["count"]


class ToyCloning(ToyAlgorithm):
    def update(self, obs: Any, action: Tensor, generator: torch.Generator, pad_mask: Any = None) -> dict[str, Any]:  # type: ignore[override]
        noise = 0.01 * torch.randn(action.shape, generator=generator)
        return {"loss": self._step(obs["state"], action + noise)}


class ToyWindows:
    def __init__(self) -> None:
        self._x = torch.randn(20, D, generator=torch.Generator().manual_seed(0))
        self.seen: list[int] = []

    def __len__(self) -> int:
        return len(self._x)

    def gather(self, index: Tensor) -> Any:
        from robopo.data.sampler import WindowBatch

        self.seen += index.tolist()
        x = self._x[index]
        return WindowBatch({"state": x}, 2 * x, torch.zeros(len(index), 1, dtype=torch.bool))


def toy_policy(seeds: SeedTree) -> nn.Linear:
    policy = nn.Linear(D, D)
    with torch.no_grad():
        policy.weight.normal_(generator=seeds.torch("init"))
        policy.bias.zero_()
    return policy


def on_policy_stage(seed: int = 0, *, poison_at: int = -1, statistics: bool = False) -> OnPolicyStage:
    seeds = SeedTree(seed)
    policy = toy_policy(seeds)
    collector = ToyCollector(policy, seeds)
    collector.poison_at = poison_at
    normalizer = MinMaxNormalizer({"state": (-torch.ones(D), torch.ones(D))})
    return OnPolicyStage(
        collector=collector,
        algorithm=ToyAlgorithm(policy),
        modules={"policy": policy, "normalizer": normalizer},
        num_decisions=4,
        sample_generator=seeds.torch("sample"),
        update_generator=seeds.torch("update"),
        export=export_of(policy),
        observation_stats=RunningObsStats(normalizer, ["state"]) if statistics else None,
    )


def on_policy_stage_with_statistics() -> OnPolicyStage:
    return on_policy_stage(statistics=True)


def cloning_stage(seed: int = 0, windows: ToyWindows | None = None) -> CloningStage:
    seeds = SeedTree(seed)
    policy = toy_policy(seeds)
    return CloningStage(
        windows=windows or ToyWindows(),
        algorithm=ToyCloning(policy),
        modules={"policy": policy},
        batch_size=8,
        updates_per_iteration=3,
        order_generator=seeds.torch("order"),
        noise_generator=seeds.torch("noise"),
        export=export_of(policy),
    )


def export_of(policy: nn.Linear) -> Any:
    def export(folder: Path) -> None:
        (folder / "config.json").write_text(json.dumps({"weight": policy.weight.tolist()}))

    return export
