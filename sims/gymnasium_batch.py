"""A gymnasium environment that is vectorised itself (``vector_entry_point``), whichever way it resets.

Where it obeys ``reset_mask``, episodes are begun here in every autoreset mode; where it doesn't, only SAME_STEP can be
read: under NEXT_STEP the first observation of an episode comes one step too late, in a step that is none.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from sims.base import BoolArray
from sims.gymnasium_envs import Outcome, resized
from sims.gymnasium_facts import (
    Entries,
    Facts,
    Pictures,
    box_action,
    control_rate,
    empty,
    observation_entries,
)
from sims.gymnasium_make import EnvRecipe, registered


class BatchEnvs:
    """E environments that step together: those outside the rows of a step get the action nearest to zero."""

    def __init__(self, recipe: EnvRecipe, count: int, limit: int) -> None:
        self._env = make_vector(recipe, count, limit)
        self._count = count
        self._entries = observation_entries(self._env.single_observation_space, recipe.env_id)
        action = box_action(self._env.single_action_space, recipe.env_id)
        self._still = np.clip(np.zeros(action.shape), action.low, action.high).astype(action.dtype)
        self._mode = autoreset_mode(self._env, recipe.env_id)
        self._now = empty(self._entries, count)
        self._begun = np.zeros(count, dtype=bool)  # by the environment itself, in the last step
        self.lost: Sequence[int] = ()
        self.silent: Sequence[int] = ()
        self._own_seeds = self._seeds_each()
        self._partial = self._resets_parts()
        if self._mode == AutoresetMode.NEXT_STEP and not self._partial:
            self._env.close()
            raise ValueError(
                f"{recipe.env_id} begins episodes in the step after their end (NEXT_STEP) and ignores "
                "options={'reset_mask': ...}, so every episode would begin with a step that never happened; give it "
                "reset_mask or AutoresetMode.SAME_STEP, or choose vectorization=sync"
            )
        rate = control_rate(self._env)
        independent = self._own_seeds and self._partial
        self.facts = Facts(self._entries, action, None, (), rate, False, limit, maskable=False, independent=independent)

    def _seeds_each(self) -> bool:
        """Whether reset takes a list of seeds and gives each environment its own."""
        first, second = list(range(1, self._count + 1)), list(range(self._count, 0, -1))
        try:
            one = self._read(self._env.reset(seed=first)[0])  # pyright: ignore[reportArgumentType]
            two = self._read(self._env.reset(seed=second)[0])  # pyright: ignore[reportArgumentType]
        except Exception:  # noqa: BLE001  each refuses a list in its own way
            return False
        return all(np.array_equal(one[name], two[name][::-1]) for name in one)

    def _resets_parts(self) -> bool:
        """Whether a reset_mask leaves the other environments where they are."""
        self._env.reset(seed=0)
        if self._count == 1:
            return True
        before = self._read(self._env.step(np.repeat(self._still[None], self._count, axis=0))[0])
        mask = np.arange(self._count) == 0
        try:
            after = self._read(self._env.reset(options={"reset_mask": mask})[0])
        except Exception:  # noqa: BLE001  as above
            return False
        kept = all(np.array_equal(before[name][1:], after[name][1:]) for name in before)
        return kept and any(not np.array_equal(before[name][0], after[name][0]) for name in before)

    def reset(self, rows: Sequence[int], seeds: Sequence[int], *, ended: bool = False) -> Entries:
        """Begin an episode in each of ``rows``; where the environment has done so itself, its observation stays.

        seeds are obeyed where facts.independent; else a reset of all environments follows from them together.
        Raises RuntimeError for a part where the environment knows no reset_mask.
        """
        mask = np.isin(np.arange(self._count), rows)
        if not self._partial and ended and self._begun[mask].all():
            return self._rows(rows)
        if not self._partial and not mask.all():
            raise RuntimeError(
                "this vector environment can't reset a part of its environments (it ignores reset_mask); reset all, or "
                "choose vectorization=sync"
            )
        options = None if mask.all() else {"reset_mask": mask}
        seed: Any = None
        if self._own_seeds:
            each = np.zeros(self._count, dtype=np.int64)
            each[list(rows)] = seeds
            seed = each.tolist()
        elif mask.all() and not ended:
            seed = int(np.random.SeedSequence([int(s) for s in seeds]).generate_state(1)[0])
        self._now = self._read(self._env.reset(seed=seed, options=options)[0])
        self._begun[mask] = False
        return self._rows(rows)

    def step(self, rows: Sequence[int], action: NDArray[Any]) -> Outcome:
        """One step of all environments, with ``action`` [n, A] for ``rows``."""
        full = np.repeat(self._still[None], self._count, axis=0)
        full[list(rows)] = action.reshape(len(rows), *self._still.shape)
        seen, reward, terminated, truncated, info = self._env.step(full)
        done = np.asarray(terminated) | np.asarray(truncated)
        self._now = self._read(seen)
        last = {name: values.copy() for name, values in self._now.items()}
        self._begun[:] = False
        if self._mode == AutoresetMode.SAME_STEP and done.any():
            for row in np.flatnonzero(done):
                self._final(info, int(row), last)
            self._begun[:] = done
        success, said = self._success(info, done)
        asked = np.isin(np.arange(self._count), rows)
        self.silent = np.flatnonzero(done & ~asked).tolist()
        chosen = np.asarray(rows, dtype=np.int64)
        flags = (np.asarray(terminated, bool), np.asarray(truncated, bool))
        return Outcome(
            {name: values[chosen] for name, values in last.items()},
            np.asarray(reward, np.float64)[chosen],
            terminated=flags[0][chosen],
            truncated=flags[1][chosen],
            success=success[chosen],
            said=said[chosen],
            broken=np.zeros(len(chosen), dtype=bool),
        )

    def idle(self, rows: Sequence[int]) -> Entries:
        """What ``rows`` show after a step without them."""
        return self._rows(rows)

    def _final(self, info: Mapping[str, Any], row: int, last: Entries) -> None:
        """Put the true last observation of ``row`` into ``last``."""
        if "final_obs" not in info:
            raise RuntimeError(
                f"{self._env} resets in the same step but info has no final_obs: the last observation of an episode is "
                "lost; report it to its authors, or choose vectorization=sync"
            )
        final = info["final_obs"]
        if isinstance(final, np.ndarray) and final.dtype == object:
            final, row_of = final[row], ()
        else:
            row_of = (row,)
        for name, key, told in self._entries:
            value = np.asarray(final if key is None else final[key])
            last[name][row] = np.reshape(value[row_of], told.shape)

    def _success(self, info: Mapping[str, Any], done: BoolArray) -> tuple[BoolArray, BoolArray]:
        """(what info said [E], whether it said something [E]); of an ended episode final_info speaks."""
        success, said = np.zeros(self._count, dtype=bool), np.zeros(self._count, dtype=bool)
        for source, where in ((info, np.ones_like(done)), (info.get("final_info", {}), done)):
            for word in ("is_success", "success"):
                if isinstance(source, Mapping) and word in source:
                    told = where & np.asarray(source.get(f"_{word}", np.ones_like(done)), bool)
                    success = np.where(told, np.asarray(source[word]).astype(bool), success)
                    said |= told
        return success, said

    def _read(self, seen: Any) -> Entries:
        """A batched observation as entries, copied."""
        entries = empty(self._entries, self._count)
        for name, key, told in self._entries:
            entries[name][:] = np.reshape(seen if key is None else seen[key], (self._count, *told.shape))
        return entries

    def _rows(self, rows: Sequence[int]) -> Entries:
        return {name: values[list(rows)] for name, values in self._now.items()}

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """Never asked: facts.restorable is False."""
        raise NotImplementedError

    def resume(self, rows: Sequence[int], saved: Mapping[str, NDArray[Any]]) -> None:
        """Never asked: facts.restorable is False."""
        raise NotImplementedError

    def frame(self, row: int, camera: str | None, width: int, height: int) -> Pictures:  # noqa: ARG002
        """One of the frames that the environment draws; RuntimeError where it draws none."""
        frames: Any = self._env.render() if self._env.render_mode == "rgb_array" else None
        if frames is None or len(frames) != self._count:
            raise RuntimeError(f"{self._env} draws no pictures of its environments (env_kwargs.render_mode=rgb_array?)")
        return resized(np.asarray(frames[row]), width, height, self._env)

    def close(self) -> None:
        """Close the environment; callable twice."""
        self._env.close()


def make_vector(recipe: EnvRecipe, count: int, limit: int) -> VectorEnv[Any, Any, Any]:
    """The vector environment that an id was registered with, told its time limit. ValueError where there is none."""
    if recipe.maker is None:
        if registered(recipe.env_id).vector_entry_point is None:
            raise ValueError(
                f"{recipe.env_id} has no vector environment of its own (vector_entry_point); choose vectorization=sync "
                "or async"
            )
        kwargs: dict[str, Any] = {"max_episode_steps": limit, **recipe.kwargs}
        return gymnasium.make_vec(recipe.env_id, count, vectorization_mode="vector_entry_point", **kwargs)
    module, _, name = recipe.maker.partition(":")
    maker: Any = getattr(importlib.import_module(module), name)
    return maker(recipe.env_id, num_envs=count, max_episode_steps=limit, **recipe.kwargs)


def autoreset_mode(env: VectorEnv[Any, Any, Any], env_id: str) -> AutoresetMode:
    """What metadata say; a ValueError where they don't."""
    mode = env.metadata.get("autoreset_mode")
    try:
        return AutoresetMode(mode)
    except ValueError:
        known = ", ".join(m.name for m in AutoresetMode)
        raise ValueError(
            f"{env_id} doesn't tell how it begins episodes: metadata['autoreset_mode'] is {mode!r}, expected one of "
            f"{known}; without it a first observation can't be told from a last one"
        ) from None
