"""Environments that misbehave inside a worker, by name so that worker processes find them."""

from __future__ import annotations

import os
import time

import numpy as np

from sims.robosuite_env import Layout, Recipe
from sims.robosuite_tasks import object_feature


class Toy:
    """As small as an environment can be; the first action element tells a step what to do."""

    def __init__(self, recipe: Recipe) -> None:
        sensors = recipe.task.object
        size = 9 * recipe.task.num_arms + object_feature(sensors).shape[0]
        self.layout = Layout(sensors=sensors, state_size=3, obs_size=size, cameras=("agentview",))

    def reset(self, state: np.ndarray, seed: int) -> np.ndarray:
        state[:] = seed % 97, 0, 0
        return self._observe(state)

    def _observe(self, state: np.ndarray) -> np.ndarray:
        return np.full(self.layout.obs_size, state[0] + state[1], np.float32)

    def step(self, state: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, float, bool]:
        match round(float(action[0]) * 4):
            case 4:
                os._exit(3)
            case 3:
                time.sleep(1000)
            case 2:
                raise KeyError("inside robosuite")
        state[1] += 1
        return self._observe(state), 0.0, False

    def pictures(self) -> list[np.ndarray]:
        return []

    def frame(self, state: np.ndarray, camera: str | None, width: int, height: int) -> np.ndarray:
        return np.zeros((height, width, 3), np.uint8)

    def close(self) -> None:
        pass


class Broken(Toy):
    """Can't even be built."""

    def __init__(self, recipe: Recipe) -> None:
        raise OSError("no scene today")
