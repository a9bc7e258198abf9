"""Environments of others: any DirectRLEnv or ManagerBasedRLEnv, by gym id or by ``module:Class``."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import random
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from sims.base import BoolArray, Feature, FloatArray, Seed, SimSpec, image_feature
from sims.episode_book import EpisodeBook
from sims.isaaclab_engine import check_assets, close_leftover, load, quietly

UNBOUNDED = 1.0
"""Bound of an action element that the environment leaves unbounded, as Isaac Lab's learners assume."""


class ForeignTask:
    """An environment written for Isaac Lab, as ``IsaacLabVec`` drives it (see ``IsaacTask``)."""

    def __init__(
        self,
        task: str,
        num_envs: int,
        *,
        device: str,
        seed: int,
        known: tuple[str, ...],
        max_episode_steps: int | None = None,
        cfg_overrides: Mapping[str, Any] | None = None,
    ) -> None:
        """known: names to suggest beside the registered ones. Raises ValueError, FileNotFoundError, ImportError."""
        make, cfg = _class_and_cfg(task) if ":" in task else _registered(task, num_envs, device, known)
        cfg.scene.num_envs, cfg.sim.device, cfg.seed, cfg.compute_final_obs = num_envs, device, seed, True
        for path, value in (cfg_overrides or {}).items():
            override(cfg, path, value)
        step_s = cfg.sim.dt * cfg.decimation
        if max_episode_steps is not None:
            # Isaac Lab rounds up: half a step less can't become one too many.
            cfg.episode_length_s = (max_episode_steps - 0.5) * step_s
        check_assets(cfg.scene)
        self.name, self.book = task, EpisodeBook(num_envs)
        self.book.reseed(seed, np.arange(num_envs))
        try:
            with quietly():
                self.env: Any = make(cfg)
        except BaseException:
            close_leftover()
            raise
        self.active = np.ones(num_envs, dtype=bool)
        self.diverged = np.zeros(num_envs, dtype=bool)
        self._success_key: str | None = None
        space = self.env.single_action_space
        if not isinstance(space, Box):
            self.env.close()
            raise ValueError(f"{task} takes {space} actions: only Box is supported")  # noqa: TRY004
        self._low, self._high = bounds(space)
        self._step_s = float(step_s)

    def spec(self) -> SimSpec:
        """Names, bounds, rates; from one observation, since dictionaries may hold more than the spaces say."""
        with quietly():
            obs, extras = self.env.reset()
        self._success_key = next((key for key in ("success", "is_success") if key in extras), None)
        entries = self.entries(obs)
        size = len(self._low)
        names = tuple(f"action_{i}" for i in range(size))
        return SimSpec(
            name=self.name,
            engine="isaaclab",
            observation={name: described(name, array) for name, array in entries.items()},
            action=Feature((size,), names, ("",) * size, tuple(self._low.tolist()), tuple(self._high.tolist())),
            action_mode="native",
            control_hz=round(1.0 / self._step_s, 6),
            max_episode_steps=int(self.env.max_episode_length),
            restorable=False,
            maskable=False,
            independent=False,
            has_success=self._success_key is not None,
        )

    def seed(self, seed: Seed, rows: NDArray[np.int64]) -> None:
        """Isaac Lab's environments share global generators: an array of seeds becomes one number, its hash."""
        self.book.reseed(seed, rows)
        if seed is None:
            return
        value = int(seed) if np.ndim(seed) == 0 else digest(np.asarray(seed))
        state = random.getstate()
        with quietly():
            self.env.seed(value % 2**31)
        random.setstate(state)  # Python's own generator belongs to the caller

    def hold(self) -> FloatArray:
        """[E, A] zeros: what an environment makes of them is its own affair."""
        return np.tile(np.clip(np.zeros_like(self._low), self._low, self._high), (self.book.num_envs, 1))

    def entries(self, obs: Mapping[str, Any]) -> dict[str, FloatArray]:
        """Observation groups -> copies of entries [E, D]: ``policy`` becomes ``state``, pictures ``image_<name>``."""
        found: dict[str, FloatArray] = {}
        for group, value in obs.items():
            parts = value.items() if isinstance(value, Mapping) else ((None, value),)
            for part, tensor in parts:
                name = "state" if group == "policy" and part is None else part or group
                array = tensor.detach().cpu().numpy()
                if array.ndim == 4 and array.dtype == np.uint8 and array.shape[-1] >= 3:
                    found[f"image_{name}"] = array[..., :3].copy()
                else:
                    found[name] = array.reshape(len(array), -1).astype(np.float32)
        return found

    def success(self) -> BoolArray:
        """[E] unknown between steps: False."""
        return np.zeros(self.book.num_envs, dtype=bool)

    def last_success(self, extras: Mapping[str, Any]) -> BoolArray:
        """[E] what ``extras`` says of the step, False where it says nothing."""
        value = extras.get(self._success_key) if self._success_key else None
        if value is None:
            return self.success()
        return np.asarray(value.cpu() if hasattr(value, "cpu") else value, dtype=bool).reshape(-1)

    def frame_camera(self, camera: str | None) -> Any:
        """A camera sensor of the scene, default the first. RuntimeError where there is none."""
        kind = load("isaaclab.sensors").Camera
        sensors = {name: sensor for name, sensor in self.env.scene.sensors.items() if isinstance(sensor, kind)}
        if camera is None and sensors:
            return next(iter(sensors.values()))
        if camera not in sensors:
            raise RuntimeError(f"{self.name} has no camera {camera or ''}: its scene has {sorted(sensors) or 'none'}")
        return sensors[camera]

    def close(self) -> None:
        """Nothing beside the environment."""


