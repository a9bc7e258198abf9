"""The work cell that robopo deploy plays: the policy's task with the policy's arm, as the simulator set it."""

from __future__ import annotations

import numpy as np
import pytest

from robopo.cli.sim_cell import SimCell
from robopo.deploy.checkpoint_spec import DeployedPolicy
from robopo.errors import ConfigError
from sims.mujoco_vec import MujocoVec


def policy(task: str, robot: str, **more: object) -> DeployedPolicy:
    sizes: dict[str, object] = {"obs": {}, "action_dim": 7, "obs_steps": 1, "horizon": 4, "action_steps": 4}
    return DeployedPolicy(
        **{**sizes, "control_hz": 20.0, "action_mode": "ee_delta", "task": task, "robot": robot, **more}
    )


@pytest.mark.parametrize(
    ("task", "robot"), [("lift", ""), ("lift", "ur5e"), ("lift", "so101"), ("drawer", "franka"), ("pick_place", "ur5e")]
)
def test_the_cell_shows_what_the_simulator_shows(task: str, robot: str) -> None:
    cell = SimCell(policy(task, robot), seed=3)
    try:
        cell.reset(0)
        state = cell.arm.connect()
        seen, expected = cell.observe(state), cell._sim.observe()
        for name in expected:
            np.testing.assert_allclose(seen[name], expected[name][0], atol=1e-5, err_msg=name)
        assert not cell.success()
    finally:
        cell.arm.disconnect()
        cell.close()


def test_furniture_stands_where_the_episode_put_it() -> None:
    cell = SimCell(policy("drawer", "franka"), seed=3)
    cell.reset(0)
    first = cell.arm._data.mocap_pos.copy()
    cell.reset(1)
    assert np.abs(cell.arm._data.mocap_pos - first).max() > 1e-3
    np.testing.assert_array_equal(cell.arm._data.mocap_pos[0], cell._sim.fixtures[0, 0, :3])
    cell.close()


def test_a_small_gripper_opens_as_told() -> None:
    """The SO-101's jaw turns: metres go in, radians move, metres come out."""
    sim = MujocoVec("lift", 1, arm="so101")
    cell = SimCell(policy("lift", "so101"), seed=3)
    cell.reset(0)
    assert cell.arm.connect().gripper_m == pytest.approx(sim.layout.kind.gripper_max_m, abs=1e-6)
    cell.arm.disconnect()
    cell.close()


def test_two_arms_are_refused() -> None:
    with pytest.raises(ConfigError, match="needs 2 arms"):
        SimCell(policy("two_arm_transport", "franka", action_dim=14))
