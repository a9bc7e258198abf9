"""The ring: what it keeps, forgets, draws and resumes, and demonstrations in its form."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from robopo.data.demo import DemoData, Episode
from robopo.data.replay import ReplayBuffer, demo_transitions, seed_with
from robopo.errors import CheckpointError, ConfigError, DataError, ShapeError
from robopo.policies.base import PolicySpec
from robopo.types import RolloutBatch

SPEC = PolicySpec(obs={"state": 1}, action_dim=1, action_names=("v",), obs_steps=2, horizon=3, action_steps=2)


def rows(start: int, n: int) -> dict:
    """Decisions whose every number tells which one it is."""
    number = torch.arange(start, start + n, dtype=torch.float32)
    return {
        "obs": {"state": number.view(n, 1, 1).expand(n, 2, 1)},
        "action": number.view(n, 1, 1).expand(n, 3, 1),
        "reward": number,
        "terminated": number % 2 == 0,
        "next_obs": {"state": number.view(n, 1, 1).expand(n, 2, 1) + 0.5},
    }


def held(buffer: ReplayBuffer) -> list[float]:
    return buffer.rows(torch.arange(len(buffer))).reward.tolist()


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_oldest_make_room() -> None:
    buffer = ReplayBuffer(SPEC, 5)
    buffer.add(**rows(0, 3))
    assert held(buffer) == [0, 1, 2]
    buffer.add(**rows(3, 4))
    assert held(buffer) == [5, 6, 2, 3, 4]
    buffer.add(**rows(7, 1))
    assert held(buffer) == [5, 6, 7, 3, 4]


@pytest.mark.parametrize("already", [0, 2])
def test_of_more_than_fit_the_newest_stay(already: int) -> None:
    buffer = ReplayBuffer(SPEC, 4)
    if already:
        buffer.add(**rows(100, already))
    buffer.add(**rows(0, 11))
    assert sorted(held(buffer)) == [7, 8, 9, 10]
    buffer.add(**rows(11, 1))
    assert sorted(held(buffer)) == [8, 9, 10, 11]


def test_columns_of_a_draw_belong_together() -> None:
    buffer = ReplayBuffer(SPEC, 10, extras={"mc_return": ()})
    buffer.add(**rows(0, 10), extras={"mc_return": torch.arange(10.0)})
    drawn = buffer.sample(50, rng())
    assert drawn.obs["state"].shape == (50, 2, 1)
    assert drawn.action.shape == (50, 3, 1)
    assert len(drawn) == 50
    for column in (drawn.obs["state"][:, 0, 0], drawn.action[:, 0, 0], drawn.next_obs["state"][:, 1, 0] - 0.5):
        assert column.equal(drawn.reward)
    assert drawn.extras["mc_return"].equal(drawn.reward)
    assert drawn.terminated.equal(drawn.reward % 2 == 0)
    assert drawn.index.float().equal(drawn.reward)
    assert len(set(drawn.reward.tolist())) > 5


def test_draws_reach_every_filled_row_and_no_other() -> None:
    buffer = ReplayBuffer(SPEC, 100)
    buffer.add(**rows(0, 7))
    assert set(buffer.sample(500, rng()).reward.tolist()) == set(range(7))


def test_a_draw_is_a_copy() -> None:
    buffer = ReplayBuffer(SPEC, 3)
    buffer.add(**rows(0, 3))
    buffer.sample(3, rng()).action.fill_(9.0)
    assert buffer.rows(torch.arange(3)).action[:, 0, 0].tolist() == [0, 1, 2]


def test_better_actions_lie_beside_those_taken() -> None:
    buffer, index = ReplayBuffer(SPEC, 4), torch.arange(3)
    buffer.add(**rows(0, 3))
    assert buffer.improved_actions(index)[:, 0, 0].tolist() == [0, 1, 2]
    buffer.improve_actions(torch.tensor([2, 0]), torch.full((2, 3, 1), 7.0))
    assert buffer.improved_actions(index)[:, 0, 0].tolist() == [7, 1, 7]
    assert buffer.rows(index).action[:, 0, 0].tolist() == [0, 1, 2]
    before = buffer.snapshot()
    buffer.improve_actions(index, torch.full((3, 3, 1), 8.0))
    buffer.load_state_dict(before)
    assert buffer.improved_actions(index)[:, 0, 0].tolist() == [7, 1, 7]
    buffer.add(**rows(3, 2))  # overwrites row 0
    assert buffer.improved_actions(torch.arange(4))[:, 0, 0].tolist() == [4, 1, 7, 3]
    other = ReplayBuffer(SPEC, 4)
    other.load_state_dict(buffer.state_dict())
    assert other.improved_actions(torch.arange(4))[:, 0, 0].tolist() == [4, 1, 7, 3]


def test_a_rollout_keeps_the_action_and_forgets_truncation() -> None:
    T, E = 2, 3
    latents = torch.randn(T, E, 4, 3, 1, generator=rng())
    number = torch.arange(6.0).view(T, E)
    flag = torch.zeros(T, E, dtype=torch.bool)
    terminated = flag.clone()
    terminated[0, 1] = True
    obs = {"state": number[..., None, None].expand(T, E, 2, 1), "unused": number[..., None, None]}
    batch = RolloutBatch(obs, obs, latents, torch.zeros(T, E, 3), number, terminated, ~flag, flag)
    buffer = ReplayBuffer(SPEC, 10, extras={"bonus": (2,)})
    buffer.add_rollout(batch, extras={"bonus": torch.ones(T, E, 2)})
    kept = buffer.rows(torch.arange(6))
    assert kept.reward.tolist() == [0, 1, 2, 3, 4, 5]
    assert kept.action.equal(latents[:, :, -1].flatten(0, 1))
    assert kept.terminated.tolist() == [False, True, False, False, False, False]  # truncated ones bootstrap


def test_resume_is_exact() -> None:
    buffer, other = ReplayBuffer(SPEC, 5), ReplayBuffer(SPEC, 5)
    buffer.add(**rows(0, 7))
    other.load_state_dict(buffer.state_dict())
    for b in (buffer, other):
        b.add(**rows(7, 2))
    assert held(other) == held(buffer)
    assert other.sample(9, rng()).reward.equal(buffer.sample(9, rng()).reward)


def test_only_the_filled_part_is_saved() -> None:
    buffer = ReplayBuffer(SPEC, 1000)
    buffer.add(**rows(0, 3))
    assert {len(column) for column in buffer.state_dict()["columns"].values()} == {3}


def test_another_buffers_state_is_refused() -> None:
    buffer = ReplayBuffer(SPEC, 5)
    buffer.add(**rows(0, 2))
    with pytest.raises(CheckpointError, match="capacity 5, this one 6"):
        ReplayBuffer(SPEC, 6).load_state_dict(buffer.state_dict())
    with pytest.raises(CheckpointError, match="other columns"):
        ReplayBuffer(SPEC, 5, extras={"x": ()}).load_state_dict(buffer.state_dict())


def test_mistakes_are_named() -> None:
    buffer = ReplayBuffer(SPEC, 5, extras={"mc_return": ()})
    with pytest.raises(DataError, match="empty"):
        buffer.sample(1, rng())
    with pytest.raises(ShapeError, match="'mc_return' is missing"):
        buffer.add(**rows(0, 2))
    wrong = rows(0, 2) | {"action": torch.zeros(2, 2, 1)}
    with pytest.raises(ShapeError, match=r"'action' is \[2, 2, 1\], expected \[n, 3, 1\]"):
        buffer.add(**wrong, extras={"mc_return": torch.zeros(2)})
    with pytest.raises(ConfigError, match="capacity"):
        ReplayBuffer(SPEC, 0)
    with pytest.raises(ConfigError, match="reward"):
        ReplayBuffer(SPEC, 5, extras={"reward": ()})
    buffer.add(**rows(0, 2), extras={"mc_return": torch.zeros(2)})
    with pytest.raises(ConfigError, match="n=0"):
        buffer.sample(0, rng())


def demos(*lengths: int, success: tuple[bool | None, ...] | None = None) -> DemoData:
    """Frame t of episode e: state 100 e + t, action -(100 e + t)."""
    flags = success or (None,) * len(lengths)
    episodes = []
    for e, (length, flag) in enumerate(zip(lengths, flags, strict=True)):
        number = (100.0 * e + np.arange(length))[:, None]
        episodes.append(Episode({"state": number}, -number, flag))
    return DemoData.from_episodes(episodes, control_hz=20.0)


def half(action: Tensor) -> Tensor:
    return action / 2


def test_demonstrations_as_decisions() -> None:
    t = demo_transitions(demos(4, 3), SPEC, half, gamma=0.5)
    assert t.obs["state"][..., 0].tolist() == [[0, 0], [0, 1], [1, 2], [2, 3], [100, 100], [100, 101], [101, 102]]
    assert t.action[:, :, 0].tolist()[1] == [-0.5, -1.0, -1.5]
    assert t.action[:, :, 0].tolist()[3] == [-1.5, -1.5, -1.5]  # past the end the last action repeats
    assert t.reward.tolist() == [0, 0, 1, 1, 0, 1, 1]  # two rows run: frames 2 and 3 reach the end of four
    assert t.terminated.tolist() == [False, False, True, True, False, True, True]
    assert t.next_obs["state"][..., 0].tolist()[0] == [1, 2]  # two frames on
    assert t.next_obs["state"][..., 0].tolist()[1] == [2, 3]
    # four frames are two decisions, three are two as well
    assert t.extras["mc_return"].tolist() == [0.5, 0.5, 1, 1, 0.5, 1, 1]


def test_failed_demonstrations_earn_nothing_and_never_terminate() -> None:
    t = demo_transitions(demos(4, 4, success=(False, True)), SPEC, half, gamma=0.5)
    assert t.obs["state"][:, 1, 0].tolist() == [0, 1, 100, 101, 102, 103]
    assert t.reward.tolist() == [0, 0, 0, 0, 1, 1]
    assert t.terminated.tolist() == [False] * 4 + [True] * 2
    assert t.extras["mc_return"].tolist() == [0, 0, 0.5, 0.5, 1, 1]
    with pytest.raises(DataError, match="nothing to learn"):
        demo_transitions(demos(2, success=(False,)), SPEC, half)


def test_seeding_refuses_to_lose_demonstrations() -> None:
    t = demo_transitions(demos(4, 3), SPEC, half)
    buffer = ReplayBuffer(SPEC, 7)
    seed_with(buffer, t)
    assert held(buffer) == t.reward.tolist()
    with pytest.raises(ConfigError, match="7 decisions don't fit"):
        seed_with(ReplayBuffer(SPEC, 6), t)
