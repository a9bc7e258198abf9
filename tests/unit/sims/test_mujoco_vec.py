"""What the native simulator promises beyond the contract."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from sims.demonstrations import collect_demonstrations
from sims.experts import ExpertConfig, make_expert
from sims.gymnasium_adapter import GymnasiumVectorEnv
from sims.mujoco_vec import MujocoVec
from sims.seeding import environment_keys
from sims.tasks import TASKS, make_task


def hold(sim: MujocoVec) -> np.ndarray:
    action = np.zeros((sim.num_envs, *sim.spec.action.shape), dtype=np.float32)
    action[:, -1] = 0.08
    return action


def test_a_diverged_environment_ends_alone_and_is_counted() -> None:
    sim, clean = MujocoVec("lift", 3), MujocoVec("lift", 3)
    state = sim.state()
    state["physics"][1, 1 + sim.model.nq] = np.nan
    sim.restore(state)
    step, expected = sim.step(hold(sim)), clean.step(hold(clean))
    assert step.terminated.tolist() == [False, True, False]
    assert step.info["diverged"].tolist() == [False, True, False]
    assert sim.diverged_count == 1
    assert step.reward[1] == 0
    for name in step.obs:
        assert np.isfinite(step.obs[name]).all() and np.isfinite(step.final_obs[name]).all()
        np.testing.assert_array_equal(step.obs[name][[0, 2]], expected.obs[name][[0, 2]])
    state = sim.state()
    state["physics"][0, 1 + sim.model.nq + 9] = 1e6  # exploding, still finite
    sim.restore(state)
    assert sim.step(hold(sim)).info["diverged"].tolist() == [True, False, False]
    assert sim.diverged_count == 2


@pytest.mark.parametrize("task", ["reach", "push", "lift"])
def test_clean_experts_succeed(task: str) -> None:
    sim = MujocoVec(task, 32)
    demos = collect_demonstrations(sim, make_expert(task, 32), 64, seed=3)
    assert demos.attempted_successes >= 0.95 * demos.attempted
    assert demos.success.all() and len(np.unique(demos.episode_index)) == 64


def test_imperfection_makes_demonstrations_longer_and_varied() -> None:
    sim = MujocoVec("lift", 32)
    clean = collect_demonstrations(sim, make_expert("lift", 32), 32, seed=3)
    novice = collect_demonstrations(sim, make_expert("lift", 32, ExpertConfig.imperfect(1.0)), 32, seed=3)
    assert len(novice.action) > 1.2 * len(clean.action)
    with pytest.raises(ValueError, match="imperfection"):
        ExpertConfig.imperfect(1.5)


def test_joint_position_mode_holds_a_pose_against_gravity() -> None:
    sim = MujocoVec("reach", 1, action_mode="joint_position", terminate_on_success=False)
    target = sim.reset(0)["state"][:, 10:17].copy()
    action = np.concatenate([target, [[0.08]]], axis=1).astype(np.float32)
    for _ in range(20):
        step = sim.step(action)
    np.testing.assert_allclose(step.obs["state"][:, 10:17], target, atol=1e-4)


def test_end_effector_delta_moves_the_tool_by_about_that_much() -> None:
    sim = MujocoVec("reach", 1, terminate_on_success=False)
    start = sim.reset(0)["state"][0, :3]
    action = hold(sim)
    action[:, 2] = -0.01
    for _ in range(10):
        step = sim.step(action)
    for _ in range(5):
        step = sim.step(hold(sim))
    np.testing.assert_allclose(step.obs["state"][0, :3] - start, [0, 0, -0.1], atol=0.004)


def as_torch(part: Any) -> Any:
    if isinstance(part, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(part))
    if isinstance(part, Mapping):
        return {name: as_torch(value) for name, value in part.items()}
    values = [as_torch(value) for value in part]
    return type(part)(*values) if hasattr(part, "_fields") else tuple(values)


def test_dense_reward_is_one_only_at_success_and_tasks_run_on_torch() -> None:
    for name in [task.name for task in TASKS]:
        sim = MujocoVec(name, 8)
        view = sim.view()
        task = make_task(name)
        tensors = as_torch(view)
        np.testing.assert_allclose(task.reward(tensors).numpy(), task.reward(view), atol=1e-12)
        np.testing.assert_allclose(task.observation(tensors).numpy(), task.observation(view), atol=1e-12)
        np.testing.assert_array_equal(task.success(tensors).numpy(), task.success(view))
        assert (task.reward(view) < 1).all()


def test_gymnasium_adapter_meets_the_vector_expectations() -> None:
    env = GymnasiumVectorEnv(MujocoVec("reach", 3, max_episode_steps=4))
    env.action_space.seed(0)
    obs, info = env.reset(seed=0)
    assert info == {} and env.observation_space.contains(obs)
    for index in range(4):
        obs, reward, terminated, truncated, info = env.step(env.action_space.sample())
        assert env.observation_space.contains(obs)
        assert reward.shape == terminated.shape == truncated.shape == (3,)
        assert ("final_obs" in info) == bool((terminated | truncated).any()), index
    assert info["_final_obs"].all()
    again, _ = env.reset(seed=[5, 6, 7])
    part, _ = env.reset(options={"reset_mask": np.array([True, False, False])})
    np.testing.assert_array_equal(part["state"][1:], again["state"][1:])
    env.close()


def test_unknown_names_get_the_nearest_known_ones() -> None:
    with pytest.raises(ValueError, match="did you mean 'lift'"):
        MujocoVec("lfit", 1)
    with pytest.raises(ValueError, match="ee_delta"):
        MujocoVec("lift", 1, action_mode="cartesian")
    with pytest.raises(ValueError, match="at least one"):
        MujocoVec("lift", 0)


def test_environment_keys_depend_on_seed_and_index_only() -> None:
    np.testing.assert_array_equal(environment_keys(4, 3), environment_keys(4, 8)[:3])
    assert len(np.unique(np.concatenate([environment_keys(s, 100) for s in range(10)]))) == 1000


@pytest.mark.parametrize("task", ["reach", "push", "lift"])
def test_frames_show_the_scene(task: str) -> None:
    sim = MujocoVec(task, 2)
    front = sim.render(0, camera="front", width=96, height=96)
    assert front.shape == (96, 96, 3) and front.dtype == np.uint8
    assert front.std() > 10  # not blank
    assert not np.array_equal(front, sim.render(0, camera="side", width=96, height=96))
    assert not np.array_equal(front, sim.render(1, camera="front", width=96, height=96))  # another object pose
    np.testing.assert_array_equal(front, sim.render(0, camera="front", width=96, height=96))
    with pytest.raises(ValueError, match="front"):
        sim.render(0, camera="frnt")
    sim.close()
    sim.close()


def test_the_arm_carries_the_franka_masses_and_limits() -> None:
    model = MujocoVec("lift", 1).model
    masses = [float(model.body(f"link{i}").mass[0]) for i in range(1, 8)]
    assert masses == pytest.approx([4.970684, 0.646926, 3.228604, 3.587895, 1.225946, 1.666555, 0.735522])
    assert model.joint("joint4").range == pytest.approx([-3.0718, -0.0698])
    assert model.opt.integrator == mujoco.mjtIntegrator.mjINT_IMPLICITFAST
