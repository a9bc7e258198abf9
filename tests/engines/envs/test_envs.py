"""Environments of the extra ``envs``, as the configuration builds them, and OGBench's data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import ogbench
import pytest

from robopo.cli.configs import build, load_config
from robopo.cli.schema import TRAIN
from robopo.data.ogbench import read_ogbench
from sims.gymnasium_vec import GymnasiumVec
from sims.ogbench_data import Generation, Generator, fingerprint, generate, joined, relabel

SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "fetch_reach": {"observation": (10,), "achieved_goal": (3,), "desired_goal": (3,)},
    "pusht": {"state": (5,)},
    "ogbench_cube": {"state": (28,)},
}
RATES = {"fetch_reach": 25.0, "pusht": 10.0, "ogbench_cube": 20.0}


def made(name: str, *more: str) -> GymnasiumVec:
    node = load_config("train", [f"sim={name}", "sim.vectorization=sync", *more], TRAIN).sim
    return build(node, num_envs=2)


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_the_configuration_builds_it(name: str) -> None:
    sim = made(name)
    assert {key: feature.shape for key, feature in sim.spec.observation.items()} == SHAPES[name]
    assert sim.spec.control_hz == RATES[name] and sim.spec.has_success
    assert sim.spec.restorable is False and sim.spec.maskable
    first = sim.reset(3)
    move = np.zeros((2, *sim.spec.action.shape), np.float32)
    step = sim.step(move, np.array([True, False]))
    again = sim.reset(3)
    for key in first:
        np.testing.assert_array_equal(step.obs[key][1], first[key][1])
        np.testing.assert_array_equal(again[key], first[key])
    sim.close()


def test_pictures_of_pusht() -> None:
    sim = made("pusht", "sim.env_kwargs.obs_type=pixels_agent_pos")
    obs = sim.reset(0)
    assert obs["image_pixels"].shape == (2, 96, 96, 3) and obs["image_pixels"].dtype == np.uint8
    assert obs["image_pixels"].std() > 5
    sim.close()


def test_a_goal_that_isn_t_shown_is_refused() -> None:
    with pytest.raises(ValueError, match="cube-single-play-singletask-v0"):
        GymnasiumVec("cube-single-play-v0", 1, maker="sims.ogbench_envs:make")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("data") / "cube-single-play-v0.npz"
    config = Generation(steps=80, episode_steps=41)
    return config, path, generate(config, path)


def test_an_episode_follows_from_its_number(small: Any) -> None:
    config, path, prints = small
    arrays = joined([path])
    assert prints[path.name] == fingerprint(arrays)
    assert len(arrays["actions"]) == 82 and arrays["terminals"].nonzero()[0].tolist() == [40, 81]
    alone = Generator(config).episode(1)
    for name, column in alone.items():
        np.testing.assert_array_equal(column, arrays[name][41:])


def test_it_goes_on_where_it_was_interrupted(small: Any, tmp_path: Path) -> None:
    config, _, prints = small
    path = tmp_path / "cube-single-play-v0.npz"

    def stop(done: int, of: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(config, path, progress=stop)
    counted: list[int] = []
    assert generate(config, path, progress=lambda done, of: counted.append(done)) == prints
    assert counted == [3]


def test_ogbench_and_our_reader_agree(small: Any) -> None:
    _, path, _ = small
    task = "cube-single-play-singletask-task2-v0"
    _, train, _ = ogbench.make_env_and_datasets(task, dataset_path=str(path))
    digest = relabel(path, task)
    data = read_ogbench(path)
    assert data.fingerprint == digest
    ours = {"observations": data.obs, "actions": data.action, "next_observations": data.next_obs}
    for name, values in {**ours, "rewards": data.reward, "masks": data.mask}.items():
        np.testing.assert_array_equal(values, train[name])
    np.testing.assert_array_equal(data.ends, train["terminals"].astype(bool))
    ogbench.load_dataset(str(path))


@pytest.mark.parametrize(("env", "kind"), [("scene", "noisy"), ("puzzle-3x3", "play")])
def test_other_oracles_run(env: str, kind: str) -> None:
    arrays = Generator(Generation(env=env, kind=kind, episode_steps=30, p_random=0.1)).episode(0)
    assert arrays["button_states"].shape == (30, 2 if env == "scene" else 9) and len(arrays["qpos"]) == 30
    assert np.abs(arrays["actions"]).max() <= 1.0
