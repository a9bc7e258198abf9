"""Chunks, masks, episode boundaries and the counting of steps, on a point mass with scripted actions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from robopo.errors import ConfigError, ShapeError
from robopo.losses.gae import gae
from robopo.rollout.collector import Collector
from robopo.types import DenoisingChain, Observation
from sims.gymnasium_vec import GymnasiumVec
from sims.mujoco_vec import MujocoVec
from tests.helpers.fake_policy import FakePolicy, FakeSpec
from tests.helpers.point_mass import PointMass


class Scripted:
    """Always emits the same velocity, or heads for the goal."""

    def __init__(self, spec: FakeSpec, *, seek: bool = False) -> None:
        self.spec, self.seek = spec, seek
        self.observed: list[dict[str, Tensor]] = []

    def sample_chain(self, obs: Observation, *, generator: torch.Generator) -> tuple[Tensor, DenoisingChain]:
        self.observed.append({key: value.clone() for key, value in obs.items()})
        batch = len(obs["state"])
        chunk = torch.zeros(batch, self.spec.horizon, self.spec.action_dim)
        if self.seek:
            chunk += (obs["environment_state"][:, -1:] - obs["state"][:, -1:]) * 10
        latents = chunk[:, None].expand(-1, 2, -1, -1)
        return chunk, DenoisingChain(latents=latents, log_probs=torch.zeros(batch, 1))


def collect(collector: Collector, decisions: int, seed: int = 0):
    return collector.collect(decisions, torch.Generator().manual_seed(seed))


def test_shapes() -> None:
    sim = PointMass(3)
    batch = collect(Collector(sim, FakePolicy(4, spec=FakeSpec(obs_steps=2, horizon=3))), 5)
    assert batch.obs["state"].shape == batch.next_obs["state"].shape == (5, 3, 2, 2)
    assert batch.latents.shape == (5, 3, 5, 3, 2)
    assert batch.log_probs.shape == (5, 3, 4)
    assert batch.reward.shape == batch.terminated.shape == batch.truncated.shape == batch.first.shape == (5, 3)
    assert batch.reward.dtype == torch.float32
    assert batch.terminated.dtype == batch.first.dtype == torch.bool


def test_truncation_inside_a_chunk() -> None:
    """7 steps per episode and chunks of 3: the third decision of an episode runs one row only."""
    sim = PointMass(2, max_episode_steps=7)
    collector = Collector(sim, Scripted(FakeSpec(horizon=4, action_steps=3)))
    batch = collect(collector, 6)
    assert batch.truncated[:, 0].tolist() == [False, False, True, False, False, True]
    assert batch.first[:, 0].tolist() == [True, False, False, True, False, False]
    assert not batch.terminated.any()
    assert collector.env_steps == 2 * 14
    assert sim.calls == 14  # rows that no environment needs are not simulated
    stats = collector.stats
    assert stats is not None
    assert [(e.env, e.length, e.success) for e in stats.episodes] == [
        (0, 7, False),
        (1, 7, False),
        (0, 7, False),
        (1, 7, False),
    ]
    assert (stats.env_steps, stats.decisions, stats.success_rate, stats.mean_length) == (28, 12, 0.0, 7.0)
    # The true next observation has the old goal; the following decision sees the new one.
    goal = "environment_state"
    assert batch.next_obs[goal][2].equal(batch.obs[goal][2])
    assert not batch.obs[goal][3].equal(batch.obs[goal][2])
    assert batch.next_obs[goal][0].equal(batch.obs[goal][1])


def test_success_inside_a_chunk_waits_for_the_next_decision() -> None:
    """Distances differ, so environments finish at different rows: the others must not be disturbed."""
    sim = PointMass(4, max_episode_steps=50)
    collector = Collector(sim, Scripted(FakeSpec(horizon=8, action_steps=8), seek=True))
    batch = collect(collector, 3)
    stats = collector.stats
    assert stats is not None
    assert batch.terminated.any()
    lengths = {e.length for e in stats.episodes}
    assert len(lengths) > 1
    assert stats.successes == len(stats.episodes) == int(batch.terminated.sum())
    assert batch.reward.equal(batch.terminated.float())
    finished = sum(e.length for e in stats.episodes)
    assert stats.env_steps == finished + int(sim._steps.sum())
    done = batch.terminated[0]
    assert batch.first[1].equal(done)
    reached = (batch.next_obs["state"][0] - batch.next_obs["environment_state"][0]).norm(dim=-1)[:, 0] < sim.radius
    assert reached.equal(done)


def test_reward_is_the_sum_over_the_executed_rows() -> None:
    sim = PointMass(1, max_episode_steps=30, radius=10.0, terminate_on_success=False)  # reward 1 at every step
    batch = collect(Collector(sim, Scripted(FakeSpec(horizon=4, action_steps=4))), 8)
    # 30 = 7 chunks of 4 and 2 more rows
    assert batch.reward[:, 0].tolist() == [4, 4, 4, 4, 4, 4, 4, 2]


def test_advantages_of_episodes_that_end_inside_a_chunk() -> None:
    """Rewards 3, 3, 1 and a cut: deltas 3, 3, 1 + .5 * 4, so A = 3.9375, 3.75, 3 with gamma = lambda = .5."""

    def advantage(*, terminate: bool) -> list[float]:
        sim = PointMass(1, max_episode_steps=7, radius=10.0, terminate_on_success=terminate)
        batch = collect(Collector(sim, Scripted(FakeSpec(horizon=3, action_steps=3))), 3)
        zero = torch.zeros(3, 1)
        after = torch.full((3, 1), 4.0) * (batch.terminated | batch.truncated)
        flags = {"terminated": batch.terminated, "truncated": batch.truncated}
        out = gae(reward=batch.reward, value=zero, next_value=after, gamma=0.5, lam=0.5, **flags)
        return out.advantage[:, 0].tolist()

    assert advantage(terminate=False) == [3.9375, 3.75, 3.0]
    assert advantage(terminate=True) == [1.0, 1.0, 1.0]  # one row each, and nothing to bootstrap


def test_history_counts_control_steps_not_decisions() -> None:
    sim = PointMass(1, max_episode_steps=100)
    policy = Scripted(FakeSpec(obs_steps=3, horizon=2, action_steps=2), seek=True)
    batch = collect(Collector(sim, policy), 2)
    x = torch.cat([batch.obs["state"][:, 0], batch.next_obs["state"][1:, 0]])[..., 0]  # [3, To]
    assert x[0, 0] == x[0, 1] == x[0, 2]  # padded with the first observation
    assert x[1, 0] == x[0, 2]
    steps = torch.diff(x[1])
    assert (steps[0] * steps[1]) > 0  # both rows of the chunk moved the same way
    assert x[2, 0] == x[1, 2]


def test_env_step_accounting_of_the_published_runs() -> None:
    """E * Ta per decision while no episode ends inside a chunk: Hopper's 900 training iterations are 72 million."""
    assert 900 * 500 * 40 * 4 == 72_000_000
    sim = PointMass(40, max_episode_steps=1000)
    collector = Collector(sim, Scripted(FakeSpec(horizon=4, action_steps=4)))
    collect(collector, 5)
    assert collector.env_steps == 5 * 40 * 4
    collect(collector, 5)
    assert collector.env_steps == 10 * 40 * 4


