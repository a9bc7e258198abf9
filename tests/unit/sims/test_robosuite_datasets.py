"""robomimic's files and robosuite's simulator speak of the same numbers in the same order."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from robopo.data.hdf5 import read_robomimic
from sims.robosuite_tasks import ACTION_MODE, CONTROL_HZ, TASKS, action_feature, describe, robot_parts


@pytest.mark.parametrize("name", ["Lift", "PickPlaceCan", "NutAssemblySquare", "TwoArmTransport"])
def test_a_published_layout_fits_the_spec(tmp_path: Path, name: str) -> None:
    task = TASKS[name]
    spec = describe(
        task, task.object, separate=False, limit=9, pictures=(), image_size=(84, 84), cameras=("agentview",)
    )
    path = tmp_path / "low_dim.hdf5"
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps({"env_name": name, "env_kwargs": {"control_freq": 20}})
        demo = data.create_group("demo_0")
        obs = demo.create_group("obs")
        sizes = (*robot_parts(task.num_arms), ("object", spec.observation["environment_state"].shape[0]))
        for key, size in sizes:
            obs[key] = np.zeros((5, size))
        demo["actions"] = np.zeros((5, 7 * task.num_arms))
        demo["rewards"] = np.array([0.0, 0, 0, 0, 1])
    demos = read_robomimic(path, action_mode=ACTION_MODE)
    assert (demos.control_hz, demos.action_mode) == (CONTROL_HZ, spec.action_mode)
    assert demos.features["state"].names == spec.observation["state"].names
    for entry, feature in spec.observation.items():
        assert len(demos.features[entry].names) == feature.shape[0]
    assert action_feature(task.num_arms).shape == (7 * task.num_arms,)
