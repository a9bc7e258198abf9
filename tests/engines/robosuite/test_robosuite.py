"""robosuite's own tasks: equal to robosuite's step, decided by the seed, exact to restore."""

from __future__ import annotations

from collections.abc import Iterator

import mujoco
import numpy as np
import pytest

from sims.robosuite_env import Recipe, RobosuiteEnv
from sims.robosuite_tasks import TASKS, find_task, object_feature, robot_parts
from sims.robosuite_vec import RobosuiteVec

DIMS = {"Lift": 10, "PickPlaceCan": 14, "NutAssemblySquare": 14, "TwoArmTransport": 41, "Stack": 23, "Door": 14}


@pytest.fixture(scope="module", params=sorted(DIMS))
def env(request: pytest.FixtureRequest) -> Iterator[RobosuiteEnv]:
    made = RobosuiteEnv(Recipe(TASKS[request.param]))
    yield made
    made.close()


def start(env: RobosuiteEnv, seed: int) -> tuple[np.ndarray, np.ndarray]:
    state = np.zeros(env.layout.state_size)
    return state, env.reset(state, seed)


def script(env: RobosuiteEnv, count: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(-0.7, 0.7, (count, 7 * env.recipe.task.num_arms))


def test_a_step_is_robosuites_step(env: RobosuiteEnv) -> None:
    """robosuite's own controller over 1.5 s, within rounding of the single precision in which observations are told."""
    actions = script(env, 30)
    state, _ = start(env, 3)
    ours = [env.step(state, action)[0] for action in actions]
    start(env, 3)
    for action, expected in zip(actions, ours, strict=True):
        env._env.step(action)
        mujoco.mj_fwdPosition(env.model, env.data)
        np.testing.assert_allclose(env._observe(), expected, atol=1e-5)


def test_an_episode_is_decided_by_its_seed_alone(env: RobosuiteEnv) -> None:
    """Also after other episodes, and bit for bit: robosuite's soft reset keeps nothing that decides anything."""
    fresh, first = start(env, 11)
    rewards = [env.step(fresh, action) for action in script(env, 5)]
    for seed in (5, 6):
        other, _ = start(env, seed)
        for action in script(env, 7)[::-1]:
            env.step(other, action)
    again, second = start(env, 11)
    np.testing.assert_array_equal(first, second)
    for action, (obs, reward, success) in zip(script(env, 5), rewards, strict=True):
        now = env.step(again, action)
        np.testing.assert_array_equal(now[0], obs)
        assert now[1:] == (reward, success)
    np.testing.assert_array_equal(fresh, again)


def test_episodes_share_one_built_environment(env: RobosuiteEnv) -> None:
    """Stepping two episodes by turns is stepping each alone."""
    (left, _), (right, _) = start(env, 1), start(env, 2)
    alone = left.copy()
    for action in script(env, 4):
        env.step(alone, action)
    for action in script(env, 4):
        env.step(left, action)
        env.step(right, -action)
    np.testing.assert_array_equal(left, alone)


def test_entries_are_robomimics(env: RobosuiteEnv) -> None:
    name = env.recipe.task.env_name
    feature = object_feature(env.layout.sensors)
    assert feature.shape == (DIMS[name],)
    robot = sum(size for _, size in robot_parts(env.recipe.task.num_arms))
    assert env.layout.obs_size == robot + DIMS[name]
    _, obs = start(env, 0)
    by_name = dict(zip(feature.names, obs[robot:], strict=True))
    tool = obs[:3]
    if name == "Lift":  # robosuite 1.4's sign: from the cube to the gripper
        cube = np.array([by_name[f"cube_pos_{axis}"] for axis in "xyz"])
        np.testing.assert_allclose([by_name[f"gripper_to_cube_pos_{axis}"] for axis in "xyz"], tool - cube, atol=1e-6)
    if name == "PickPlaceCan":  # of this step, not of the one before: rotate it back into the world
        relative = np.array([by_name[f"Can_to_robot0_eef_pos_{axis}"] for axis in "xyz"])
        can = np.array([by_name[f"Can_pos_{axis}"] for axis in "xyz"])
        assert np.linalg.norm(relative) == pytest.approx(np.linalg.norm(can - tool), abs=1e-5)


@pytest.mark.parametrize("name", sorted(set(TASKS) - set(DIMS)))
def test_other_tasks_run(name: str) -> None:
    env = RobosuiteEnv(Recipe(TASKS[name]))
    state, first = start(env, 0)
    obs, reward, success = env.step(state, script(env, 1)[0])
    assert obs.shape == first.shape and np.isfinite(obs).all() and (reward, success) == (0.0, False)
    again, _ = start(env, 0)
    np.testing.assert_array_equal(env.step(again, script(env, 1)[0])[0], obs)


@pytest.mark.parametrize("name", ["Lift", "PickPlaceCan", "NutAssemblySquare", "Stack", "Door"])
def test_shaped_rewards(name: str) -> None:
    env = RobosuiteEnv(Recipe(TASKS[name], dense_reward=True))
    state, _ = start(env, 0)
    assert 0.0 < env.step(state, np.zeros(7))[1] < 1.0


def test_exploding_physics_end_the_episode_as_diverged() -> None:
    sim = RobosuiteVec("Lift", 2, num_workers=1)
    sim.reset(0)
    before = sim.step(np.zeros((2, 7))).obs
    for value in (np.nan, 1e12):
        state = sim.state()
        state["physics"][0, 1] = value  # the first joint's position, after the time
        sim.restore(state)
        step = sim.step(np.zeros((2, 7)))
        assert step.info["diverged"].tolist() == [True, False] and step.terminated.tolist() == [True, False]
        assert step.reward.tolist() == [0, 0] and all(np.isfinite(values).all() for values in step.obs.values())
        for name, values in step.final_obs.items():
            np.testing.assert_array_equal(values[0], before[name][0])
        before = sim.step(np.zeros((2, 7))).obs
        assert np.isfinite(before["state"]).all()
    assert sim.diverged_count == 2
    sim.close()


def test_pictures_and_frames() -> None:
    sim = RobosuiteVec(
        "PickPlaceCan", 2, num_workers=1, cameras=("agentview", "robot0_eye_in_hand"), image_size=(48, 64)
    )
    obs = sim.reset(0)
    picture = obs["image_agentview"]
    assert picture.shape == (2, 48, 64, 3) and picture.dtype == np.uint8 and picture.std() > 10
    assert (picture[0] != picture[1]).any() and sim.spec.observation["image_agentview"].is_image
    # Upright, as robomimic's: the table is below, and a frame of the same size shows the same.
    np.testing.assert_array_equal(sim.render(0, width=64, height=48), picture[0])
    step = sim.step(np.full((2, 7), 0.9, np.float32))
    assert (step.obs["image_robot0_eye_in_hand"] != obs["image_robot0_eye_in_hand"]).any()
    assert sim.render(1, camera="birdview", width=800, height=600).shape == (600, 800, 3)
    with pytest.raises(ValueError, match="unknown camera 'agent'"):
        sim.render(camera="agent")
    sim.close()


def test_settings_that_are_wrong() -> None:
    with pytest.raises(ValueError, match="no camera 'agentvie'"):
        RobosuiteVec("Lift", 1, cameras=("agentvie",))
    with pytest.raises(ValueError, match="no shaped reward"):
        RobosuiteVec("TwoArmTransport", 1, dense_reward=True)
    assert find_task("can").env_name == "PickPlaceCan"


def test_separate_keys_are_the_same_numbers() -> None:
    sim = RobosuiteVec("Lift", 2, num_workers=1)
    split = RobosuiteVec("Lift", 2, num_workers=1, separate_keys=True)
    joined, parts = sim.reset(4), split.reset(4)
    assert list(parts) == ["robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos", "object"]
    np.testing.assert_array_equal(joined["state"], np.concatenate(list(parts.values())[:3], axis=1))
    np.testing.assert_array_equal(joined["environment_state"], parts["object"])
    sim.close()
    split.close()


def test_the_number_of_workers_changes_nothing() -> None:
    sims = [RobosuiteVec("Stack", 3, num_workers=count, max_episode_steps=3) for count in (1, 2)]
    generator = np.random.default_rng(0)
    for _ in range(5):
        action = generator.uniform(-1, 1, (3, 7))
        left, right = (sim.step(action) for sim in sims)
        for name in left.obs:
            np.testing.assert_array_equal(left.obs[name], right.obs[name])
            np.testing.assert_array_equal(left.final_obs[name], right.final_obs[name])
    for sim in sims:
        sim.close()