def bounds(space: Box) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Flat finite bounds: the box's, ±``UNBOUNDED`` where it has none."""
    low, high = (np.reshape(b, -1).astype(np.float64) for b in (space.low, space.high))
    return np.where(np.isfinite(low), low, -UNBOUNDED), np.where(np.isfinite(high), high, UNBOUNDED)


def described(name: str, array: FloatArray) -> Feature:
    """An entry as a feature; Isaac Lab tells neither names nor units."""
    if array.ndim == 4:
        return image_feature(array.shape[1], array.shape[2])
    size = array.shape[1]
    names = tuple(f"{name}_{i}" for i in range(size))
    return Feature((size,), names, ("",) * size, (-float("inf"),) * size, (float("inf"),) * size)


def digest(seeds: NDArray[Any]) -> int:
    """One number for an array of seeds."""
    data = np.ascontiguousarray(seeds.astype(np.int64)).tobytes()
    return int.from_bytes(hashlib.sha256(data).digest()[:4], "little")


def override(cfg: Any, path: str, value: Any) -> None:
    """Set ``cfg.<path>``; ValueError for a path that doesn't exist, with near names."""
    node, *rest = cfg, *path.split(".")
    for depth, name in enumerate(rest):
        if not hasattr(node, name):
            near = difflib.get_close_matches(name, [n for n in dir(node) if not n.startswith("_")], n=3)
            hint = f"; near: {', '.join(near)}" if near else ""
            raise ValueError(f"cfg_overrides: the configuration has no {'.'.join(rest[: depth + 1])}{hint}")
        if depth == len(rest) - 1:
            setattr(node, name, value)
        else:
            node = getattr(node, name)


def _registered(task: str, num_envs: int, device: str, known: tuple[str, ...]) -> tuple[Any, Any]:
    """Constructor and configuration of a registered id, with Newton's physics."""
    load("isaaclab_tasks")
    if task not in gymnasium.registry:
        ids = [name for name in gymnasium.registry if name.startswith("Isaac-")]
        close = difflib.get_close_matches(task, [*known, *ids], n=3, cutoff=0.4)
        hint = f"near: {', '.join(close)}; " if close else ""
        raise ValueError(
            f"unknown Isaac Lab task {task!r}: {hint}robopo's own are {', '.join(known)}; the others are registered "
            "gym ids, or module:Class of a DirectRLEnv or ManagerBasedRLEnv"
        )
    parse = load("isaaclab_tasks.utils").parse_env_cfg
    with quietly():
        cfg = parse(task, device=device, num_envs=num_envs, overrides=["physics=newton_mjwarp"])
    return (lambda ready: gymnasium.make(task, cfg=ready).unwrapped), cfg


def _class_and_cfg(task: str) -> tuple[Any, Any]:
    """``module:Class``: the class names its configuration as ``cfg_class``, or the module has ``<Class>Cfg``."""
    module_name, _, class_name = task.partition(":")
    load("isaaclab.envs")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ValueError(f"{task}: there is no module {module_name!r} ({error})") from error
    kind = getattr(module, class_name, None)
    if kind is None:
        near = difflib.get_close_matches(class_name, dir(module), n=1)
        raise ValueError(f"{module_name} has no {class_name!r}" + (f": did you mean {near[0]!r}?" if near else ""))
    cfg_class = getattr(kind, "cfg_class", None) or getattr(module, f"{class_name}Cfg", None)
    if cfg_class is None:
        raise ValueError(
            f"{task}: expected its configuration as {class_name}.cfg_class or {module_name}.{class_name}Cfg"
        )
    return kind, cfg_class()
