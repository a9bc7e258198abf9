from __future__ import annotations

import numpy as np
import pytest
import torch

from robopo.errors import ShapeError
from robopo.rollout.history import ObsHistory


def obs(*values: float) -> dict[str, np.ndarray]:
    return {"state": np.array(values, np.float64)[:, None]}  # [E, 1]


def test_windows_roll_and_start_with_the_first_observation() -> None:
    history = ObsHistory({"state": 1}, num_envs=2, obs_steps=3)
    everywhere, second = np.array([True, True]), np.array([False, True])
    history.reset(obs(1, 10), everywhere)
    history.push(obs(2, 20), everywhere)
    before = history.torch("cpu")
    assert before["state"][..., 0].tolist() == [[1, 1, 2], [10, 10, 20]]
    history.push(obs(99, 30), second)
    history.reset(obs(5, 99), ~second)
    assert history.torch("cpu")["state"][..., 0].tolist() == [[5, 5, 5], [10, 20, 30]]
    assert before["state"][..., 0].tolist() == [[1, 1, 2], [10, 10, 20]]  # a copy
    assert before["state"].dtype == torch.float32


def test_state_round_trip_and_wrong_shapes() -> None:
    history = ObsHistory({"state": 1}, num_envs=2, obs_steps=2)
    history.reset(obs(1, 2), np.array([True, True]))
    other = ObsHistory({"state": 1}, num_envs=2, obs_steps=2)
    other.load_state_dict(history.state_dict())
    assert other.torch("cpu")["state"].equal(history.torch("cpu")["state"])
    with pytest.raises(ShapeError, match="num_envs"):
        ObsHistory({"state": 1}, num_envs=3, obs_steps=2).load_state_dict(history.state_dict())
    with pytest.raises(ShapeError, match="did you mean 'state'"):
        ObsHistory({"states": 1}, num_envs=2, obs_steps=2).load_state_dict(history.state_dict())
