"""A velocity-driven point that has to reach a goal: the whole VecSim contract in numpy, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sims.base import BoolArray, Feature, FloatArray, Seed, SimSpec, Step


def _feature(*names: str, unit: str, bound: float) -> Feature:
    size = len(names)
    return Feature((size,), names, (unit,) * size, (-bound,) * size, (bound,) * size)


class PointMass:
    """Position += dt * velocity (clipped to 1 m/s); reward 1 within ``radius`` of the goal.

    Observations: ``state`` [2] position, ``environment_state`` [2] goal. Episode n of environment i depends on
    (seed, i, n) alone. It reuses its output arrays between steps, as a simulator may.
    """

    def __init__(
        self,
        num_envs: int = 4,
        *,
        max_episode_steps: int = 20,
        radius: float = 0.1,
        terminate_on_success: bool = True,
        maskable: bool = True,
        restorable: bool = True,
    ) -> None:
        self._spec = SimSpec(
            name="point_mass",
            engine="numpy",
            observation={
                "state": _feature("x", "y", unit="m", bound=2.0),
                "environment_state": _feature("goal_x", "goal_y", unit="m", bound=2.0),
            },
            action=_feature("vx", "vy", unit="m/s", bound=1.0),
            action_mode="velocity",
            control_hz=10.0,
            max_episode_steps=max_episode_steps,
            restorable=restorable,
            maskable=maskable,
        )
        self.radius, self.terminate_on_success = radius, terminate_on_success
        self._position, self._goal = np.zeros((num_envs, 2)), np.zeros((num_envs, 2))
        self._keys = np.stack([np.zeros(num_envs, np.int64), np.arange(num_envs)], axis=1)
        self._episode, self._steps = np.zeros(num_envs, np.int64), np.zeros(num_envs, np.int64)
        self._return = np.zeros(num_envs)
        self.calls = 0
        self._obs = {key: np.zeros((num_envs, 2), np.float32) for key in self._spec.observation}
        self._final_obs = {key: np.zeros((num_envs, 2), np.float32) for key in self._spec.observation}

    @property
    def num_envs(self) -> int:
        return len(self._position)

    @property
    def spec(self) -> SimSpec:
        return self._spec

    @property
    def success(self) -> BoolArray:
        return np.linalg.norm(self._position - self._goal, axis=1) < self.radius

    def reset(self, seed: Seed = None, mask: BoolArray | None = None) -> dict[str, FloatArray]:
        chosen = np.ones(self.num_envs, bool) if mask is None else np.asarray(mask, bool)
        if isinstance(seed, int):
            self._keys[chosen] = np.stack([np.full(self.num_envs, seed), np.arange(self.num_envs)], axis=1)[chosen]
            self._episode[chosen] = 0
        elif seed is not None:
            self._keys[chosen] = np.stack([np.asarray(seed), np.full(self.num_envs, -1)], axis=1)[chosen]
            self._episode[chosen] = 0
        self._begin(np.flatnonzero(chosen))
        return self._observe(self._obs)

    def step(self, action: FloatArray, mask: BoolArray | None = None) -> Step:
        self.calls += 1
        active = np.ones(self.num_envs, bool) if mask is None else np.asarray(mask, bool)
        move = np.clip(np.asarray(action, np.float64), -1.0, 1.0) * active[:, None]
        self._position += move / self._spec.control_hz
        self._steps += active
        success = self.success & active
        reward = success.astype(np.float32)
        self._return += reward
        terminated = success if self.terminate_on_success else np.zeros(self.num_envs, bool)
        truncated = active & ~terminated & (self._steps >= self._spec.max_episode_steps)
        final_obs = self._observe(self._final_obs)
        info = {
            "success": success,
            "diverged": np.zeros(self.num_envs, bool),
            "episode_return": self._return.copy(),
            "episode_length": self._steps.copy(),
        }
        self._begin(np.flatnonzero(terminated | truncated))
        return Step(self._observe(self._obs), reward, terminated, truncated, final_obs, info)

    def state(self) -> dict[str, NDArray[Any]]:
        named = {"position": self._position, "goal": self._goal, "keys": self._keys, "return": self._return}
        named |= {"episode": self._episode, "steps": self._steps}
        return {name: array.copy() for name, array in named.items()}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._position, self._goal = np.array(state["position"]), np.array(state["goal"])
        self._keys, self._return = np.array(state["keys"]), np.array(state["return"])
        self._episode, self._steps = np.array(state["episode"]), np.array(state["steps"])

    def render(
        self, env: int = 0, *, camera: str | None = None, width: int = 320, height: int = 240
    ) -> NDArray[np.uint8]:
        return np.zeros((height, width, 3), np.uint8)

    def close(self) -> None:
        """Nothing to release."""

    def _begin(self, envs: NDArray[np.integer[Any]]) -> None:
        for env in envs.tolist():
            key, index = self._keys[env].tolist()
            rng = np.random.default_rng([key, index + 1, int(self._episode[env])])
            self._position[env] = rng.uniform(-0.2, 0.2, 2)
            angle = rng.uniform(0.0, 2.0 * np.pi)
            self._goal[env] = 0.8 * np.array([np.cos(angle), np.sin(angle)])
        self._episode[envs] += 1
        self._steps[envs] = 0
        self._return[envs] = 0.0

    def _observe(self, target: dict[str, NDArray[np.float32]]) -> dict[str, FloatArray]:
        target["state"][:] = self._position
        target["environment_state"][:] = self._goal
        return dict(target)
