"""Episodes of a policy as data: what it saw, what it did, what it was paid.

A policy that was trained halfway makes the medium data of offline learning; a good one makes demonstrations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from robopo.errors import ConfigError
from robopo.policies.base import Policy
from robopo.rollout.fit import check_fits
from robopo.rollout.history import ObsHistory
from sims.base import FloatArray, VecSim


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """M episodes of N frames in all, one after the other."""

    obs: dict[str, NDArray[Any]]
    """Entries [N, ...] before each action."""
    action: NDArray[np.float32]
    """[N, A], as the simulator executed it."""
    reward: NDArray[np.float32]
    """[N], of each action."""
    episode_index: NDArray[np.int64]
    """[N], 0..M-1."""
    final_obs: dict[str, NDArray[Any]]
    """Entries [M, ...] after each episode's last action."""
    terminated: NDArray[np.bool_]
    """[M] whether the episode ended by itself; else its time was up."""
    success: NDArray[np.bool_]
    """[M] at the last step."""
    attempted: int
    """Episodes that were played: the kept ones, failures that were dropped, and those that diverged."""

    @property
    def returns(self) -> NDArray[np.float64]:
        """[M] sums of rewards."""
        sums = np.bincount(self.episode_index, weights=self.reward, minlength=len(self.terminated))
        return sums.astype(np.float64)


@dataclass(slots=True)
class _Track:
    """The running episode of one environment."""

    obs: list[dict[str, NDArray[Any]]]
    action: list[NDArray[np.float32]]
    reward: list[float]


@torch.no_grad()
def record_policy(
    policy: Policy,
    sim: VecSim,
    episodes: int,
    *,
    seed: int,
    deterministic: bool = False,
    keep_failures: bool = True,
    device: torch.device | str = "cpu",
    progress: Callable[[int], None] | None = None,
) -> Recording:
    """Play ``episodes`` and keep them; E at a time, each environment its share, so that short ones aren't favoured.

    seed: of the episodes' starts and the policy's noise. deterministic: as little noise as the sampler allows.
    keep_failures: also keep episodes that end without success. Episodes that diverged are never kept. Raises
    ConfigError when the policy doesn't fit, or succeeds so rarely that 20 times the wanted episodes would not do.
    """
    check_fits(policy.spec, sim.spec)
    if episodes < 1:
        raise ConfigError(f"episodes={episodes}: at least one is needed")
    if not sim.spec.maskable:
        raise ConfigError(
            f"{sim.spec.name} ({sim.spec.engine}) can't let single environments wait; collect with sim.num_envs=1 and "
            "a maskable simulator (for gymnasium: sim.vectorization=sync)"
        )
    count = sim.num_envs
    quota = np.full(count, episodes // count) + (np.arange(count) < episodes % count)
    kept: list[list[tuple[_Track, dict[str, NDArray[Any]], bool, bool]]] = [[] for _ in range(count)]
    player = _Player(policy, sim, seed, deterministic, device)
    attempted = 0
    while (quota > 0).any():
        for env, track, step in player.play(quota > 0):
            attempted += 1
            good = bool(step.info["success"][env])
            if not step.info["diverged"][env] and (good or keep_failures):
                final = {name: entry[env].copy() for name, entry in step.final_obs.items()}
                kept[env].append((track, final, bool(step.terminated[env]), good))
                quota[env] -= 1
                if progress is not None:
                    progress(sum(map(len, kept)))
        if attempted > 20 * episodes + 10 * count:
            raise ConfigError(
                f"only {sum(map(len, kept))} of {attempted} episodes of {sim.spec.name} could be kept: keep those that "
                "failed too (keep_failures=true), or choose another checkpoint"
            )
    return _joined([item for env in kept for item in env], attempted)


class _Player:
    """Steps the simulator with chunks of the policy; a chunk ends where its episode does."""

    def __init__(self, policy: Policy, sim: VecSim, seed: int, deterministic: bool, device: torch.device | str) -> None:
        self._policy, self._sim, self._device, self._deterministic = policy, sim, device, deterministic
        self._generator = torch.Generator(device=device).manual_seed(seed)
        self._low, self._high = np.array(sim.spec.action.low), np.array(sim.spec.action.high)
        self._history = ObsHistory.of(policy.spec, sim.spec, sim.num_envs)
        self._obs: dict[str, FloatArray] = sim.reset(seed)
        self._tracks = [_Track([], [], []) for _ in range(sim.num_envs)]
        self._history.reset(self._obs, np.ones(sim.num_envs, bool))
        policy.reset()

    def play(self, wanted: NDArray[np.bool_]) -> list[tuple[int, _Track, Any]]:
        """One chunk in the environments of ``wanted`` [E]; (environment, episode, step) of those that ended."""
        obs = self._history.torch(self._device)
        chunk = self._policy.act(obs, deterministic=self._deterministic, generator=self._generator)
        rows = chunk[:, : self._policy.spec.action_steps].to("cpu", torch.float32).numpy()
        alive, ended = wanted.copy(), list[tuple[int, _Track, Any]]()
        for row in range(rows.shape[1]):
            action = np.clip(rows[:, row], self._low, self._high).astype(np.float32)
            step = self._sim.step(action, alive)
            done = alive & (step.terminated | step.truncated)
            for env in np.flatnonzero(alive).tolist():
                track = self._tracks[env]
                track.obs.append({name: entry[env].copy() for name, entry in self._obs.items()})
                track.action.append(action[env].copy())
                track.reward.append(float(step.reward[env]))
            self._history.push(step.obs, alive & ~done)
            self._history.reset(step.obs, done)
            for env in np.flatnonzero(done).tolist():
                ended.append((env, self._tracks[env], step))
                self._tracks[env] = _Track([], [], [])
            self._obs = step.obs
            alive &= ~done
            if not alive.any():
                break
        return ended


def _joined(items: list[tuple[_Track, dict[str, NDArray[Any]], bool, bool]], attempted: int) -> Recording:
    tracks = [track for track, _, _, _ in items]
    names = items[0][1]
    return Recording(
        obs={name: np.stack([frame[name] for track in tracks for frame in track.obs]) for name in names},
        action=np.concatenate([np.stack(track.action) for track in tracks]),
        reward=np.concatenate([np.array(track.reward, np.float32) for track in tracks]),
        episode_index=np.repeat(np.arange(len(tracks)), [len(track.action) for track in tracks]),
        final_obs={name: np.stack([final[name] for _, final, _, _ in items]) for name in names},
        terminated=np.array([ended for _, _, ended, _ in items]),
        success=np.array([good for _, _, _, good in items]),
        attempted=attempted,
    )
