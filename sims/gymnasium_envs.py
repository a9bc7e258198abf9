"""Single gymnasium environments stepped by number: in this process, or shared out to worker processes.

Which environments step, and when an episode begins, is decided by the caller: nothing resets by itself here.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import gymnasium
import mujoco
import numpy as np
from gymnasium.spaces import Box, Dict
from numpy.typing import NDArray

from sims.base import BoolArray
from sims.render import Renderer

RESTORABLE_MODULES = "gymnasium.envs.mujoco."
"""Here every environment's future lies in its MuJoCo state; classes from elsewhere may keep more in attributes."""
LAST_STATE = int(mujoco.mjtState.mjSTATE_INTEGRATION)


@dataclass(frozen=True)
class EnvRecipe:
    """How to make one environment; crosses to worker processes."""

    env_id: str
    """A registered id, or ``module:id`` to import ``module`` first."""
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """For the environment's constructor."""


class Entry(NamedTuple):
    """One observation entry: its name, its key in a Dict observation (None: the whole observation), its size D."""

    name: str
    key: str | None
    size: int


class Outcome(NamedTuple):
    """One step of n environments: obs entries [n, D] float32, the rest [n].

    success: what info said, False where it said nothing; said: whether it said something. broken: the engine gave up.
    """

    obs: dict[str, NDArray[np.float32]]
    reward: NDArray[np.float64]
    terminated: BoolArray
    truncated: BoolArray
    success: BoolArray
    said: BoolArray
    broken: BoolArray


class LocalEnvs:
    """n environments in this process."""

    def __init__(self, recipe: EnvRecipe, count: int) -> None:
        first = make(recipe)
        self.envs = [first, *(make(recipe) for _ in range(count - 1))]
        self.entries = observation_entries(first.observation_space, recipe.env_id)
        self.action_space = box_action(first.action_space, recipe.env_id)
        self.restorable = is_restorable(first)
        self._renderers: dict[tuple[int, int], Renderer] = {}
        self._action = np.zeros((count, *(self.action_space.shape or ())), self.action_space.dtype)  # of the last step
        self._fresh = np.ones(count, dtype=bool)  # no step since the reset
        if self.restorable:
            self._before = np.zeros((count, mujoco.mj_stateSize(_base(first).model, LAST_STATE)))  # the last step

    def reset(self, rows: Sequence[int], seeds: Sequence[int]) -> dict[str, NDArray[np.float32]]:
        """Begin an episode in each of ``rows``; entries [n, D]."""
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

    def _empty(self, count: int) -> dict[str, NDArray[np.float32]]:
        return {entry.name: np.zeros((count, entry.size), np.float32) for entry in self.entries}

    def _write(self, obs: dict[str, NDArray[np.float32]], i: int, seen: Any) -> None:
        for name, key, _ in self.entries:
            obs[name][i] = np.reshape(seen if key is None else seen[key], -1)

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


class WorkerEnvs:
    """n environments shared out evenly to worker processes, each a LocalEnvs."""

    def __init__(self, recipe: EnvRecipe, count: int, workers: int) -> None:
        workers = min(workers, count)
        self._starts = [count * w // workers for w in range(workers + 1)]
        # spawn: a fork would copy the locks that torch's and MuJoCo's threads hold at that moment.
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        for begin, end in zip(self._starts, self._starts[1:], strict=False):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, recipe, end - begin), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def reset(self, rows: Sequence[int], seeds: Sequence[int]) -> dict[str, NDArray[np.float32]]:
        """As LocalEnvs; ``rows`` ascending."""
        return _joined(self._share("reset", rows, np.asarray(seeds, np.int64)))

    def step(self, rows: Sequence[int], action: NDArray[Any]) -> Outcome:
        """As LocalEnvs; ``rows`` ascending."""
        parts: list[Outcome] = self._share("step", rows, action)
        rest = (np.concatenate(column) for column in zip(*(part[1:] for part in parts), strict=True))
        return Outcome(_joined([part.obs for part in parts]), *rest)

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """As LocalEnvs."""
        return _joined(self._ask([(pipe, "snapshot", ()) for pipe in self._pipes]))

    def resume(self, rows: Sequence[int], saved: Mapping[str, NDArray[Any]]) -> None:
        """As LocalEnvs; ``rows`` ascending."""
        where = np.asarray(rows)
        calls = [
            (pipe, "resume", ((where[chosen] - begin).tolist(), {name: array[chosen] for name, array in saved.items()}))
            for pipe, begin, chosen in self._chosen(rows)
        ]
        self._ask(calls)

    def frame(self, row: int, camera: str | None, width: int, height: int) -> NDArray[np.uint8]:
        """As LocalEnvs."""
        pipe, begin, _ = self._chosen([row])[0]
        return self._ask([(pipe, "frame", (row - begin, camera, width, height))])[0]

    def close(self) -> None:
        """End the workers; callable twice."""
        for pipe in self._pipes:
            try:
                pipe.send(None)
            except OSError:
                continue  # that worker is gone already
        for process in self._processes:
            process.join(5.0)
            if process.is_alive():
                process.terminate()
        for pipe in self._pipes:
            pipe.close()
        self._pipes.clear()
        self._processes.clear()

    def _chosen(self, rows: Sequence[int]) -> list[tuple[Connection, int, NDArray[np.int64]]]:
        """(pipe, its first environment, places in ``rows`` that are its) of every worker with work."""
        where = np.asarray(rows)
        bounds = zip(self._pipes, self._starts, self._starts[1:], strict=False)
        shares = [(pipe, begin, np.flatnonzero((where >= begin) & (where < end))) for pipe, begin, end in bounds]
        return [share for share in shares if len(share[2])]

    def _share(self, method: str, rows: Sequence[int], values: Any) -> list[Any]:
        where, values = np.asarray(rows), np.asarray(values)
        return self._ask(
            [(pipe, method, ((where[k] - begin).tolist(), values[k])) for pipe, begin, k in self._chosen(rows)]
        )

    def _ask(self, calls: Sequence[tuple[Connection, str, tuple[Any, ...]]]) -> list[Any]:
        """Send all calls, then wait for all answers: no answer is left in a pipe when one of them is an error."""
        answers: list[tuple[bool, Any]] = []
        try:
            for pipe, method, args in calls:
                pipe.send((method, args))
            answers = [pipe.recv() for pipe, _, _ in calls]
        except (EOFError, OSError) as error:
            raise RuntimeError(
                "a simulator process ended unexpectedly (out of memory?); use fewer num_workers or vectorization=sync"
            ) from error
        for good, value in answers:
            if not good:
                raise RuntimeError(f"a simulator process failed: {value}; vectorization=sync shows where")
        return [value for _, value in answers]


