"""OGBench's play and noisy data of its arm (Park et al. 2024, arXiv 2410.20092), made by the package's own oracles.

    python -m sims.ogbench_data --env cube-single --steps 20000 --out data/cube-single-play-v0.npz
    python -m sims.ogbench_data --relabel data/cube-single-play-v0.npz --task cube-single-play-singletask-task2-v0

An episode follows from (seed, its number) alone, so neither the number of processes nor an interruption changes a
byte: finished episodes wait in <out>.parts and the same command goes on from there.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import importlib
import json
import multiprocessing
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sims import ogbench_envs

Arrays = dict[str, NDArray[Any]]

STACKING = {"single": (0.0, 0.0), "double": (0.0, 0.25), "triple": (0.05, 0.35), "quadruple": (0.1, 0.5)}
"""Range of the probability that a cube is put on another; it is drawn once an episode, as in the published data."""
OCTUPLE, OTHERS = (0.0, 0.35), (0.5, 0.5)
ENVIRONMENTS = (
    *(f"cube-{n}" for n in ("single", "double", "triple", "quadruple", "octuple")),
    "scene",
    *(f"puzzle-{n}" for n in ("3x3", "4x4", "4x5", "4x6")),
)
KINDS = ("play", "noisy")
DTYPES = {"terminals": np.bool_, "button_states": np.int64}
"""Of columns that aren't float32."""


