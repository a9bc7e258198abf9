"""A simulator and policies whose every outcome can be worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robopo.rollout.fit import ActorSpec
from sims.base import BoolArray, Feature, FloatArray, Seed, SimSpec, Step


class LineSim:
    """A point on a line starts at ``seed % 10``; the action is its displacement; beyond 12 is success and the end.

    Truncation after 8 steps. Reward 1 on the step that succeeds. After an episode the point starts again at -100.
    """

    def __init__(self, num_envs: int, *, maskable: bool = True) -> None:
        self.num_envs = num_envs
        line = Feature((1,), ("x",), ("m",), (-100.0,), (100.0,))
        self.spec = SimSpec(
            name="line",
            engine="fake",
            observation={"state": line},
            action=Feature((1,), ("dx",), ("m",), (-5.0,), (5.0,)),
            action_mode="ee_delta",
            control_hz=10.0,
            max_episode_steps=8,
            restorable=False,
            maskable=maskable,
            instruction="go right",
        )
        self.x = np.zeros(num_envs, np.float32)
        self.age = np.zeros(num_envs, np.int64)
        self.calls = 0

    def reset(self, seed: Seed = None, mask: BoolArray | None = None) -> dict[str, FloatArray]:
        self.x = (np.broadcast_to(np.asarray(seed), (self.num_envs,)) % 10).astype(np.float32)
        self.age[:] = 0
        return self._obs()

    def _obs(self) -> dict[str, FloatArray]:
        return {"state": self.x[:, None].copy()}

    def step(self, action: FloatArray, mask: BoolArray | None = None) -> Step:
        self.calls += 1
        active = np.ones(self.num_envs, np.bool_) if mask is None else mask
        self.x = np.where(active, self.x + action[:, 0], self.x).astype(np.float32)
        self.age += active
        final, success = self._obs(), active & (self.x > 12)
        truncated = active & ~success & (self.age >= 8)
        self.x = np.where(success | truncated, np.float32(-100), self.x)
        self.age = np.where(success | truncated, 0, self.age)
        info = {"success": success, "diverged": np.zeros(self.num_envs, np.bool_)}
        return Step(self._obs(), success.astype(np.float32), success, truncated, final, info)

    @property
    def success(self) -> BoolArray:
        return self.x > 12

    def state(self) -> dict[str, NDArray[Any]]:
        return {}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        raise NotImplementedError

    def render(
        self, env: int = 0, *, camera: str | None = None, width: int = 320, height: int = 240
    ) -> NDArray[np.uint8]:
        frame = np.full((height, width, 3), 40, np.uint8)
        column = int(np.clip((self.x[env] + 2) / 16 * width, 0, width - 8))
        frame[height // 2 - 4 : height // 2 + 4, column : column + 8] = 220
        return frame

    def close(self) -> None:
        pass


class Spec:
    """A policy's spec for LineSim."""

    def __init__(self, **changes: Any) -> None:
        values = {
            "obs": {"state": 1}, "action_dim": 1, "obs_steps": 2, "horizon": 4, "action_steps": 3,
            "control_hz": 10.0, "action_mode": "ee_delta", "task": "line",
        }  # fmt: skip
        self.__dict__.update({**values, **changes})


class Constant:
    """Moves by ``speed`` in every row and remembers what it was shown."""

    def __init__(self, speed: float = 1.0, **spec: Any) -> None:
        self.spec: ActorSpec = Spec(**spec)  # type: ignore[assignment]
        self.speed, self.seen, self.resets = speed, [], 0

    def reset(self) -> None:
        self.resets += 1

    def act(
        self, obs: Mapping[str, Tensor], *, deterministic: bool = True, generator: torch.Generator | None = None
    ) -> Tensor:
        self.seen.append(obs["state"].clone())
        return torch.full((len(obs["state"]), self.spec.horizon, 1), self.speed)


class Noisy(Constant):
    """Moves by its initial noise."""

    def act(  # type: ignore[override]
        self,
        obs: Mapping[str, Tensor],
        *,
        deterministic: bool = True,
        generator: torch.Generator | None = None,
        noise: Tensor | None = None,
    ) -> Tensor:
        assert noise is not None
        return 2.0 * noise + 1.0


class Drawing(Constant):
    """Moves by noise from the shared generator: what a policy without a noise argument does."""

    def act(
        self, obs: Mapping[str, Tensor], *, deterministic: bool = True, generator: torch.Generator | None = None
    ) -> Tensor:
        return 2.0 * torch.randn((len(obs["state"]), self.spec.horizon, 1), generator=generator) + 1.0