def test_resume_is_exact() -> None:
    def fresh() -> Collector:
        return Collector(PointMass(3, max_episode_steps=5), FakePolicy(2, spec=FakeSpec(obs_steps=2)))

    straight = fresh()
    collect(straight, 3, seed=1)
    expected = collect(straight, 4, seed=2)
    first = fresh()
    collect(first, 3, seed=1)
    second = fresh()
    second.load_state_dict(first.state_dict())
    found = collect(second, 4, seed=2)
    for key in expected.obs:
        assert found.obs[key].equal(expected.obs[key])
        assert found.next_obs[key].equal(expected.next_obs[key])
    for name in ("latents", "log_probs", "reward", "terminated", "truncated", "first"):
        assert getattr(found, name).equal(getattr(expected, name)), name
    assert second.env_steps == straight.env_steps
    assert second.stats is not None and straight.stats is not None
    assert second.stats.episodes == straight.stats.episodes


def test_resume_of_another_number_of_environments_is_refused() -> None:
    collector = Collector(PointMass(3), FakePolicy(2))
    collect(collector, 1)
    with pytest.raises(ShapeError, match="3 environments, this one has 2"):
        Collector(PointMass(2), FakePolicy(2)).load_state_dict(collector.state_dict())


def test_resume_without_a_restorable_simulator_starts_new_episodes(caplog: pytest.LogCaptureFixture) -> None:
    collector = Collector(PointMass(3, restorable=False), FakePolicy(2))
    collect(collector, 1)
    other = Collector(PointMass(3, restorable=False), FakePolicy(2))
    other.load_state_dict(collector.state_dict())
    assert "new episodes" in caplog.text
    assert collect(other, 1).first.all()
    assert other.env_steps == 2 * collector.env_steps


