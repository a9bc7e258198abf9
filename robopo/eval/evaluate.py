"""Run a policy on a fixed list of episodes.

Each episode is a function of its seed and the policy: its start comes from the seed, the policy's initial noise from a
generator of its own, and an environment that has finished waits, masked, until its neighbours have. So neither the
number of environments nor the luck of the others changes an outcome, up to float rounding between batch sizes. Samplers
that draw noise after the initial latent (DDPM, or deterministic=False) share a generator for it: their outcomes repeat
for a given number of environments and order of seeds only.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robopo.errors import ConfigError, NonFiniteError, ShapeError
from robopo.eval.records import EpisodeRow, EvalReport
from robopo.rollout.fit import check_fits
from sims.base import BoolArray, FloatArray, VecSim


class Actor(Protocol):
    """The part of a policy that evaluation calls. An ``act`` that also takes ``noise`` [B, H, A] gets it per episode"""

    @property
    def spec(self) -> Any: ...

    def reset(self) -> None: ...

    def act(
        self, obs: Mapping[str, Tensor], *, deterministic: bool = True, generator: torch.Generator | None = None
    ) -> Tensor: ...


def evaluate(
    policy: Actor,
    sim: VecSim,
    *,
    seeds: Sequence[int],
    noise_seed: int = 0,
    deterministic: bool = True,
    action_steps: int | None = None,
    max_steps: int | None = None,
    device: torch.device | str = "cpu",
    progress: Callable[[int], None] | None = None,
) -> EvalReport:
    """Play one episode per seed, E at a time.

    noise_seed: with an episode's seed, decides the policy's initial noise. deterministic: nothing else is random.
    action_steps, max_steps: override the executed rows Ta per chunk and the simulator's episode limit (only downward).
    progress: called with the number of episodes finished so far.
    """
    check_fits(policy.spec, sim.spec)
    seeds = _checked_seeds(seeds)
    rows_per_chunk = policy.spec.action_steps if action_steps is None else action_steps
    if not 1 <= rows_per_chunk <= policy.spec.horizon:
        raise ConfigError(f"action_steps={rows_per_chunk}: must lie between 1 and the horizon {policy.spec.horizon}")
    limit = sim.spec.max_episode_steps if max_steps is None else min(max_steps, sim.spec.max_episode_steps)
    if limit < 1:
        raise ConfigError(f"max_steps={max_steps}: an episode needs at least one step")
    started, rows = time.monotonic(), list[EpisodeRow]()
    with torch.no_grad(), _eval_mode(policy):
        for first in range(0, len(seeds), sim.num_envs):
            batch = seeds[first : first + sim.num_envs]
            player = _Player(policy, batch, sim.num_envs, noise_seed, deterministic, device)
            rows += _play(player, sim, batch, rows_per_chunk, limit)
            if progress is not None:
                progress(len(rows))
    facts = {
        "sim": sim.spec.name,
        "engine": sim.spec.engine,
        "num_envs": sim.num_envs,
        "action_mode": sim.spec.action_mode,
        "control_hz": sim.spec.control_hz,
        "has_success": sim.spec.has_success,
        "max_steps": limit,
        "action_steps": rows_per_chunk,
        "deterministic": deterministic,
        "noise_seed": noise_seed,
        "noise_per_episode": _takes_noise(policy),
    }
    return EvalReport(tuple(rows), facts, time.monotonic() - started)


class _Player:
    """One batch of episodes' observation history, noise generators and policy calls."""

    def __init__(
        self,
        policy: Actor,
        seeds: Sequence[int],
        num_envs: int,
        noise_seed: int,
        deterministic: bool,
        device: torch.device | str,
    ) -> None:
        self._policy, self._spec, self._device, self._deterministic = policy, policy.spec, device, deterministic
        self._seeds = seeds
        self._noise_shape = (num_envs, self._spec.horizon, self._spec.action_dim)
        self._generators = [np.random.Generator(np.random.Philox(key=[noise_seed, seed])) for seed in seeds]
        # Serves policies without a noise argument, and the later steps of a stochastic sampler.
        first = np.random.SeedSequence((noise_seed, seeds[0])).generate_state(1, np.uint64)[0]
        self._generator = torch.Generator(device=device).manual_seed(int(first >> np.uint64(1)))
        self._history: dict[str, FloatArray] = {}
        policy.reset()

    def begin(self, obs: Mapping[str, FloatArray]) -> None:
        """Fill the history, entries [E, To, ...], with the first observation."""
        seen = [*self._spec.obs, *getattr(self._spec, "images", ())]
        self._history = {key: np.repeat(obs[key][:, None], self._spec.obs_steps, axis=1) for key in seen}

    def see(self, obs: Mapping[str, FloatArray], playing: BoolArray) -> None:
        """Append the newest observation where the episode goes on."""
        for key, past in self._history.items():
            shifted = np.concatenate([past[:, 1:], obs[key][:, None]], axis=1)
            self._history[key] = np.where(playing.reshape(-1, *[1] * (past.ndim - 1)), shifted, past)

    def chunk(self, playing: BoolArray) -> NDArray[np.float32]:
        """[E, H, A] actions; rows of finished episodes are zero."""
        obs = {
            key: torch.from_numpy(np.ascontiguousarray(past)).to(self._device) for key, past in self._history.items()
        }
        extra: dict[str, Any] = {}
        if _takes_noise(self._policy):
            noise = np.zeros(self._noise_shape, np.float32)
            for row, generator in enumerate(self._generators):
                noise[row] = generator.standard_normal(self._noise_shape[1:], dtype=np.float32)
            extra["noise"] = torch.from_numpy(noise).to(self._device)
        action = self._policy.act(obs, deterministic=self._deterministic, generator=self._generator, **extra)
        if action.shape != self._noise_shape:
            raise ShapeError(f"the policy returned {list(action.shape)}, expected {list(self._noise_shape)}")
        array = action.to("cpu", torch.float32).numpy()
        bad = np.flatnonzero(playing & ~np.isfinite(array).all(axis=(1, 2)))
        if len(bad):
            raise NonFiniteError(
                f"the policy's action is NaN or infinite in the episode with seed {self._seeds[bad[0]]} "
                f"({len(bad)} of {int(playing.sum())} running episodes); check the checkpoint and its normaliser"
            )
        return np.where(playing[:, None, None], array, np.float32(0.0))


