"""Any VecSim as a gymnasium vector environment, for tools that speak gymnasium."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from sims.base import Feature, VecSim


def box(feature: Feature, *, bounded: bool) -> gymnasium.spaces.Box:
    """A feature as a Box; observations are unbounded, since noise and falls leave nominal ranges."""
    low = np.array(feature.low, dtype=feature.dtype) if bounded else -np.inf
    high = np.array(feature.high, dtype=feature.dtype) if bounded else np.inf
    return gymnasium.spaces.Box(low, high, shape=feature.shape, dtype=np.dtype(feature.dtype).type)


class GymnasiumVectorEnv(gymnasium.vector.VectorEnv[dict[str, NDArray[Any]], NDArray[Any], NDArray[Any]]):
    """SAME_STEP autoreset; the true last observation of an ended episode is ``info["final_obs"]``, masked by
    ``_final_obs``.
    """

    def __init__(self, sim: VecSim) -> None:
        self.sim = sim
        self.num_envs = sim.num_envs
        self.metadata = {
            "autoreset_mode": AutoresetMode.SAME_STEP,
            "render_modes": ["rgb_array"],
            "render_fps": sim.spec.control_hz,
        }
        self.render_mode = "rgb_array"
        entries: dict[str, gymnasium.Space[Any]] = {}
        for name, feature in sim.spec.observation.items():
            entries[name] = box(feature, bounded=False)
        self.single_observation_space = gymnasium.spaces.Dict(entries)
        self.single_action_space = box(sim.spec.action, bounded=True)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """options: ``reset_mask`` bool [E] resets a part, as in gymnasium."""
        mask = None if options is None else options.get("reset_mask")
        seeds = np.array(seed) if isinstance(seed, list) else seed
        return dict(self.sim.reset(seeds, mask)), {}

    def step(
        self, actions: NDArray[Any]
    ) -> tuple[dict[str, NDArray[Any]], NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """One control step of every environment."""
        step = self.sim.step(actions)
        done = step.terminated | step.truncated
        info = dict(step.info)
        if done.any():
            info["final_obs"], info["_final_obs"] = step.final_obs, done
        return step.obs, step.reward.astype(np.float64), step.terminated, step.truncated, info

    def render(self) -> tuple[NDArray[Any], ...]:
        """One frame of each environment."""
        return tuple(self.sim.render(env) for env in range(self.num_envs))

    def close_extras(self, **_kwargs: Any) -> None:
        """Called once by ``close``."""
        self.sim.close()
