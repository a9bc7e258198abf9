"""Single gymnasium environments stepped by number, in this process.

Which environments step, and when an episode begins, is decided by the caller: nothing resets by itself here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import gymnasium
import mujoco
import numpy as np
from numpy.typing import NDArray

from sims.base import BoolArray
from sims.gymnasium_facts import Entries, Facts, Pictures, empty, facts_of
from sims.gymnasium_make import EnvRecipe, make
from sims.render import Renderer

LAST_STATE = int(mujoco.mjtState.mjSTATE_INTEGRATION)


class Outcome(NamedTuple):
    """One step of n environments: obs entries [n, ...], the rest [n].

    success: what info said, False where it said nothing; said: whether it said something. broken: the engine gave up;
    obs and reward mean nothing there.
    """

    obs: Entries
    reward: NDArray[np.float64]
    terminated: BoolArray
    truncated: BoolArray
    success: BoolArray
    said: BoolArray
    broken: BoolArray


class Envs(Protocol):
    """E environments stepped by number; LocalEnvs, WorkerEnvs and BatchEnvs are the three kinds."""

    facts: Facts
    lost: Sequence[int]
    """Environments whose episodes the last call lost, whether they were asked or not."""
    silent: Sequence[int]
    """Environments outside the last step's rows that came to an end while they idled."""

    def reset(self, rows: Sequence[int], seeds: Sequence[int], *, ended: bool = False) -> Entries: ...

    def step(self, rows: Sequence[int], action: NDArray[Any]) -> Outcome: ...

    def idle(self, rows: Sequence[int]) -> Entries:
        """What ``rows`` show now, after a step without them; only called where facts.maskable is False."""
        ...

    def snapshot(self) -> dict[str, NDArray[Any]]: ...

    def resume(self, rows: Sequence[int], saved: Mapping[str, NDArray[Any]]) -> None: ...

    def frame(self, row: int, camera: str | None, width: int, height: int) -> Pictures: ...

    def close(self) -> None: ...