def _play(player: _Player, sim: VecSim, seeds: Sequence[int], rows_per_chunk: int, limit: int) -> list[EpisodeRow]:
    """Play ``seeds`` (at most E of them) to their ends; environments beyond them idle."""
    count = sim.num_envs
    padded = np.array([*seeds, *[seeds[-1]] * (count - len(seeds))], dtype=np.int64)
    player.begin(sim.reset(seed=padded))
    playing = np.arange(count) < len(seeds)
    steps, total = np.zeros(count, np.int64), np.zeros(count)
    success, at_end, terminated, diverged = (np.zeros(count, np.bool_) for _ in range(4))
    parameters: list[dict[str, float]] = [{} for _ in range(count)]
    while playing.any():
        chunk = player.chunk(playing)
        for row in range(rows_per_chunk):
            step = sim.step(chunk[:, row], mask=playing)
            if varied := step.info.get("parameters"):
                for i in np.flatnonzero(playing):
                    parameters[i] = {name: float(values[i]) for name, values in varied.items()}
            steps += playing
            total += np.where(playing, step.reward, 0.0)
            solved = np.asarray(step.info["success"], dtype=np.bool_)
            success |= playing & solved
            at_end = np.where(playing, solved, at_end)
            terminated |= playing & step.terminated
            diverged |= playing & np.asarray(step.info.get("diverged", False), dtype=np.bool_)
            playing = playing & ~(step.terminated | step.truncated | (steps >= limit))
            player.see(step.obs, playing)
            if not playing.any():
                break
    return [
        EpisodeRow(
            seed=seed,
            success=bool(success[i]),
            success_at_end=bool(at_end[i]),
            steps=int(steps[i]),
            return_=float(total[i]),
            terminated=bool(terminated[i]),
            diverged=bool(diverged[i]),
            parameters=parameters[i],
        )
        for i, seed in enumerate(seeds)
    ]


def _takes_noise(policy: Actor) -> bool:
    return "noise" in inspect.signature(policy.act).parameters


@contextmanager
def _eval_mode(policy: Actor) -> Generator[None]:
    """Switch a module's dropout off, and back to what it was."""
    if isinstance(policy, torch.nn.Module) and policy.training:
        policy.eval()
        try:
            yield
        finally:
            policy.train()
    else:
        yield


def _checked_seeds(seeds: Sequence[int]) -> list[int]:
    plain = [int(seed) for seed in seeds]
    if not plain:
        raise ConfigError("no evaluation seeds: give at least one (robopo.eval.seeds.evaluation_seeds)")
    if len(set(plain)) != len(plain):
        raise ConfigError("evaluation seeds repeat: the same episode counted twice would narrow the interval unduly")
    return plain
