"""OGBench's single-task environments (Park et al. 2024) by the names of its datasets.

The package makes them with ``make_env_and_datasets(name, env_only=True)``: a dataset's name says the environment, the
kind of data and the task, ``cube-single-play-singletask-task2-v0``. Here the same names work as an env_id, and a seed
decides an episode, which it doesn't in the package.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from gymnasium.spaces import Box

KINDS = ("play", "noisy", "navigate", "stitch", "explore")
EXTRA = "OGBench is missing: pip install 'robopo[envs]'"


def make(env_id: str, **kwargs: Any) -> Any:
    """A maker for ``GymnasiumVec``: a dataset's name, with or without the kind of data.

    Raises ValueError for names without ``singletask``: elsewhere the goal is no part of the observation.
    """
    package = load()
    words = env_id.split("-")
    if "singletask" not in words:
        name = "-".join([*words[:-1], "singletask", words[-1]])
        raise ValueError(
            f"{env_id} is a goal-conditioned environment, whose goal its observation doesn't show; choose a task of "
            f"it: {name}, or -singletask-task1 to -task5"
        )
    if not any(word in KINDS for word in words):
        words.insert(words.index("singletask"), KINDS[0])  # the environment is the same for every kind of data
    env = package.make_env_and_datasets("-".join(words), env_only=True, **kwargs)
    return repeatable(env)


def load() -> Any:
    """The package; ImportError says how to install it."""
    try:
        return importlib.import_module("ogbench")
    except ModuleNotFoundError as error:
        raise ImportError(f"{EXTRA} ({error})") from error


def repeatable(env: Any) -> Any:
    """Make a reset follow from its seed alone.

    A manipulation environment plays two actions before an episode to settle its goal. They come from an action space
    that is new, and seeded by the operating system, each time it is asked for, and leave traces in contact forces and
    solver warm starts. Here that space belongs to the environment and its seed.
    """
    base = env.unwrapped
    kind: Any = type(base)
    if not isinstance(getattr(kind, "action_space", None), property):
        return env
    space: Any = base.action_space
    if not isinstance(space, Box):
        return env

    def reset(self: Any, options: Any = None, *, seed: int | None = None, **more: Any) -> Any:
        if seed is not None:
            space.seed(seed)
            # The choice of a task and the oracles draw from numpy's global generator.
            np.random.seed(seed % 2**32)
        return kind.reset(self, options, seed=seed, **more)

    members: dict[str, Any] = {"action_space": property(lambda _: space), "reset": reset, "dt": _dt(base)}
    base.__class__ = type(kind.__name__, (kind,), {**members, "__module__": kind.__module__})
    return env


def _dt(base: Any) -> float | None:
    """Seconds of a control step, where the environment knows them."""
    value = vars(base).get("_control_timestep")
    return None if value is None else float(value)
