"""What a worker process shares with its parent, and the loop in which it answers.

The episodes live in shared memory, so any worker can step any environment, and one that is killed takes nothing with it
but the step it was in. The arrays belong to files without a name: nothing can be left behind, however a process ends.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

PARENT_CHECK_S = 1.0
Array = NDArray[np.float64]


class WorkerEnv(Protocol):
    """What runs in a worker: see ``RobosuiteEnv``."""

    layout: Any

    def reset(self, state: Array, seed: int) -> NDArray[np.float32]: ...

    def step(self, state: Array, action: Array) -> tuple[NDArray[np.float32], float, bool]: ...

    def pictures(self) -> list[NDArray[np.uint8]]: ...

    def frame(self, state: Array, camera: str | None, width: int, height: int) -> NDArray[np.uint8]: ...

    def close(self) -> None: ...


MakeEnv = Callable[[Any], WorkerEnv]
"""A function of a module (processes find it by name) from a picklable recipe."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Room per environment; state and obs are capacities, since the true sizes are known once one has been built."""

    num_envs: int
    num_workers: int
    action: int
    picture: int
    """Bytes of all observed cameras' frames."""
    state: int = 4096
    obs: int = 512


class Shared(NamedTuple):
    """Views of the shared arrays: state [E, S], action [E, A], obs [E, D], picture [E, P], reward [E], success [E],
    broken [E], beats [W] (how many environments a worker has finished, which tells work from hanging).
    """

    state: NDArray[np.float64]
    action: NDArray[np.float64]
    obs: NDArray[np.float32]
    picture: NDArray[np.uint8]
    reward: NDArray[np.float64]
    success: NDArray[np.uint8]
    broken: NDArray[np.uint8]
    beats: NDArray[np.int64]


def shapes(sizes: Sizes) -> dict[str, tuple[tuple[int, ...], str]]:
    """Name -> shape and element type of each shared array."""
    E = sizes.num_envs
    return {
        "state": ((E, sizes.state), "d"),
        "action": ((E, sizes.action), "d"),
        "obs": ((E, sizes.obs), "f"),
        "picture": ((E, max(sizes.picture, 1)), "B"),
        "reward": ((E,), "d"),
        "success": ((E,), "B"),
        "broken": ((E,), "B"),
        "beats": ((sizes.num_workers,), "q"),
    }


def views(raw: dict[str, Any], sizes: Sizes) -> Shared:
    """The arrays over the raw shared memory."""
    return Shared(
        **{
            name: np.frombuffer(raw[name], dtype=np.dtype(kind)).reshape(shape)
            for name, (shape, kind) in shapes(sizes).items()
        }
    )


def serve(pipe: Connection, raw: dict[str, Any], sizes: Sizes, index: int, make_env: MakeEnv, recipe: Any) -> None:
    """Build the environment, say what it is like, answer calls until None or the end of the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle; it ends this process
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    try:
        env = make_env(recipe)
    except BaseException as error:  # noqa: BLE001  whatever it is, the parent reports it
        pipe.send((False, f"{type(error).__name__}: {error}"))
        return
    try:
        pipe.send((True, env.layout))
        shared = views(raw, sizes)
        while (call := pipe.recv()) is not None:
            pipe.send(_answer(env, shared, env.layout, index, call))
    except (EOFError, OSError):
        pass  # the parent is gone
    finally:
        env.close()


def _answer(env: WorkerEnv, shared: Shared, layout: Any, index: int, call: tuple[str, Any]) -> tuple[bool, Any]:
    """(True, messages of broken rows) or, for a frame, (True, pixels); (False, message) where a frame failed."""
    method, work = call
    if method == "frame":
        row, camera, width, height = work
        try:
            return True, env.frame(shared.state[row, : layout.state_size].copy(), camera, width, height)
        except Exception as error:  # noqa: BLE001  the parent raises it again
            return False, error if isinstance(error, ValueError | RuntimeError) else RuntimeError(repr(error))
    troubles: dict[int, str] = {}
    for row, seed in work:
        try:
            _run(env, shared, layout, row, seed if method == "reset" else None)
            shared.broken[row] = 0
        except Exception as error:  # noqa: BLE001  one environment's trouble must not end its neighbours' episodes
            shared.broken[row], shared.reward[row], shared.success[row] = 1, 0.0, 0
            troubles[row] = f"{type(error).__name__}: {error}"
        shared.beats[index] += 1
    return True, troubles


def _run(env: WorkerEnv, shared: Shared, layout: Any, row: int, seed: int | None) -> None:
    """Begin the episode of ``seed``, or step; results reach shared memory only when all of them are known."""
    state = shared.state[row, : layout.state_size].copy()
    if seed is None:
        obs, reward, success = env.step(state, shared.action[row])
    else:
        obs, reward, success = env.reset(state, seed), 0.0, False
    pictures = env.pictures()
    if pictures:
        shared.picture[row] = np.concatenate([picture.ravel() for picture in pictures])
    shared.state[row, : layout.state_size], shared.obs[row, : layout.obs_size] = state, obs
    shared.reward[row], shared.success[row] = reward, success


def _end_with(parent: int) -> None:
    """End this process soon after its parent, also in the middle of a step."""
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_S)
    os._exit(1)
