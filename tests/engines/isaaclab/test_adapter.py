"""What is particular to the adapter: one per process, graphs, divergence, names, processes."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from sims.isaaclab_process import IsaacLabProcess, open_isaaclab
from sims.isaaclab_vec import IsaacLabVec

SPINNER = "tests.engines.isaaclab.spinner:Spinner"
SCRIPT = """
import numpy as np
from sims.isaaclab_vec import IsaacLabVec
sim = IsaacLabVec({task!r}, 3, seed=5)
obs = sim.reset(5)
for k in range(12):
    obs = sim.step(np.full((3, sim.spec.action.shape[0]), 0.01, np.float32)).obs
import os, sys
sys.stdout.write("RESULT " + np.concatenate([o.ravel() for o in obs.values()]).tobytes().hex())
sys.stdout.flush()
os._exit(0)
"""


def trajectory(sim: IsaacLabVec, steps: int) -> list[np.ndarray]:
    sim.reset(5)
    action = np.full((sim.num_envs, sim.spec.action.shape[0]), 0.01, np.float32)
    return [np.concatenate([o.ravel() for o in sim.step(action).obs.values()]) for _ in range(steps)]


def test_a_second_one_is_refused_while_the_first_lives() -> None:
    first = IsaacLabVec(SPINNER, 2)
    try:
        with pytest.raises(RuntimeError, match="close"):
            IsaacLabVec(SPINNER, 2)
        first.step(np.zeros((2, 1), np.float32))  # it survived
    finally:
        first.close()
    IsaacLabVec(SPINNER, 2).close()


def test_a_second_one_lives_in_a_process_of_its_own() -> None:
    first = open_isaaclab(SPINNER, 2, seed=3)
    second = open_isaaclab(SPINNER, 2, seed=3)
    try:
        assert isinstance(first, IsaacLabVec) and isinstance(second, IsaacLabProcess)
        assert first.spec == second.spec
        action = np.zeros((2, 1), np.float32)
        one, two = first.reset(3), second.reset(3)
        for _ in range(3):
            np.testing.assert_array_equal(one["state"], two["state"])
            one, two = first.step(action).obs, second.step(action).obs
        with pytest.raises(ValueError, match="action"):
            second.step(action[:, :0])
        with pytest.raises(RuntimeError, match="restorable"):
            second.state()
        second._process.kill()
        with pytest.raises(RuntimeError, match="has ended"):
            second.observe()
    finally:
        second.close()
        second.close()
        first.close()


def test_names_that_do_not_exist_are_answered_with_near_ones() -> None:
    with pytest.raises(ValueError, match=r"near: .*lift"):
        IsaacLabVec("lifft", 2)
    with pytest.raises(ValueError, match="Isaac-Cartpole-Direct"):
        IsaacLabVec("Isaac-Cartpol-Direct", 2)
    with pytest.raises(ValueError, match="did you mean 'Spinner"):
        IsaacLabVec("tests.engines.isaaclab.spinner:Spiner", 2)
    with pytest.raises(ValueError, match="no module"):
        IsaacLabVec("tests.engines.nowhere:Spinner", 2)
    with pytest.raises(ValueError, match="front"):
        IsaacLabVec("lift", 2, cameras=["frnt"])
    IsaacLabVec(SPINNER, 1).close()  # no failure left the process occupied


def test_remote_assets_offline_are_named_without_a_long_wait() -> None:
    with pytest.raises(FileNotFoundError, match="NEWTON_ASSET_DIR"):
        IsaacLabVec("Isaac-Cartpole-Direct", 2)


def test_the_recorded_step_gives_the_same_numbers() -> None:
    results = []
    for graph in (True, False):
        sim = IsaacLabVec("lift", 2, cpu_graph=graph)
        results.append(trajectory(sim, 15))
        sim.close()
    np.testing.assert_array_equal(results[0], results[1])


def test_a_broken_environment_ends_alone() -> None:
    sim = IsaacLabVec(SPINNER, 3)
    try:
        before = sim.reset(0)["state"]
        sim._task.env.broken[1] = True
        step = sim.step(np.zeros((3, 1), np.float32))
        assert step.info["diverged"].tolist() == step.terminated.tolist() == [False, True, False]
        assert step.reward[1] == 0 and sim.diverged_count == 1
        np.testing.assert_array_equal(step.final_obs["state"][1], before[1])
        assert np.isfinite(step.obs["state"]).all() and not np.array_equal(step.obs["state"][1], before[1])
        assert sim.step(np.zeros((3, 1), np.float32)).info["episode_length"].tolist() == [2, 1, 2]
    finally:
        sim.close()


def test_exploding_physics_end_the_episode_of_an_arm() -> None:
    sim = IsaacLabVec("lift", 2)
    try:
        before = sim.reset(0)
        import torch

        robot = sim._task.env.scene["robot"]
        speed = torch.full((1, robot.num_joints), 1e4)
        robot.write_joint_velocity_to_sim_index(velocity=speed, env_ids=torch.tensor([0], dtype=torch.int32))
        step = sim.step(np.zeros((2, 7), np.float32))
        assert step.info["diverged"].tolist() == step.terminated.tolist() == [True, False]
        np.testing.assert_array_equal(step.final_obs["state"][0], before["state"][0])
        after = sim.step(np.zeros((2, 7), np.float32))
        assert np.isfinite(after.obs["state"]).all() and not after.terminated.any()
    finally:
        sim.close()


@pytest.mark.parametrize("task", ["lift", SPINNER])
def test_the_same_seed_repeats_in_another_process(task: str) -> None:
    def once() -> str:
        command = [sys.executable, "-c", SCRIPT.format(task=task)]
        out = subprocess.run(command, check=True, capture_output=True, text=True, timeout=200).stdout
        return out.partition("RESULT ")[2]

    first = once()
    assert first and first == once()