def _serve(pipe: Connection, recipe: EnvRecipe, count: int) -> None:
    """Answer method calls until None or the end of the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle; it ends this process
    envs = LocalEnvs(recipe, count)
    try:
        while (call := pipe.recv()) is not None:
            method, args = call
            try:
                pipe.send((True, getattr(envs, method)(*args)))
            except Exception as error:  # noqa: BLE001  whatever an environment raises is the parent's to report
                pipe.send((False, f"{type(error).__name__}: {error}"))
    except (EOFError, OSError):
        pass  # the parent is gone
    finally:
        envs.close()


def _joined(parts: Sequence[Mapping[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def make(recipe: EnvRecipe) -> gymnasium.Env[Any, Any]:
    """One environment without a time limit (the caller counts) and without checks on every call."""
    try:
        env = _make(recipe)
        wants_pictures = "render_mode" not in recipe.kwargs and not is_restorable(env)
        if wants_pictures and "rgb_array" in env.metadata.get("render_modes", ()):
            env.close()
            env = _make(recipe, render_mode="rgb_array")
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        raise ImportError(f"{recipe.env_id} needs a package that is missing: {error}") from error
    except gymnasium.error.UnregisteredEnv as error:
        raise ValueError(f"unknown env_id {recipe.env_id!r}: {error}") from error
    except TypeError as error:
        raise ValueError(f"{recipe.env_id} can't be made with env_kwargs={dict(recipe.kwargs)}: {error}") from error
    return env


def _make(recipe: EnvRecipe, **more: Any) -> gymnasium.Env[Any, Any]:
    return gymnasium.make(recipe.env_id, max_episode_steps=-1, disable_env_checker=True, **recipe.kwargs, **more)


def is_restorable(env: gymnasium.Env[Any, Any]) -> bool:
    """Whether MuJoCo's state is all there is: gymnasium's own MuJoCo environments, without extra wrappers."""
    extra = env.spec is not None and env.spec.additional_wrappers
    return not extra and type(env.unwrapped).__module__.startswith(RESTORABLE_MODULES)


def observation_entries(space: gymnasium.Space[Any], env_id: str) -> tuple[Entry, ...]:
    """A Box becomes ``state``, a Dict of Boxes its own names; each flattened. ValueError for anything else."""
    parts: dict[str | None, gymnasium.Space[Any]] = {**space.spaces} if isinstance(space, Dict) else {None: space}
    entries: list[Entry] = []
    for key, part in parts.items():
        name = "state" if key is None else key
        if not isinstance(part, Box):
            raise ValueError(  # noqa: TRY004  a setting is wrong, not an argument's type
                f"{env_id} shows {name!r} as {part}: only Box, or a Dict of Boxes, can be read"
            )
        if len(part.shape) >= 2 and part.dtype == np.uint8:
            raise ValueError(
                f"{env_id} shows {name!r} as images {list(part.shape)}, which are not supported yet; choose its "
                "state-based variant, often by env_kwargs"
            )
        entries.append(Entry(name, key, int(np.prod(part.shape, dtype=np.int64))))
    return tuple(entries)


def box_action(space: gymnasium.Space[Any], env_id: str) -> Box:
    """The action space if it is a Box of floats, or a ValueError."""
    if not isinstance(space, Box) or not np.issubdtype(space.dtype, np.floating):
        raise ValueError(
            f"{env_id} takes {space}, and actions here are continuous: choose an environment with a Box of floats "
            "(many have a variant such as env_kwargs.continuous=true)"
        )
    return space


def resized(frame: NDArray[Any], width: int, height: int, env: gymnasium.Env[Any, Any]) -> NDArray[np.uint8]:
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