def test_old_log_probs_are_those_of_the_acting_policy() -> None:
    policy = FakePolicy(3)
    batch = collect(Collector(PointMass(4), policy), 6)
    obs = {key: value[2] for key, value in batch.obs.items()}
    assert policy.replay(obs, batch.latents[2]).equal(batch.log_probs[2])


def test_reset_drops_unfinished_episodes() -> None:
    collector = Collector(PointMass(2), FakePolicy(1))
    collect(collector, 2)
    collector.reset(seed=3)
    batch = collect(collector, 1)
    assert batch.first.all()
    expected = PointMass(2).reset(3)["environment_state"]
    np.testing.assert_array_equal(batch.obs["environment_state"][0, :, 0].numpy(), expected)


@pytest.mark.parametrize(
    ("spec", "sim", "error", "message"),
    [
        (FakeSpec(obs={"stat": 2}), PointMass(), ShapeError, "did you mean 'state'"),
        (
            FakeSpec(obs={"state": 3}),
            PointMass(),
            ShapeError,
            r"is \[2\] in .*, the policy was trained on \[3\]",
        ),
        (FakeSpec(action_dim=7), PointMass(), ShapeError, "action_mode"),
    ],
)
def test_mismatches_are_named(spec: FakeSpec, sim: PointMass, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Collector(sim, Scripted(spec))
    with pytest.raises(ConfigError, match="num_decisions"):
        collect(Collector(PointMass(), Scripted(FakeSpec())), 0)


def test_diverged_episodes_are_counted() -> None:
    sim = MujocoVec("reach", 3)
    policy = Scripted(FakeSpec(obs={"state": 17}, action_dim=7, control_hz=20.0, action_mode="ee_delta"))
    collector = Collector(sim, policy)
    collector.reset(0)
    state = sim.state()
    state["physics"][1, 1 + sim.model.nq] = np.nan
    sim.restore(state)
    collect(collector, 1)
    assert collector.stats is not None
    assert collector.stats.diverged == 1
    assert [(e.env, e.diverged) for e in collector.stats.episodes if e.diverged] == [(1, True)]
    sim.close()


def test_without_success_there_is_no_rate() -> None:
    """A running task: episodes end and have returns, and a rate of 0 would be a lie."""
    spec = FakeSpec(
        obs={"state": 17}, action_dim=6, action_names=tuple("abcdef"), control_hz=20.0, action_mode="native"
    )
    sim = GymnasiumVec("HalfCheetah-v5", 2, max_episode_steps=4)
    collector = Collector(sim, FakePolicy(spec=spec))
    collector.collect(4, torch.Generator().manual_seed(0))
    assert collector.stats is not None and len(collector.stats.episodes) == 4
    assert np.isnan(collector.stats.success_rate) and np.isfinite(collector.stats.mean_return)
    saved = collector.state_dict()
    first = collector.collect(3, torch.Generator().manual_seed(1))
    resumed = Collector(GymnasiumVec("HalfCheetah-v5", 2, max_episode_steps=4, seed=9), FakePolicy(spec=spec))
    resumed.load_state_dict(saved)
    assert torch.equal(resumed.collect(3, torch.Generator().manual_seed(1)).next_obs["state"], first.next_obs["state"])
