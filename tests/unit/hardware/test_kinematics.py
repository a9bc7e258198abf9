"""Kinematics against MuJoCo's own, and the properties that inverse kinematics must have."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from hardware.kinematics import (
    dls_step,
    rotation_error,
    rotation_from_quaternion,
    rotation_from_vector,
    track_delta,
)
from sims.arm_model import FRANKA, chain_from_model
from sims.mujoco_vec import load_model


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    return load_model("reach")


def random_joints(model: mujoco.MjModel, count: int) -> np.ndarray:
    chain = chain_from_model(model)
    return np.random.default_rng(0).uniform(chain.low_rad, chain.high_rad, (count, 7))


def test_forward_and_jacobian_equal_mujoco(model: mujoco.MjModel) -> None:
    joints = random_joints(model, 20)
    position, rotation, jacobian = chain_from_model(model).forward_and_jacobian(joints)
    data, site = mujoco.MjData(model), model.site("tcp").id
    for row, q in enumerate(joints):
        data.qpos[:7] = q
        mujoco.mj_forward(model, data)
        linear, angular = np.zeros((3, model.nv)), np.zeros((3, model.nv))
        mujoco.mj_jacSite(model, data, linear, angular, site)
        np.testing.assert_allclose(position[row], data.site_xpos[site], atol=1e-12)
        np.testing.assert_allclose(rotation[row], data.site_xmat[site].reshape(3, 3), atol=1e-12)
        np.testing.assert_allclose(jacobian[row], np.concatenate([linear, angular])[:, :7], atol=1e-12)


def test_franka_flange_lies_where_its_published_dh_table_puts_it(model: mujoco.MjModel) -> None:
    # All joints zero: x = 0.088, z = 0.333 + 0.316 + 0.384 - 0.107 (flange) - 0.1034 (tool), by hand.
    position, rotation = chain_from_model(model).forward(np.zeros((1, 7)))
    np.testing.assert_allclose(position[0], [0.088, 0.0, 0.333 + 0.316 + 0.384 - 0.107 - 0.1034], atol=1e-9)
    np.testing.assert_allclose(rotation[0, :, 2], [0, 0, -1], atol=1e-9)


def test_rotations() -> None:
    quarter = rotation_from_vector(np.array([[0.0, 0.0, np.pi / 2]]))[0]
    np.testing.assert_allclose(quarter, [[0, -1, 0], [1, 0, 0], [0, 0, 1]], atol=1e-12)
    np.testing.assert_array_equal(rotation_from_vector(np.zeros((1, 3)))[0], np.eye(3))
    half = rotation_from_quaternion(np.array([0.0, 2.0, 0.0, 0.0]))
    np.testing.assert_allclose(half, np.diag([1.0, -1.0, -1.0]), atol=1e-12)
    small = np.array([[0.01, -0.02, 0.03]])
    np.testing.assert_allclose(rotation_error(rotation_from_vector(small), np.eye(3)[None]), small, rtol=1e-3)


def test_tracking_reaches_a_small_delta_and_respects_limits(model: mujoco.MjModel) -> None:
    chain = chain_from_model(model)
    home = np.tile(FRANKA.home_rad, (32, 1))
    delta = np.zeros((32, 6))
    delta[:, :3] = np.random.default_rng(1).uniform(-0.012, 0.012, (32, 3))
    target = track_delta(chain, home, delta, dt_s=0.05)
    before, rotation_before = chain.forward(home)
    after, rotation_after = chain.forward(target)
    np.testing.assert_allclose(after - before, delta[:, :3], atol=3e-4)
    assert np.abs(rotation_error(rotation_before, rotation_after)).max() < 1e-3
    far = track_delta(chain, home, np.full((32, 6), 0.5), dt_s=0.05)
    assert (np.abs(far - home) <= chain.velocity_rad_s * 0.05 + 1e-12).all()


def test_inverse_kinematics_stays_finite_and_inside_limits_at_a_singularity(model: mujoco.MjModel) -> None:
    chain = chain_from_model(model)
    stretched = np.array([[0.0, 0.0, 0.0, -0.07, 0.0, 0.0, 0.0]])
    q = stretched
    for _ in range(50):
        q = dls_step(chain, q, np.array([[2.0, 0.0, 2.0]]), np.eye(3)[None])
    assert np.isfinite(q).all()
    assert (q >= chain.low_rad).all() and (q <= chain.high_rad).all()
