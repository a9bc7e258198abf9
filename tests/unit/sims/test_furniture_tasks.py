"""Doors, drawers and the handover: what counts as done, and that demonstrators do it."""

from __future__ import annotations

import numpy as np
import pytest

from sims.demonstrations import collect_demonstrations
from sims.experts import ExpertConfig, make_expert
from sims.mujoco_vec import MujocoVec
from sims.tasks.door import OPEN_RAD
from sims.tasks.drawer import OPEN_M

EXPERTS = [("door", 48), ("drawer", 48), ("two_arm_transport", 16)]


@pytest.mark.parametrize(("task", "episodes"), EXPERTS)
def test_clean_experts_succeed(task: str, episodes: int) -> None:
    sim = MujocoVec(task, 16)
    demos = collect_demonstrations(sim, make_expert(task, 16), episodes, seed=3)
    assert demos.attempted_successes >= 0.95 * demos.attempted
    assert sim.diverged_count == 0


def test_imperfect_hands_still_mostly_succeed() -> None:
    sim = MujocoVec("two_arm_transport", 16)
    expert = make_expert("two_arm_transport", 16, ExpertConfig.imperfect(1.0))
    demos = collect_demonstrations(sim, expert, 16, seed=3, keep_failures=True)
    assert demos.attempted_successes >= 0.6 * demos.attempted


@pytest.mark.parametrize(
    ("task", "joint", "needed"), [("door", "door_hinge", OPEN_RAD), ("drawer", "drawer_slide", OPEN_M)]
)
def test_open_means_open_far_enough(task: str, joint: str, needed: float) -> None:
    sim = MujocoVec(task, 2)
    assert not sim.success.any()
    state = sim.state()
    address = 1 + sim.layout.hinge[joint]
    state["physics"][:, address] = needed - 0.01, needed + 0.01
    sim.restore(state)
    assert sim.success.tolist() == [False, True]


@pytest.mark.parametrize("task", ["door", "drawer"])
def test_the_handle_is_where_the_scene_has_it(task: str) -> None:
    """The task computes the handle's place from the furniture's pose and joint; MuJoCo's kinematics must agree."""
    import mujoco

    sim = MujocoVec(task, 4)
    state = sim.state()
    (address,) = sim.layout.hinge.values()
    state["physics"][:, 1 + address] = (0.0, 0.05, 0.1, 0.15)
    sim.restore(state)
    seen = sim.observe()["environment_state"][:, :3]
    data = mujoco.MjData(sim.model)
    for env in range(4):
        data.qpos[:] = sim.qpos[env]
        data.mocap_pos[:], data.mocap_quat[:] = sim.fixtures[env, :, :3], sim.fixtures[env, :, 3:]
        mujoco.mj_kinematics(sim.model, data)
        handle = data.geom("handle").xpos
        np.testing.assert_allclose(seen[env, :2], handle[:2], atol=1e-6)
        assert 0.0 < seen[env, 2] - handle[2] < 0.04  # taken near its upper end


def test_furniture_is_solid_where_the_episode_put_it() -> None:
    """A closed cabinet stops a hand that presses down on it, at its place of this episode."""
    sim = MujocoVec("drawer", 4, terminate_on_success=False)
    expert = np.zeros((4, 7), np.float32)
    for _ in range(80):
        tcp = sim.observe()["state"][:, :3]
        middle = sim.fixtures[:, 0, :2] + 0.08
        expert[:, :2] = np.clip(middle - tcp[:, :2], -0.03, 0.03)
        expert[:, 2] = np.where(np.linalg.norm(middle - tcp[:, :2], axis=1) < 0.03, -0.01, 0.0)
        step = sim.step(expert)
    assert (step.obs["state"][:, 2] > 0.12).all()


def test_a_bar_that_is_still_held_is_not_delivered() -> None:
    sim = MujocoVec("two_arm_transport", 2)
    state = sim.state()
    start = 1 + sim.layout.object["bar"]
    state["physics"][:, start : start + 2] = sim.fixtures[:, 0, :2]
    state["physics"][:, start + 2] = 0.021
    finger = 1 + sim.layout.arms[1].finger
    state["physics"][0, finger] = 0.012
    sim.restore(state)
    assert sim.success.tolist() == [False, True]


def test_two_arms_have_their_own_names_and_places() -> None:
    sim = MujocoVec("two_arm_transport", 1)
    names = sim.spec.action.names
    assert len(names) == len(set(names)) == 14 and names[0] == "left_dx" and names[7] == "right_dx"
    left, right = sim.view().arms
    assert left.tcp[0, 1] > 0.3 and right.tcp[0, 1] < -0.3
    action = np.zeros((1, 14), np.float32)
    action[:, [6, 13]] = 0.08
    action[0, 1] = 0.01
    for _ in range(8):
        sim.step(action)
    after_left, after_right = sim.view().arms
    assert after_left.tcp[0, 1] - left.tcp[0, 1] == pytest.approx(0.07, abs=0.02)
    np.testing.assert_allclose(after_right.tcp, right.tcp, atol=0.005)
