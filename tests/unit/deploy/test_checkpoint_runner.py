"""The default loader, on a policy saved a moment ago."""

import numpy as np
import pytest
import torch

from robopo.deploy.checkpoint_spec import read_policy_spec
from robopo.deploy.policy_process import load_checkpoint
from robopo.nn.mlp import DiffusionMLPConfig
from robopo.policies.base import PolicySpec
from robopo.policies.build import build_chunk_policy
from robopo.policies.config import ChunkPolicyConfig
from robopo.policies.io import save_policy
from robopo.policies.normalizer import MinMaxNormalizer
from robopo.processes.base import DiffusionConfig

SPEC = PolicySpec({"state": 4, "environment_state": 3}, 2, ("a", "b"), obs_steps=2, horizon=4, action_steps=3, task="t")


@pytest.fixture
def folder(tmp_path):
    data = {"state": torch.randn(9, 4), "environment_state": torch.randn(9, 3), "action": torch.randn(9, 2)}
    policy = build_chunk_policy(
        SPEC, DiffusionMLPConfig(), DiffusionConfig(), ChunkPolicyConfig(), MinMaxNormalizer.fit(data)
    )
    save_policy(tmp_path / "policy", policy, {})
    return tmp_path / "policy"


def test_the_control_process_reads_the_spec_that_the_policy_was_saved_with(folder):
    spec = read_policy_spec(folder)
    assert dict(spec.obs) == {"environment_state": 3, "state": 4}
    assert (spec.action_dim, spec.obs_steps, spec.horizon, spec.action_steps) == (2, 2, 4, 3)
    assert (spec.control_hz, spec.action_mode, spec.task) == (20.0, "ee_delta", "t")


def test_decisions_depend_on_seed_and_episode_alone(folder):
    runner = load_checkpoint(folder, 5)
    obs = {"state": np.ones((2, 4), np.float32), "environment_state": np.zeros((2, 3), np.float32)}
    runner.begin(0)
    first = runner(obs)
    second = runner(obs)
    runner.begin(0)
    assert first.shape == (4, 2) and np.isfinite(first).all()
    np.testing.assert_array_equal(runner(obs), first)
    runner.begin(1)
    assert not np.array_equal(runner(obs), first)
    assert not np.array_equal(second, first)
