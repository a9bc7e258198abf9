"""Groups start alike, run one episode, wait, and are run again when they teach nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from robopo.algos.group_relative import GroupRelative
from robopo.errors import ConfigError
from robopo.eval.seeds import RESERVED
from robopo.rollout.episodes import EpisodeSeeds
from robopo.rollout.group_collector import GroupCollector, GroupConfig
from robopo.types import DenoisingChain, Observation, RolloutBatch
from sims.mujoco_vec import MujocoVec
from tests.helpers.fake_policy import FakePolicy, FakeSpec
from tests.helpers.point_mass import PointMass

REACH = FakeSpec(obs={"environment_state": 6, "state": 17}, action_dim=7, control_hz=20.0, action_mode="ee_delta")


class Chooser:
    """Heads for the goal in the environments of ``seek`` [E], away from it in all others."""

    def __init__(self, seek: list[bool], spec: FakeSpec | None = None) -> None:
        self.spec, self.seek = spec or FakeSpec(), torch.tensor(seek)
        self.calls = 0

    def sample_chain(self, obs: Observation, *, generator: torch.Generator) -> tuple[Tensor, DenoisingChain]:
        self.calls += 1
        way = obs["environment_state"][:, -1] - obs["state"][:, -1]
        move = torch.where(self.seek[:, None], way, -way) * 10
        chunk = move[:, None].expand(-1, self.spec.horizon, -1)
        return chunk, DenoisingChain(latents=chunk[:, None].expand(-1, 2, -1, -1), log_probs=torch.zeros(len(way), 1))


def collector(sim, policy, *, size: int = 2, rounds: int = 1, seed: int = 3) -> GroupCollector:
    config = GroupConfig(group_size=size, max_rounds=rounds)
    return GroupCollector(sim, policy, config, seeds=EpisodeSeeds(seed, reserved=RESERVED))


def collect(source: GroupCollector, decisions: int, seed: int = 0) -> RolloutBatch:
    return source.collect(decisions, torch.Generator().manual_seed(seed))


def assert_same(found: RolloutBatch, expected: RolloutBatch) -> None:
    for name in ("latents", "log_probs", "reward", "terminated", "truncated", "first"):
        assert getattr(found, name).equal(getattr(expected, name)), name
    for mapping in ("obs", "next_obs", "extras"):
        for key, value in getattr(expected, mapping).items():
            assert getattr(found, mapping)[key].equal(value), key


def test_members_start_bit_equal_and_groups_differ() -> None:
    source = collector(PointMass(6), FakePolicy(2), size=3)
    first, second = collect(source, 4), collect(source, 4)
    for batch in (first, second):
        assert batch.extras["group"].tolist() == [0, 0, 0, 1, 1, 1]
        for value in batch.obs.values():
            assert value[0, 0].equal(value[0, 1]) and value[0, 0].equal(value[0, 2])
            assert value[0, 3].equal(value[0, 5])
            assert not value[0, 0].equal(value[0, 3])
        assert not batch.latents[0, 0].equal(batch.latents[0, 1])  # the policy's noise differs
        assert batch.first[0].all() and not batch.first[1:].any()
    assert not first.obs["environment_state"][0].equal(second.obs["environment_state"][0])


def test_members_start_bit_equal_in_mujoco() -> None:
    sim = MujocoVec("reach", 4, num_threads=1, max_episode_steps=4)
    size = sim.spec.observation["environment_state"].shape[0]
    spec = FakeSpec(**{**vars(REACH), "obs": {"environment_state": size, "state": 17}})
    source = collector(sim, FakePolicy(1, spec=spec))
    states = []
    reset = sim.reset
    sim.reset = lambda *args, **named: (reset(*args, **named), states.append(sim.state()))[0]
    batch = collect(source, 2)
    for name in ("physics", "reference", "fixtures"):
        np.testing.assert_array_equal(states[0][name][::2], states[0][name][1::2])
        assert not np.array_equal(states[0][name][0], states[0][name][2])
    assert batch.obs["state"][0, 0].equal(batch.obs["state"][0, 1])
    assert not batch.obs["state"][1, 0].equal(batch.obs["state"][1, 1])
    sim.close()


def test_one_episode_then_the_environment_waits() -> None:
    sim = PointMass(4, max_episode_steps=30)
    policy = Chooser([True, False, True, True])
    source = collector(sim, policy)
    batch = collect(source, 50)
    use = batch.extras["use"]
    assert batch.reward.shape == (15, 4)  # 30 steps in chunks of 2: no row without an episode
    assert policy.calls == 15
    for env in (0, 2, 3):
        length = int(use[:, env].sum())
        assert use[:length, env].all() and not use[length:, env].any()
        assert batch.terminated[length - 1, env]
        assert float(batch.reward[:, env].sum()) == 1.0
    assert batch.truncated[:, 1].tolist() == [False] * 14 + [True]
    assert int((batch.terminated | batch.truncated).sum()) == 4
    stats = source.stats
    assert stats is not None
    assert sorted((e.env, e.success) for e in stats.episodes) == [(0, True), (1, False), (2, True), (3, True)]
    assert stats.env_steps == source.env_steps == sum(e.length for e in stats.episodes)
    assert stats.decisions == int(use.sum())
    zero = torch.zeros_like(batch.reward)
    out = GroupRelative(eps=1e-9)(batch, batch.reward, zero, zero)
    assert out.use is not None
    assert out.use.equal(use & torch.tensor([True, True, False, False]))  # the second group succeeded twice
    torch.testing.assert_close(out.advantage[0], torch.tensor([1.0, -1.0, 0.0, 0.0]))


def test_an_unfinished_episode_counts_as_it_is() -> None:
    sim = PointMass(2, max_episode_steps=100, radius=10.0, terminate_on_success=False)  # reward 1 per step
    source = collector(sim, Chooser([True, False]))
    batch = collect(source, 3)
    assert batch.truncated.tolist() == [[False, False], [False, False], [True, True]]
    assert batch.reward.sum(0).tolist() == [6.0, 6.0]
    assert source.stats is not None
    assert [(e.return_, e.length, e.success, e.final_success) for e in source.stats.episodes] == [
        (6, 6, True, True)
    ] * 2


def test_level_groups_are_run_again_until_they_are_not() -> None:
    sim = PointMass(4, max_episode_steps=30)
    policy = Chooser([True, True, True, False])
    source = collector(sim, policy, rounds=3)
    batch = collect(source, 20)
    stats = source.stats
    assert stats is not None
    # Group 0 always succeeds: three rounds. Group 1 has spread at once: one.
    assert sorted(e.env for e in stats.episodes) == [0, 0, 0, 1, 1, 1, 2, 3]
    assert stats.env_steps == sum(e.length for e in stats.episodes)
    once = collect(collector(PointMass(4, max_episode_steps=30), Chooser([True, True, True, False])), 20)
    for name in ("reward", "terminated", "truncated"):
        assert getattr(batch, name)[:, 2:].equal(getattr(once, name)[:, 2:]), name
    assert batch.extras["use"][:, 2:].equal(once.extras["use"][:, 2:])
    goal = batch.obs["environment_state"]
    assert goal[0, 0].equal(goal[0, 1])
    assert not goal[0, 0].equal(once.obs["environment_state"][0, 0])  # the last start, not the first
    # What is in the batch is the last round: its rewards, and its lengths.
    last = {e.env: e for e in stats.episodes}
    for env in range(4):
        assert int(batch.extras["use"][:, env].sum()) == -(-last[env].length // 2)
        assert float(batch.reward[:, env].sum()) == last[env].return_


def test_resume_is_exact() -> None:
    def fresh() -> GroupCollector:
        sim = PointMass(4, max_episode_steps=9, restorable=False)
        return collector(sim, FakePolicy(2, spec=FakeSpec(obs_steps=2)), rounds=2)

    straight, first, second = fresh(), fresh(), fresh()
    collect(straight, 4, seed=1)
    expected = collect(straight, 4, seed=2)
    collect(first, 4, seed=1)
    second.load_state_dict(first.state_dict())
    assert_same(collect(second, 4, seed=2), expected)
    assert second.env_steps == straight.env_steps
    assert second.stats is not None and straight.stats is not None
    assert second.stats.episodes == straight.stats.episodes


def test_diverged_episodes_end_and_are_counted() -> None:
    sim = MujocoVec("reach", 2, num_threads=1, max_episode_steps=6)
    size = sim.spec.observation["environment_state"].shape[0]
    spec = FakeSpec(**{**vars(REACH), "obs": {"environment_state": size, "state": 17}})
    source = collector(sim, FakePolicy(1, spec=spec))
    step, calls = sim.step, []

    def breaking(action, mask=None):
        if not calls:
            state = sim.state()
            state["physics"][1, 1 + sim.model.nq] = np.nan
            sim.restore(state)
        calls.append(mask)
        return step(action, mask)

    sim.step = breaking
    batch = collect(source, 5)
    assert source.stats is not None
    assert source.stats.diverged == 1
    assert batch.extras["use"][:, 1].tolist() == [True, False, False]
    assert batch.terminated[0, 1]
    assert all(value.isfinite().all() for value in (*batch.obs.values(), *batch.next_obs.values()))
    sim.close()


def test_errors_say_what_to_do() -> None:
    with pytest.raises(ConfigError, match="multiple of group_size"):
        collector(PointMass(5), FakePolicy(1))
    with pytest.raises(ConfigError, match="maskable"):
        collector(PointMass(4, maskable=False), FakePolicy(1, spec=FakeSpec(action_steps=1)))
    with pytest.raises(ConfigError, match="num_decisions"):
        collect(collector(PointMass(4), FakePolicy(1)), 0)
    with pytest.raises(ConfigError, match="group_size"):
        GroupConfig(group_size=1)
    with pytest.raises(ConfigError, match="max_rounds"):
        GroupConfig(max_rounds=0)
    with pytest.raises(ConfigError, match="did not collect in groups"):
        collector(PointMass(4), FakePolicy(1)).load_state_dict({"env_steps": 1})
