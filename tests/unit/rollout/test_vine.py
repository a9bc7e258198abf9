"""The vine: continuations start where the rollout was, stay apart from it, and leave no trace in it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from robopo.errors import ConfigError, ShapeError
from robopo.losses.gae import gae
from robopo.rollout.collector import Collector
from robopo.rollout.vine import PathSignature, VineCollector, VineConfig
from robopo.types import RolloutBatch
from sims.mujoco_vec import MujocoVec
from tests.helpers.fake_policy import FakePolicy, FakeSpec
from tests.helpers.point_mass import PointMass

SMALL = VineConfig(states=2, continuations=3, sets=2, set_size=2, max_decisions=4)
PARTS = ("latents", "log_probs", "reward", "terminated", "truncated", "first")


def sim(envs: int = 3, **named) -> PointMass:
    return PointMass(envs, max_episode_steps=9, **named)


def policy(**named) -> FakePolicy:
    return FakePolicy(2, spec=FakeSpec(obs_steps=2, **named))


def vine(config: VineConfig = SMALL, seed: int = 4, envs: int = 3) -> VineCollector:
    return VineCollector(sim(envs), policy(), config, seed=seed)


def collect(source: VineCollector | Collector, decisions: int, seed: int = 0) -> RolloutBatch:
    return source.collect(decisions, torch.Generator().manual_seed(seed))


def rows_of(batch: RolloutBatch, number: int) -> Tensor:
    return torch.nonzero(batch.extras["vine"][:, 0] == number)[:, 0]


def test_the_plain_rollout_is_a_collectors_bit_for_bit() -> None:
    """Over two iterations: the second one shows that the simulator was put back."""
    source, plain = vine(), Collector(sim(), policy())
    generators = [torch.Generator().manual_seed(7) for _ in range(2)]
    for _ in range(2):
        batch, expected = source.collect(6, generators[0]), plain.collect(6, generators[1])
        for name in PARTS:
            found = getattr(batch, name)[:6].clone()
            if name == "truncated":  # the joint
                assert found[5].equal(~expected.terminated[5])
                found[5] = expected.truncated[5]
            assert found.equal(getattr(expected, name)), name
        for key in expected.obs:
            assert batch.obs[key][:6].equal(expected.obs[key])
            assert batch.next_obs[key][:6].equal(expected.next_obs[key])
        assert source.stats is not None and plain.stats is not None
        assert source.stats.episodes == plain.stats.episodes
    for name, array in plain.sim.state().items():
        np.testing.assert_array_equal(source.sim.state()[name], array)


def test_continuations_start_where_the_rollout_was() -> None:
    batch = collect(vine(), 6)
    starts = [int(rows_of(batch, number)[0]) for number in range(6)]
    chosen = []
    for state in range(2):
        opening = batch.obs["state"][starts[3 * state]]
        equal = [t for t in range(6) if batch.obs["state"][t].equal(opening)]
        assert len(equal) == 1
        chosen.append(equal[0])
        for number in range(3 * state, 3 * state + 3):
            for key, value in batch.obs.items():
                assert value[starts[number]].equal(value[equal[0]]), key
            assert not batch.latents[starts[number]].equal(batch.latents[equal[0]])
    assert chosen[0] < chosen[1]
    assert not batch.latents[starts[0]].equal(batch.latents[starts[1]])


def test_continuations_start_where_the_rollout_was_in_mujoco() -> None:
    engine = MujocoVec("reach", 2, num_threads=1)
    size = engine.spec.observation["environment_state"].shape[0]
    spec = FakeSpec(obs={"environment_state": size, "state": 17}, action_dim=7, control_hz=20.0, action_mode="ee_delta")
    source = VineCollector(engine, FakePolicy(1, spec=spec), replace(SMALL, max_decisions=2), seed=0)
    batch = collect(source, 3)
    for number in range(6):
        opening = batch.obs["state"][int(rows_of(batch, number)[0])]
        assert any(batch.obs["state"][t].equal(opening) for t in range(3))
    # One more plain iteration goes on from where the first one ended.
    assert collect(source, 2).obs["state"][0].equal(batch.next_obs["state"][2])
    engine.close()


def test_rows_steps_and_counts() -> None:
    source = vine(replace(SMALL, max_decisions=50))
    batch = collect(source, 6)
    use, number, step = (batch.extras[key] for key in ("use", "vine", "vine_step"))
    assert use.shape == number.shape == step.shape == batch.reward.shape
    assert use[:6].all() and number[:6].eq(-1).all() and step[:6, 0].tolist() == list(range(6))
    done = batch.terminated | batch.truncated
    for c in range(6):
        rows = rows_of(batch, c)
        assert step[rows, 0].tolist() == list(range(len(rows)))
        assert batch.first[rows[0]].all() and not batch.first[rows[1:]][use[rows[1:]]].any()
        for env in range(3):
            length = int(use[rows, env].sum())
            assert use[rows[:length], env].all() and not use[rows[length:], env].any()
            assert done[rows[length - 1], env] and not done[rows[: length - 1], env].any()
            assert batch.reward[rows[length:], env].eq(0).all()
    assert batch.extras["vine_label"].shape == (2, 3, 3)
    assert batch.extras["vine_sets"].shape == (2, 2, 2, 3)
    members = batch.extras["vine_sets"]
    assert members.min() >= 0 and members.max() < 3 and (members[:, :, 0] != members[:, :, 1]).all()
    stats = source.stats
    assert stats is not None
    assert stats.decisions == int(use.sum())
    assert stats.env_steps == source.env_steps
    plain = Collector(sim(), policy())
    collect(plain, 6)
    # Chunks of two rows: every decision of the vine costs one or two control steps.
    extra, taken = stats.env_steps - plain.env_steps, int(use[6:].sum())
    assert taken < extra <= 2 * taken


def test_advantages_do_not_leak_across_the_joints() -> None:
    batch = collect(vine(), 6)
    plain = collect(Collector(sim(), policy()), 6)
    generator = torch.Generator().manual_seed(0)
    value, after = torch.randn(2, *batch.reward.shape, generator=generator)

    def advantage(rows: Tensor, terminated: Tensor, truncated: Tensor) -> Tensor:
        return gae(
            reward=batch.reward[rows],
            value=value[rows],
            next_value=after[rows],
            terminated=terminated,
            truncated=truncated,
            gamma=0.9,
            lam=0.8,
        ).advantage

    whole = advantage(torch.arange(len(value)), batch.terminated, batch.truncated)
    assert whole[:6].equal(advantage(torch.arange(6), plain.terminated, plain.truncated))
    for number in range(6):
        rows = rows_of(batch, number)
        cut_off = batch.truncated[rows].clone()
        cut_off[-1] = False  # the last row of a batch needs no flag
        alone = advantage(rows, batch.terminated[rows], cut_off)
        assert whole[rows].equal(alone)


def test_resume_is_exact() -> None:
    straight, first, second = vine(), vine(), vine(seed=99)
    collect(straight, 4, seed=1)
    expected = collect(straight, 5, seed=2)
    collect(first, 4, seed=1)
    second.load_state_dict(first.state_dict())
    found = collect(second, 5, seed=2)
    for name in PARTS:
        assert getattr(found, name).equal(getattr(expected, name)), name
    for mapping in ("obs", "next_obs", "extras"):
        for key, value in getattr(expected, mapping).items():
            assert getattr(found, mapping)[key].equal(value), key
    assert second.env_steps == straight.env_steps
    assert second.stats is not None and straight.stats is not None
    assert second.stats.episodes == straight.stats.episodes


def test_labels_follow_the_chosen_numbers() -> None:
    def labels(signature: PathSignature) -> Tensor:
        return collect(vine(replace(SMALL, signature=signature)), 6).extras["vine_label"]

    assert labels(PathSignature(radius=1e-9))[:, :, 0].tolist() == [[0, 1, 2]] * 2
    assert labels(PathSignature(radius=100.0)).eq(0).all()
    # The goal doesn't move within an episode.
    assert labels(PathSignature(key="environment_state", radius=1e-9)).eq(0).all()
    batch = collect(vine(replace(SMALL, signature=PathSignature(elements=(1,), radius=0.05))), 6)
    ends = []
    for number in range(3):
        rows = rows_of(batch, number)
        last = int(batch.extras["use"][rows, 0].sum()) - 1
        ends.append(float(batch.next_obs["state"][rows[last], 0, -1, 1]))
    found = batch.extras["vine_label"][0, :, 0].tolist()
    for i in range(3):
        for j in range(3):
            if abs(ends[i] - ends[j]) <= 0.05:
                assert found[i] == found[j]
    assert len(set(found)) == 1 + sum(gap > 0.05 for gap in np.diff(sorted(ends)))


def test_waypoints_are_spread_over_each_length() -> None:
    source = vine(replace(SMALL, signature=PathSignature(elements=(0,), waypoints=2)))
    row = source._runner
    row.reset(0)
    more = [row.decide(torch.Generator().manual_seed(0)) for _ in range(5)]
    for number, decision in enumerate(more):
        decision.next_obs["state"][:, -1, 0] = float(number)
    lengths = torch.tensor([1, 3, 5])
    points = source._waypoints(more, [(number < lengths).numpy() for number in range(5)])
    # ceil(L / 2) - 1 and L - 1
    assert points[..., 0].tolist() == [[0.0, 0.0], [1.0, 2.0], [2.0, 4.0]]


def test_diverged_continuations_end() -> None:
    source = vine()
    step, calls = source.sim.step, []

    def breaking(action, mask=None):
        calls.append(mask)
        out = step(action, mask)
        if len(calls) == 13:  # the first step after 6 plain decisions of 2 rows
            out.info["diverged"][1], out.terminated[1] = True, True
        return out

    source.sim.step = breaking
    batch = collect(source, 6)
    rows = rows_of(batch, 0)
    assert batch.extras["use"][rows, 1].tolist() == [True] + [False] * (len(rows) - 1)
    assert source.stats is not None and source.stats.diverged == 0  # an episode of the vine is not one of the rollout


def test_errors_say_what_to_do() -> None:
    with pytest.raises(ConfigError, match="can't restore its state"):
        VineCollector(sim(restorable=False), policy(), SMALL, seed=0)
    with pytest.raises(ConfigError, match="can't mask"):
        VineCollector(sim(maskable=False), policy(action_steps=1), SMALL, seed=0)
    with pytest.raises(ConfigError, match="did you mean 'state'"):
        vine(replace(SMALL, signature=PathSignature(key="stat")))
    with pytest.raises(ShapeError, match="elements 0 to 1"):
        vine(replace(SMALL, signature=PathSignature(elements=(2,))))
    with pytest.raises(ConfigError, match="at least states=2"):
        collect(vine(), 1)
    with pytest.raises(ConfigError, match="collected no vine"):
        vine().load_state_dict(Collector(sim(), policy()).state_dict())
    for name, bad in (("states", 0), ("continuations", 1), ("sets", 1), ("set_size", 9), ("max_decisions", 0)):
        with pytest.raises(ConfigError, match=name):
            VineConfig(**{name: bad})
    with pytest.raises(ConfigError, match="radius"):
        PathSignature(radius=0.0)
