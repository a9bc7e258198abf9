"""The offline phase as a stage: exact resume, and a failed iteration that can be done again."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from robopo.algos.cal_ql import CalQL, CalQLConfig
from robopo.algos.off_policy import Explorer
from robopo.data.replay import ReplayBuffer
from robopo.errors import ConfigError, NonFiniteError
from robopo.policies.base import PolicySpec
from robopo.rollout.collector import Collector
from robopo.train.nan_guard import NanGuard
from robopo.train.off_policy import OffPolicyStage
from robopo.train.offline import OfflineStage
from robopo.train.tree import decode_tree, encode_tree
from tests.helpers.point_mass import PointMass
from tests.unit.algos.off_policy_toy import critic, filled, rng, same, soft_actor

SPEC = PolicySpec(
    obs={"state": 2, "environment_state": 2},
    action_dim=2,
    action_names=("vx", "vy"),
    horizon=1,
    action_steps=1,
    control_hz=10.0,
    action_mode="velocity",
)


def cal_ql(seed: int = 0) -> CalQL:
    return CalQL(soft_actor(seed), critic(2), filled(24, 5, mc_return=True), CalQLConfig(batch_size=8))


def make(seed: int = 0, **options: Any) -> OfflineStage:
    algorithm = cal_ql(seed)
    return OfflineStage(
        algorithm=algorithm,
        modules={"policy": algorithm.policy, "critic": algorithm.critic},
        generator=rng(2),
        export=lambda folder: (folder / "policy").write_text("here") and None,
        **{"updates_per_iteration": 2} | options,
    )


@pytest.fixture
def guard(tmp_path: Path) -> NanGuard:
    return NanGuard(tmp_path)


def test_resume_is_exact_through_the_files(guard: NanGuard, tmp_path: Path) -> None:
    straight, resumed = make(), make(seed=9)
    metrics = straight.step(guard)
    assert all(map(math.isfinite, metrics.values()))
    assert straight.evidence() == {}
    saved = decode_tree(*encode_tree(straight.state()))
    straight.step(guard)
    resumed.restore(saved)
    resumed.step(guard)
    assert same(straight.state(), resumed.state())
    straight.export(tmp_path)
    assert (tmp_path / "policy").exists()


def test_a_failed_iteration_can_be_done_again(guard: NanGuard) -> None:
    stage = make()
    stage._algorithm.demos._columns["reward"][:] = torch.nan
    before = copy.deepcopy(stage.state())
    with pytest.raises(NonFiniteError, match="metrics"):
        stage.step(guard)
    evidence = copy.deepcopy(stage.evidence())
    assert same(evidence["learner"], before)
    with pytest.raises(NonFiniteError):
        stage.replay(evidence, guard)
    stage._algorithm.demos._columns["reward"][:] = 1.0
    assert math.isfinite(stage.replay(evidence, guard)["td_loss"])


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="updates_per_iteration=0"):
        make(updates_per_iteration=0)


def test_online_returns_reach_the_buffer(guard: NanGuard) -> None:
    """Cal-QL's own column: known for the episodes that ended within the rollout."""
    actor, q = soft_actor(spec=SPEC), critic(2, spec=SPEC)
    demos = ReplayBuffer(SPEC, 1, extras={"mc_return": ()})
    algorithm = CalQL(actor, q, demos, CalQLConfig(batch_size=8))
    collector = Collector(PointMass(4, max_episode_steps=3), Explorer(algorithm))
    collector.reset(0)
    buffer = ReplayBuffer(SPEC, 100, extras={"mc_return": ()})
    stage = OffPolicyStage(
        collector=collector,
        algorithm=algorithm,
        buffer=buffer,
        modules={"policy": actor, "critic": q},
        num_decisions=4,
        sample_generator=rng(1),
        update_generator=rng(2),
        export=lambda folder: None,
        columns=algorithm.columns,
    )
    assert math.isfinite(stage.step(guard)["td_loss"])
    known = buffer.rows(torch.arange(16)).extras["mc_return"].isfinite().view(4, 4)
    assert known[:3].all()  # three decisions are an episode
    assert not known[3].any()
