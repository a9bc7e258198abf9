"""From a policy's chunk to joint rows that are due by time, and when to ask for the next one."""

from __future__ import annotations

from collections import deque
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hardware.types import ActionChunk, Array
from robopo.errors import ShapeError


class Resolver(Protocol):
    """Turns actions of the policy's mode into joint targets. Must be picklable: it runs in the policy's process."""

    def __call__(self, q_ref: Array, gripper: float, chunk: Array) -> tuple[Array, Array]:
        """q_ref [n] joint targets at the observation, gripper m, chunk [H, A] → joints [H, n] rad, openings [H] m."""
        ...


def joint_rows(resolver: Resolver, q_ref: Array, gripper: float, chunk: Array, *, has_gripper: bool) -> Array:
    """Rows [H+1, n] or [H+1, n+1]: the targets at the observation, then what each action leads to.

    The leading row makes targets travel linearly to row i during its control step, from wherever they were when the
    policy looked: what the simulators do between two actions.
    """
    joints, opening = resolver(q_ref, gripper, chunk)
    if np.shape(joints) != (len(chunk), len(q_ref)) or np.shape(opening) != (len(chunk),):
        raise ShapeError(
            f"the resolver gave joints {np.shape(joints)} and openings {np.shape(opening)}, "
            f"expected ({len(chunk)}, {len(q_ref)}) and ({len(chunk)},)"
        )
    rows = np.concatenate([q_ref[None], joints])
    if not has_gripper:
        return rows
    return np.column_stack([rows, np.concatenate([[gripper], opening])])


def timed_chunk(
    rows: Array,
    *,
    seq: int,
    obs_seq: int,
    t_obs_s: float,
    t0_s: float,
    dt_s: float,
    hold_rows: int,
    policy_id: str = "",
) -> ActionChunk:
    """Rows [H+1, …] due from ``t0_s`` on, the last one repeated ``hold_rows`` times: late is better than gone."""
    held = np.repeat(rows[-1:], hold_rows, axis=0)
    return ActionChunk(seq, obs_seq, t_obs_s, t0_s, dt_s, np.concatenate([rows, held]), policy_id)


class RequestMargin:
    """How long before the executed rows run out the next chunk is asked for: the 95th percentile of recent delays."""

    def __init__(self, first_s: float, *, tick_s: float, most_s: float) -> None:
        """first_s: a guess before anything was measured. most_s: never ask earlier than this."""
        self._tick_s, self._most_s = tick_s, most_s
        self._delays: deque[float] = deque([first_s], maxlen=50)
        self._measured = False

    def add(self, delay_s: float) -> None:
        """A chunk arrived ``delay_s`` after its observation."""
        if not self._measured:
            self._measured = True
            self._delays.clear()
        self._delays.append(delay_s)

    @property
    def seconds(self) -> float:
        """Margin to use now; one tick is added because requests go out on ticks."""
        delay = float(np.percentile(np.array(self._delays), 95))
        return min(delay + self._tick_s, self._most_s)


def stack_history(frames: deque[dict[str, NDArray[np.float32]]], keys: list[str]) -> NDArray[np.float32]:
    """The last To observations as one flat vector, entry after entry: [To * D] each, oldest row first.

    A history that isn't full yet repeats its oldest frame, as in training.
    """
    steps = frames.maxlen or len(frames)
    padded = [frames[0]] * (steps - len(frames)) + list(frames)
    return np.concatenate([np.concatenate([frame[key] for frame in padded]) for key in keys]).astype(np.float32)


def unstack_history(flat: NDArray[np.float32], obs: dict[str, int], steps: int) -> dict[str, NDArray[np.float32]]:
    """Undo ``stack_history``: entries [To, D] in the order of ``obs``."""
    entries: dict[str, NDArray[np.float32]] = {}
    start = 0
    for key, size in obs.items():
        entries[key] = flat[start : start + steps * size].reshape(steps, size)
        start += steps * size
    return entries
