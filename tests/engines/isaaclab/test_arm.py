"""The native tasks in Isaac Lab: the same model, the same starts, the same outcome, pictures."""

from __future__ import annotations

import numpy as np
import pytest

from sims.base import VecSim
from sims.experts import make_expert
from sims.isaaclab_vec import IsaacLabVec
from sims.mujoco_vec import MujocoVec


def play(sim: VecSim, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """One episode each under the scripted expert: first observation, success [E], length [E]."""
    first = obs = sim.reset(seed)
    expert = make_expert(sim.spec.name, sim.num_envs)
    done, success, length = np.zeros(sim.num_envs, bool), np.zeros(sim.num_envs, bool), np.zeros(sim.num_envs)
    while not done.all():
        action = np.clip(expert.act(obs), sim.spec.action.low, sim.spec.action.high).astype(np.float32)
        step = sim.step(action)
        ended = step.terminated | step.truncated
        success |= ended & ~done & step.info["success"]
        length = np.where(ended & ~done, step.info["episode_length"], length)
        done, obs = done | ended, step.obs
        expert.reset(ended)
    return first, success, length


@pytest.mark.parametrize("task", ["reach", "lift"])
def test_the_native_expert_succeeds_here_too(task: str) -> None:
    native = MujocoVec(task, 32)
    first, _, length = play(native, 0)
    native.close()
    sim = IsaacLabVec(task, 32)
    try:
        assert sim.spec.observation == native.spec.observation and sim.spec.action == native.spec.action
        here, success, steps = play(sim, 0)
        for name in first:
            np.testing.assert_allclose(here[name], first[name], atol=1e-6)
        assert success.mean() >= 0.95
        assert abs(steps.mean() - length.mean()) < 3
    finally:
        sim.close()


def test_the_model_that_newton_simulates_is_the_native_one() -> None:
    sim = IsaacLabVec("lift", 1)
    try:
        from isaaclab_newton.physics.newton_manager import NewtonManager

        native, here = sim._task.layout.model, NewtonManager._solver.mj_model
        solid = (native.geom_contype | native.geom_conaffinity) != 0
        for name in ("body_mass", "body_inertia", "body_ipos", "body_gravcomp", "dof_armature", "jnt_range"):
            np.testing.assert_allclose(getattr(here, name), getattr(native, name), rtol=1e-5, atol=1e-6, err_msg=name)
        for name in ("geom_condim", "geom_friction", "geom_solref", "geom_solimp", "geom_priority", "geom_type"):
            np.testing.assert_allclose(getattr(here, name), getattr(native, name)[solid], rtol=1e-5, err_msg=name)
        np.testing.assert_allclose(here.eq_solref, native.eq_solref, rtol=1e-5)
        assert (here.nq, here.nv, here.neq) == (native.nq, native.nv, native.neq)
        # Arm and fingers meet the scene and never each other, whatever bits Newton chose for that.
        meets = (here.geom_contype[:, None] & here.geom_conaffinity) | (
            here.geom_conaffinity[:, None] & here.geom_contype
        )
        arm = range(1, here.ngeom - 1)  # the table is first, the cube last
        assert not any(meets[i, j] for i in arm for j in arm if i != j)
        assert all(meets[i, 0] and meets[i, here.ngeom - 1] for i in arm)
    finally:
        sim.close()


def test_pictures_show_the_cube_and_depths_are_metres() -> None:
    sim = IsaacLabVec("lift", 2, cameras=["front"], image_size=64, depth=True)
    try:
        obs = sim.reset(0)
        picture, depth = obs["image_front"], obs["depth_front"]
        assert picture.shape == (2, 64, 64, 3) and picture.dtype == np.uint8
        red = picture[..., 0].astype(int) - picture[..., 1:].max(axis=-1)
        assert ((red > 40).sum(axis=(1, 2)) > 5).all()  # nothing else is red
        assert depth.shape == (2, 64 * 64) and np.isfinite(depth).all()
        seen = depth[depth > 0]
        assert len(seen) > 0.3 * depth.size and 0.3 < np.median(seen) < 3.0
        assert sim.spec.observation["image_front"].is_image
        assert sim.render(1, camera="front", width=32, height=24).shape == (24, 32, 3)
        moved = sim.step(np.tile(np.array([[0.04, 0, 0, 0, 0, 0, 0.08]], np.float32), (2, 1)))
        assert not np.array_equal(moved.obs["image_front"], picture)
    finally:
        sim.close()
