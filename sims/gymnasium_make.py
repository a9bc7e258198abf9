"""One gymnasium environment from its recipe: a registered id, or a function of yours that makes it."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import gymnasium
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from sims.gymnasium_repairs import repair_robotics

RESTORABLE_MODULES = "gymnasium.envs.mujoco."
"""Here every environment's future lies in its MuJoCo state; classes from elsewhere may keep more in attributes."""
EXTRA = ("gymnasium_robotics", "gym_pusht")
"""Modules of the extra ``envs``."""
PLAIN = (OrderEnforcing, PassiveEnvChecker, TimeLimit)
"""Wrappers that change no future."""


@dataclass(frozen=True)
class EnvRecipe:
    """How to make one environment; crosses to worker processes."""

    env_id: str
    """A registered id, ``module:id`` to import ``module`` first, or whatever ``maker`` understands."""
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """For the environment's constructor."""
    maker: str | None = None
    """``module:function`` called with (env_id, **kwargs) instead of ``gymnasium.make``."""


class Made(NamedTuple):
    """An environment without a time limit (the caller counts), and the limit that it had."""

    env: gymnasium.Env[Any, Any]
    limit: int | None


def make(recipe: EnvRecipe) -> Made:
    """One environment without checks on every call."""
    try:
        made = _make(recipe)
        wants_pictures = "render_mode" not in recipe.kwargs and not is_restorable(made.env)
        if wants_pictures and "rgb_array" in made.env.metadata.get("render_modes", ()):
            made.env.close()
            made = _make(recipe, render_mode="rgb_array")
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        if "robopo[" in str(error):
            raise
        raise ImportError(f"{recipe.env_id} needs a package that is missing: {error}") from error
    except gymnasium.error.UnregisteredEnv as error:
        raise ValueError(f"unknown env_id {recipe.env_id!r}: {error}") from error
    except TypeError as error:
        raise ValueError(f"{recipe.env_id} can't be made with env_kwargs={dict(recipe.kwargs)}: {error}") from error
    return made


def _make(recipe: EnvRecipe, **more: Any) -> Made:
    if recipe.maker is None:
        limit = registered(recipe.env_id).max_episode_steps
        kwargs = {**recipe.kwargs, **more}
        return Made(gymnasium.make(recipe.env_id, max_episode_steps=-1, disable_env_checker=True, **kwargs), limit)
    env = _callable(recipe.maker)(recipe.env_id, **recipe.kwargs, **more)
    if isinstance(env, TimeLimit):
        return Made(env.env, vars(env)["_max_episode_steps"])  # gymnasium has no public word for it
    return Made(env, None)


def _callable(maker: str) -> Any:
    module, _, name = maker.partition(":")
    try:
        found = getattr(importlib.import_module(module), name, None) if module and name else None
    except ModuleNotFoundError as error:
        raise ValueError(f"maker={maker!r}: {error}") from error
    if not callable(found):
        raise ValueError(  # noqa: TRY004  a setting is wrong, not an argument's type
            f"maker={maker!r}: expected module:function, a function that makes an environment of env_id"
        )
    return found


def registered(env_id: str) -> Any:
    """The registry's entry. ValueError for an unknown id, with near ones; ImportError where its module is missing."""
    module, _, name = env_id.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        if module == "gymnasium_robotics":
            repair_robotics()
        return gymnasium.spec(name)
    except gymnasium.error.Error as error:
        close = difflib.get_close_matches(name, gymnasium.registry, n=3, cutoff=0.5)
        hint = f"; near: {', '.join(close)}" if close else "; is the package that registers it installed? (module:id)"
        raise ValueError(f"unknown env_id {env_id!r}{hint}") from error
    except ImportError as error:
        hint = "; pip install 'robopo[envs]'" if module in EXTRA else ""
        raise ImportError(f"{env_id}: its module can't be imported ({error}){hint}") from error


def is_restorable(env: gymnasium.Env[Any, Any]) -> bool:
    """Whether MuJoCo's state is all there is: gymnasium's own MuJoCo environments, without extra wrappers."""
    while isinstance(env, gymnasium.Wrapper):
        if not isinstance(env, PLAIN):
            return False
        env = env.env
    return type(env).__module__.startswith(RESTORABLE_MODULES)
