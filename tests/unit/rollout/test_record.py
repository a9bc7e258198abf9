"""Recording a policy: every frame beside the action that followed it, over chunks and episode ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robopo.cli.collect import collect_expert, to_demo_data, write_transitions
from robopo.cli.schema import CollectConfig
from robopo.data.ogbench import read_ogbench
from robopo.errors import ConfigError
from robopo.policies.base import PolicySpec
from robopo.rollout.record import Recording, record_policy
from sims.gymnasium_vec import GymnasiumVec
from tests.helpers import gymnasium_envs

MAKER = f"{gymnasium_envs.__name__}:make_faulty"


class Ramp:
    """Acts 0.1 * (steps seen + row); three rows a chunk."""

    spec = PolicySpec(
        obs={"state": 2}, action_dim=1, action_names=("a",), horizon=3, action_steps=3, control_hz=10.0,
        action_mode="native", task="raise",
    )  # fmt: skip

    def reset(self) -> None: ...

    def act(self, obs: Any, *, deterministic: bool = True, generator: Any = None) -> torch.Tensor:
        steps = obs["state"][:, -1, :1]  # [E, 1]
        return 0.1 * (steps + torch.arange(3.0))[:, :, None]


@pytest.fixture
def sim() -> GymnasiumVec:
    return GymnasiumVec("raise", 2, maker=MAKER, has_success=False, max_episode_steps=5)


def recorded(sim: GymnasiumVec, episodes: int = 3) -> Recording:
    policy: Any = Ramp()
    return record_policy(policy, sim, episodes, seed=0)


def test_each_frame_lies_beside_its_action(sim: GymnasiumVec) -> None:
    """Five steps in chunks of three: the second chunk stops where the episode does."""
    found = recorded(sim)
    assert found.attempted == 3 and found.episode_index.tolist() == [0] * 5 + [1] * 5 + [2] * 5
    np.testing.assert_array_equal(found.obs["state"][:, 0], [0, 1, 2, 3, 4] * 3)
    np.testing.assert_allclose(found.action[:, 0], np.tile([0.0, 0.1, 0.2, 0.3, 0.4], 3), rtol=1e-6)
    np.testing.assert_allclose(found.reward, found.action[:, 0])
    np.testing.assert_allclose(found.returns, 1.0, rtol=1e-6)
    assert found.final_obs["state"][:, 0].tolist() == [5.0] * 3 and not found.terminated.any()
    starts = found.obs["state"][::5, 1]
    assert len(set(starts.tolist())) == 3
    np.testing.assert_array_equal(found.final_obs["state"][:, 1], starts)


def test_it_repeats(sim: GymnasiumVec) -> None:
    first = recorded(sim)
    again = recorded(GymnasiumVec("raise", 2, maker=MAKER, has_success=False, max_episode_steps=5, seed=9))
    np.testing.assert_array_equal(first.obs["state"], again.obs["state"])


def test_transitions_come_back_with_rewards(sim: GymnasiumVec, tmp_path: Path) -> None:
    found = recorded(sim)
    digest = write_transitions(tmp_path / "x.npz", found, overwrite=False)
    data = read_ogbench(tmp_path / "x.npz")
    assert data.fingerprint == digest and data.mask is not None and data.mask.all()
    np.testing.assert_array_equal(data.obs, found.obs["state"])
    np.testing.assert_array_equal(data.reward, found.reward)
    demo = to_demo_data(found, sim.spec)
    assert demo.success is None and demo.num_episodes == 3


def test_without_success_nothing_is_a_success(sim: GymnasiumVec) -> None:
    policy: Any = Ramp()
    with pytest.raises(ConfigError, match="keep_failures=true"):
        record_policy(policy, sim, 1, seed=0, keep_failures=False)


def test_gymnasium_has_no_expert(sim: GymnasiumVec, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="checkpoint="):
        collect_expert(sim, CollectConfig(sim=None), tmp_path / "x", lambda done: None)
    with pytest.raises(ConfigError, match="name a folder"):
        collect_expert(sim, CollectConfig(sim=None), tmp_path / "x.npz", lambda done: None)