class LocalEnvs:
    """n environments in this process."""

    def __init__(self, recipe: EnvRecipe, count: int) -> None:
        first = make(recipe)
        self.envs = [first.env, *(make(recipe).env for _ in range(count - 1))]
        self.lost: Sequence[int] = ()
        self.silent: Sequence[int] = ()
        self._renderers: dict[tuple[int, int], Renderer] = {}
        try:
            self.facts = facts_of(first, recipe.env_id)
        except BaseException:
            self.close()
            raise
        self.restorable, self.action_space = self.facts.restorable, self.facts.action_space
        self._action = np.zeros((count, *(self.action_space.shape or ())), self.action_space.dtype)  # of the last step
        self._fresh = np.ones(count, dtype=bool)  # no step since the reset
        if self.restorable:
            self._before = np.zeros((count, mujoco.mj_stateSize(_base(first.env).model, LAST_STATE)))  # the last step

    def reset(self, rows: Sequence[int], seeds: Sequence[int], *, ended: bool = False) -> Entries:  # noqa: ARG002
        """Begin an episode in each of ``rows``. ended: because the last one ended; it makes no difference here."""
        obs = self._empty(len(rows))
        for i, (row, seed) in enumerate(zip(rows, seeds, strict=True)):
            self._write(obs, i, self.envs[row].reset(seed=int(seed))[0])
            self._fresh[row] = True
        return obs

    def step(self, rows: Sequence[int], action: NDArray[Any]) -> Outcome:
        """One step of each of ``rows`` with ``action`` [n, A], inside the bounds already."""
        count = len(rows)
        obs, reward = self._empty(count), np.zeros(count)
        flags = np.zeros((5, count), dtype=bool)
        terminated, truncated, success, said, broken = flags
        for i, row in enumerate(rows):
            env = self.envs[row]
            self._action[row] = action[i].reshape(self._action.shape[1:])
            if self.restorable:
                base = _base(env)
                mujoco.mj_getState(base.model, base.data, self._before[row], LAST_STATE)
            seen, value, terminated[i], truncated[i], info = env.step(self._action[row].copy())
            self._write(obs, i, seen)
            reward[i] = value
            told = info.get("is_success", info.get("success"))
            success[i], said[i] = bool(told), told is not None
            # MuJoCo answers an exploding state by going back to its initial one, with the clock at zero.
            broken[i] = self.restorable and _base(env).data.time <= self._before[row, 0]
            self._fresh[row] = False
        return Outcome(obs, reward, terminated, truncated, success, said, broken)

    def idle(self, rows: Sequence[int]) -> Entries:
        """Never needed: nothing moves that isn't asked to."""
        raise NotImplementedError

    def _empty(self, count: int) -> Entries:
        return empty(self.facts.entries, count)

    def _write(self, obs: Entries, i: int, seen: Any) -> None:
        for name, key, told in self.facts.entries:
            obs[name][i] = np.reshape(seen if key is None else seen[key], told.shape)

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """What decides the future, rows [n, …]; only where ``restorable``.

        Contact forces and body frames lag one substep behind the state, so the state BEFORE the last step and its
        action are kept: repeating that step recovers them bit for bit, which mj_forward would not.
        """
        physics, generator = self._before.copy(), np.zeros((len(self.envs), 6), np.uint64)
        for row, env in enumerate(self.envs):
            base = _base(env)
            if self._fresh[row]:
                mujoco.mj_getState(base.model, base.data, physics[row], LAST_STATE)
            generator[row] = _pack(base.np_random)
        last = self._action.reshape(len(self.envs), -1).copy()
        return {"physics": physics, "last_action": last, "fresh": self._fresh.copy(), "generator": generator}

    def resume(self, rows: Sequence[int], saved: Mapping[str, NDArray[Any]]) -> None:
        """Continue ``rows`` from the same rows of a ``snapshot``."""
        for i, row in enumerate(rows):
            env, base = self.envs[row], _base(self.envs[row])
            env.reset(seed=0)
            state = np.ascontiguousarray(saved["physics"][i], dtype=np.float64)
            self._before[row], self._fresh[row] = state, saved["fresh"][i]
            self._action[row] = saved["last_action"][i].reshape(self._action.shape[1:])
            mujoco.mj_setState(base.model, base.data, state, LAST_STATE)
            if self._fresh[row]:
                mujoco.mj_forward(base.model, base.data)
                mujoco.mj_setState(base.model, base.data, state, LAST_STATE)
            else:
                base.step(self._action[row].copy())
            base.np_random.bit_generator.state = _unpack(saved["generator"][i])

    def frame(self, row: int, camera: str | None, width: int, height: int) -> NDArray[np.uint8]:
        """RGB [height, width, 3]. RuntimeError where nothing can be drawn, ValueError for an unknown camera."""
        env, base = self.envs[row], _base(self.envs[row])
        if not isinstance(getattr(base, "model", None), mujoco.MjModel):
            try:
                return resized(np.asarray(env.render()), width, height, env)
            except gymnasium.error.DependencyNotInstalled as error:
                raise RuntimeError(f"{env} draws with a package that is missing: {error}") from error
        if base.model.ncam == 0:
            raise RuntimeError(f"the scene of {env} has no camera")
        if (width, height) not in self._renderers:
            self._renderers[width, height] = Renderer(base.model, width=width, height=height)
        return self._renderers[width, height].frame(base.data, camera or base.model.camera(0).name)

    def close(self) -> None:
        """Free GL contexts and environments; callable twice."""
        for closable in (*self._renderers.values(), *self.envs):
            closable.close()
        self._renderers.clear()
        self.envs.clear()


def resized(frame: NDArray[Any], width: int, height: int, env: Any) -> NDArray[np.uint8]:
    """The nearest pixels of an RGB ``frame``; RuntimeError where the environment drew none."""
    if frame.ndim != 3 or frame.shape[2] != 3:
        raise RuntimeError(f"{env} draws no RGB pictures (render_mode={env.render_mode!r})")
    rows = np.arange(height) * frame.shape[0] // height
    columns = np.arange(width) * frame.shape[1] // width
    return np.ascontiguousarray(frame[rows][:, columns], dtype=np.uint8)


def _base(env: gymnasium.Env[Any, Any]) -> Any:
    return env.unwrapped


def _pack(generator: np.random.Generator) -> NDArray[np.uint64]:
    """[6]: a PCG64's two 128-bit numbers in halves, and its spare 32 bits."""
    whole: Any = generator.bit_generator.state
    halves = [part for number in (whole["state"]["state"], whole["state"]["inc"]) for part in divmod(number, 1 << 64)]
    return np.array([*halves, whole["has_uint32"], whole["uinteger"]], dtype=np.uint64)


def _unpack(packed: NDArray[np.uint64]) -> dict[str, Any]:
    a, b, c, d, has, spare = (int(value) for value in packed)
    state = {"state": (a << 64) + b, "inc": (c << 64) + d}
    return {"bit_generator": "PCG64", "state": state, "has_uint32": has, "uinteger": spare}
