"""Run an expert in a simulator and keep what it saw and did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sims.base import VecSim
from sims.experts import Expert


@dataclass(frozen=True, slots=True, eq=False)
class Demonstrations:
    """Episodes one after the other. obs entries [N, D] float32 (pictures uint8 [N, height, width, 3]), action [N, A]
    float32, episode_index [N]; success [episodes].

    attempted: episodes that were run, failures included; ``success`` covers the kept ones.
    """

    obs: dict[str, NDArray[Any]]
    action: NDArray[np.float32]
    episode_index: NDArray[np.int64]
    success: NDArray[np.bool_]
    attempted: int
    attempted_successes: int


def collect_demonstrations(
    sim: VecSim,
    expert: Expert,
    episodes: int,
    *,
    seed: int,
    keep_failures: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Demonstrations:
    """Record ``episodes`` demonstrations (successful ones unless ``keep_failures``) from fresh episodes of ``sim``.

    Raises RuntimeError when the expert succeeds so rarely that 20 times the wanted episodes would not do.
    """
    if episodes < 1:
        raise ValueError(f"episodes={episodes}: at least one demonstration is needed")
    count = sim.num_envs
    obs = sim.reset(seed)
    expert.reset(np.ones(count, dtype=bool))
    tracks: list[list[tuple[dict[str, Any], Any]]] = [[] for _ in range(count)]
    kept: list[list[tuple[dict[str, Any], Any]]] = []
    outcomes: list[bool] = []
    attempted = successes = 0
    # Each environment owes its share: taking whichever episodes end first would favour the short ones.
    quota = np.full(count, episodes // count) + (np.arange(count) < episodes % count)
    low, high = np.array(sim.spec.action.low), np.array(sim.spec.action.high)
    while len(kept) < episodes:
        action = np.clip(expert.act(obs), low, high).astype(np.float32)
        step = sim.step(action)
        for env in range(count):
            tracks[env].append(({name: entry[env].copy() for name, entry in obs.items()}, action[env]))
        done = step.terminated | step.truncated
        for env in np.flatnonzero(done):
            good = bool(step.info["success"][env])
            attempted, successes = attempted + 1, successes + good
            if (good or keep_failures) and quota[env] > 0:
                quota[env] -= 1
                kept.append(tracks[env])
                outcomes.append(good)
                if progress is not None:
                    progress(len(kept))
            tracks[env] = []
        if attempted > 20 * episodes + 10 * count:
            raise RuntimeError(
                f"the expert succeeded in {successes} of {attempted} episodes of {sim.spec.name}: too few to record "
                f"{episodes}; lower its imperfection"
            )
        expert.reset(done)
        obs = step.obs
    return _joined(kept, outcomes, attempted, successes)


def _joined(kept: list[list[Any]], outcomes: list[bool], attempted: int, successes: int) -> Demonstrations:
    frames = [frame for track in kept for frame in track]
    names = frames[0][0]
    return Demonstrations(
        obs={name: _stacked([frame[0][name] for frame in frames]) for name in names},
        action=np.stack([frame[1] for frame in frames]).astype(np.float32),
        episode_index=np.repeat(np.arange(len(kept)), [len(track) for track in kept]),
        success=np.array(outcomes, dtype=bool),
        attempted=attempted,
        attempted_successes=successes,
    )


def _stacked(rows: list[NDArray[Any]]) -> NDArray[Any]:
    """Numbers as float32, pictures as the bytes they are."""
    array = np.stack(rows)
    return array if array.dtype == np.uint8 else array.astype(np.float32)