@dataclass(frozen=True, slots=True)
class Generation:
    """What to generate; equal values make equal bytes."""

    env: str = "cube-single"
    """One of ENVIRONMENTS."""
    kind: str = "play"
    """play: plans with correlated noise; noisy: a Markov oracle with Gaussian action noise."""
    steps: int = 20_000
    """Rows of the training file, rounded up to whole episodes; the validation file has a tenth of the episodes."""
    episode_steps: int = 1001
    """Rows of an episode; the last one only serves as the next observation of the one before."""
    seed: int = 0
    """Of all episodes."""
    noise: float = 0.1
    """play: of the plan; noisy: greatest action noise, drawn once an episode."""
    noise_smoothing: float = 0.5
    """Width of the filter over the plan's noise, in steps."""
    p_random: float = 0.0
    """Probability of a random action; 0.1 or 0.2 in published noisy sets."""

    def __post_init__(self) -> None:
        if self.env not in ENVIRONMENTS:
            raise ValueError(f"env={self.env!r}: known are {', '.join(ENVIRONMENTS)}")
        if self.kind not in KINDS:
            raise ValueError(f"kind={self.kind!r}: known are {', '.join(KINDS)}")
        if self.steps < 1 or self.episode_steps < 2 or self.seed < 0:
            raise ValueError(
                f"steps={self.steps}, episode_steps={self.episode_steps}, seed={self.seed}: at least 1, 2 and 0"
            )
        if self.noise < 0.0 or self.noise_smoothing <= 0.0 or not 0.0 <= self.p_random <= 1.0:
            raise ValueError(
                f"noise={self.noise}, noise_smoothing={self.noise_smoothing}, p_random={self.p_random}: expected 0 or "
                "more, above 0, and 0 to 1"
            )

    @property
    def train_episodes(self) -> int:
        """Episodes of the training file."""
        return -(-self.steps // self.episode_steps)

    @property
    def episodes(self) -> int:
        """All episodes: training, then validation."""
        return self.train_episodes + max(1, self.train_episodes // 10)


class Generator:
    """Makes episodes one by one; builds its environment once."""

    def __init__(self, config: Generation) -> None:
        self._config = config
        gymnasium: Any = importlib.import_module("gymnasium")
        ogbench_envs.load()
        options = {"terminate_at_goal": False, "mode": "data_collection", "max_episode_steps": config.episode_steps}
        self._env: Any = ogbench_envs.repeatable(gymnasium.make(f"{config.env}-v0", **options))
        self._oracles = make_oracles(config, self._env)

    def episode(self, index: int) -> Arrays:
        """Episode ``index``: columns [episode_steps, ...]. A scene whose cube gets lost is played again."""
        for attempt in range(1000):
            entropy = (self._config.seed, index, attempt)
            arrays = self._play(np.random.default_rng(np.random.SeedSequence(entropy)))
            if self._config.env != "scene" or cube_in_sight(arrays["qpos"]):
                return arrays
        raise RuntimeError(f"episode {index} of {self._config.env} lost its cube 1000 times; report it with the seed")

    def _play(self, rng: np.random.Generator) -> Arrays:
        config, env = self._config, self._env
        ob, info = env.reset(seed=int(rng.integers(2**31)))
        p_stack = rng.uniform(*stacking(config.env))
        xi = rng.uniform(0.0, config.noise)
        spread = xi * np.array([1.0, 1.0, 1.0, 3.0, 10.0])
        oracle = self._oracles[info["privileged/target_task"]]
        oracle.reset(ob, info)
        rows: dict[str, list[Any]] = {}
        done = False
        while not done:
            if rng.random() < config.p_random:
                action = rng.uniform(-1.0, 1.0, 5)
            else:
                action = np.asarray(oracle.select_action(ob, info))
                if config.kind == "noisy":
                    action = action + rng.normal(0.0, spread)
            action = np.clip(action, -1.0, 1.0)
            seen, _, terminated, truncated, info = env.step(action)
            done = bool(terminated or truncated)
            row = {"observations": ob, "actions": action, "terminals": done}
            row |= {"qpos": info["prev_qpos"], "qvel": info["prev_qvel"]}
            if "prev_button_states" in info:
                row["button_states"] = info["prev_button_states"]
            for name, value in row.items():
                rows.setdefault(name, []).append(value)
            ob = seen
            if oracle.done and not done:
                # The oracle plans from what is seen after the new target is set; the data keep what the step showed.
                fresh_ob, fresh_info = env.unwrapped.set_new_target(p_stack=p_stack)
                oracle = self._oracles[fresh_info["privileged/target_task"]]
                oracle.reset(fresh_ob, fresh_info)
        return {name: np.array(values, DTYPES.get(name, np.float32)) for name, values in rows.items()}


def stacking(env: str) -> tuple[float, float]:
    """Range of the stacking probability."""
    name = env.partition("-")[2]
    return OCTUPLE if name == "octuple" else STACKING.get(name, OTHERS)


def make_oracles(config: Generation, env: Any) -> dict[str, Any]:
    """Target task -> the package's oracle for it; grippers stay closed where there are only buttons."""
    tasks = {"cube": ("cube",), "scene": ("cube", "button", "drawer", "window"), "puzzle": ("button",)}
    kind = "Plan" if config.kind == "play" else "Markov"
    oracles: dict[str, Any] = {}
    for task in tasks[config.env.partition("-")[0]]:
        module = importlib.import_module(f"ogbench.manipspace.oracles.{kind.lower()}.{task}_{kind.lower()}")
        options: dict[str, Any] = {"noise": config.noise, "noise_smoothing": config.noise_smoothing}
        if kind == "Markov":
            options = {"max_step": 100} if config.env == "scene" and task == "cube" else {}
        if config.env.startswith("puzzle"):
            options["gripper_always_closed"] = True
        oracles[task] = getattr(module, f"{task.title()}{kind}Oracle")(env=env, **options)
    return oracles


def cube_in_sight(qpos: NDArray[np.floating[Any]]) -> bool:
    """Whether the scene's cube stays where a picture of the goal can show it: on the table, or in the drawer."""
    y, z = qpos[:, 15], qpos[:, 16]
    beside = (y <= -0.3) & ((z < 0.06) | (z > 0.08))
    return not bool((y >= 0.29).any() or beside.any())


def generate(
    config: Generation, out: Path, *, processes: int = 1, progress: Callable[[int, int], None] | None = None
) -> dict[str, str]:
    """Write ``out`` and its ``-val`` sibling, as ``ogbench.load_dataset`` reads them; file name -> fingerprint.

    progress: called with (finished episodes, all episodes). Raises ValueError where ``out`` exists, isn't an .npz, or
    has parts of another generation.
    """
    if out.suffix != ".npz":
        raise ValueError(f"out={out}: expected a name that ends in .npz")
    files = {out: range(config.train_episodes), validation_path(out): range(config.train_episodes, config.episodes)}
    for path in files:
        if path.exists():
            raise ValueError(f"{path} exists; choose another name or remove it")
    parts = out.with_name(f"{out.name}.parts")
    open_parts(parts, config)
    missing = [i for i in range(config.episodes) if not part_path(parts, i).exists()]
    done = config.episodes - len(missing)
    for _ in _episodes(config, parts, missing, processes):
        done += 1
        if progress is not None:
            progress(done, config.episodes)
    prints: dict[str, str] = {}
    for path, indices in files.items():
        arrays = joined([part_path(parts, i) for i in indices])
        save(path, arrays)
        prints[path.name] = fingerprint(arrays)
    shutil.rmtree(parts)
    return prints


def validation_path(path: Path) -> Path:
    """Where OGBench looks for the validation data of ``path``."""
    return path.with_name(f"{path.stem}-val.npz")


def part_path(parts: Path, index: int) -> Path:
    """The file of one episode."""
    return parts / f"{index:06d}.npz"


def open_parts(parts: Path, config: Generation) -> None:
    """Make the folder of finished episodes, or check that it is of the same generation."""
    wanted, file = dataclasses.asdict(config), parts / "generation.json"
    if not file.exists():
        parts.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(wanted), encoding="utf-8")
        return
    found = json.loads(file.read_text(encoding="utf-8"))
    if found != wanted:
        differing = ", ".join(f"{key}={found.get(key)}" for key in wanted if found.get(key) != wanted[key])
        raise ValueError(f"{parts} has episodes of another generation ({differing}); remove it or choose another out")


def _episodes(config: Generation, parts: Path, missing: Sequence[int], processes: int) -> Any:
    jobs = [(config, parts, index) for index in missing]
    if processes == 1 or len(jobs) < 2:
        yield from map(_make_part, jobs)
        return
    with multiprocessing.get_context("spawn").Pool(min(processes, len(jobs))) as pool:
        yield from pool.imap_unordered(_make_part, jobs)


_generators: dict[Generation, Generator] = {}


def _make_part(job: tuple[Generation, Path, int]) -> int:
    config, parts, index = job
    if config not in _generators:
        _generators[config] = Generator(config)
    save(part_path(parts, index), _generators[config].episode(index))
    return index


def joined(paths: Sequence[Path]) -> Arrays:
    """The columns of several files, one after the other."""
    loaded = [dict(np.load(path)) for path in paths]
    return {name: np.concatenate([arrays[name] for arrays in loaded]) for name in loaded[0]}


def save(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write an .npz that appears complete or not at all; equal arrays give equal bytes."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.npz")
    savez: Any = np.savez_compressed  # its own keywords hide behind the columns' names
    savez(unfinished, **dict(arrays))
    os.replace(unfinished, path)


def fingerprint(arrays: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 over name, type, shape and values of each column, in the order of names."""
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def relabel(path: Path, task: str) -> str:
    """Add the package's ``rewards`` and ``masks`` of a single task to every row of ``path``; the new fingerprint.

    Both speak of the state before the action: the reward is minus the number of unmet sub-goals, the mask 0 where all
    are met. ``ogbench.load_dataset`` ignores the new columns.
    """
    arrays = dict(np.load(path))
    env = ogbench_envs.make(task)
    tools: Any = importlib.import_module("ogbench.relabel_utils")
    env.reset(seed=0)
    tools.relabel_dataset(env.spec.id, env, arrays)
    save(path, arrays)
    return fingerprint(arrays)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command's arguments."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for field in dataclasses.fields(Generation):
        name = "--" + field.name.replace("_", "-")
        parser.add_argument(name, type=type(field.default), default=field.default)
    parser.add_argument("--out", type=Path, help="file to write; default data/<env>-<kind>-v0.npz")
    parser.add_argument("--processes", type=int, default=1, help="episodes made at the same time")
    parser.add_argument("--relabel", type=Path, metavar="FILE", help="add rewards and masks of --task to FILE instead")
    parser.add_argument("--task", help="a single task: cube-single-play-singletask-task2-v0")
    return parser.parse_args(argv)


def _show(done: int, of: int) -> None:
    sys.stderr.write(f"\r{done}/{of}")


def main(argv: Sequence[str] | None = None) -> int:
    """Generate or relabel, and say what the files hold."""
    given = vars(parse(argv))
    out, file, task, processes = (given.pop(key) for key in ("out", "relabel", "task", "processes"))
    say = sys.stdout.write
    try:
        if file is not None:
            if task is None:
                raise ValueError("--relabel needs --task, for example cube-single-play-singletask-task2-v0")
            for path in (file, validation_path(file)):
                say(f"{path.name} sha256 {relabel(path, task)}\n")
            return 0
        config = Generation(**given)
        path = out or Path("data") / f"{config.env}-{config.kind}-v0.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        prints = generate(config, path, processes=processes, progress=_show)
    except (ValueError, ImportError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stderr.write("\n")
    rows = config.episodes * config.episode_steps
    say(f"{rows} rows in {time.monotonic() - began:.0f} s: {path}\n")
    for name, digest in prints.items():
        say(f"{name} sha256 {digest}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
