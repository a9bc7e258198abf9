from __future__ import annotations

import pytest
import torch

from robopo.algos.reward_scaling import RewardScaler, followed
from robopo.errors import ShapeError


def test_constant_reward_with_episodes_of_one_step_hits_the_clip() -> None:
    """G = 1 always, so the variance fades with the prior (1e-4 / n) and 1 / std exceeds the clip of 10."""
    scaler = RewardScaler()
    ones, first = torch.ones(50, 40), torch.ones(50, 40, dtype=torch.bool)
    for _ in range(3):
        scaled = scaler(ones, first)
    assert scaled.eq(10.0).all()


def test_independent_rewards_come_out_with_unit_spread() -> None:
    generator = torch.Generator().manual_seed(0)
    scaler = RewardScaler()
    reward = 0.3 * torch.randn(200, 50, generator=generator)
    scaled = scaler(reward, torch.ones(200, 50, dtype=torch.bool))
    assert scaled.std().item() == pytest.approx(1.0, abs=0.01)
    assert scaler.std(reward).item() == pytest.approx(0.3, abs=0.01)


def test_running_return_and_merge_by_hand() -> None:
    # one environment, rewards 1, 2 | 4 (new episode): G = 1, 2.99, 4, mean 2.66333, sum of squares 4.66007
    # merged with the prior (mean 0, var 1, n 1e-4): + 1e-4 + 2.66333^2 * 1e-4 * 3 / 3.0001, then / 2.0001
    scaler = RewardScaler()
    reward = torch.tensor([[1.0], [2.0], [4.0]])
    first = torch.tensor([[True], [False], [True]])
    scaler(reward, first)
    state = scaler.state_dict()
    assert state["var"].item() == pytest.approx((4.660067 + 1e-4 + 7.093344e-4) / 2.0001, rel=1e-5)
    assert state["running"].tolist() == [4.0]
    scaler(torch.tensor([[1.0]]), torch.tensor([[False]]))
    torch.testing.assert_close(scaler.state_dict()["running"], torch.tensor([1.0 + 0.99 * 4.0]))


def test_continuations_and_filler_leave_the_statistics_of_the_plain_rows_alone() -> None:
    """Rows of a vine and of environments that wait are scaled, but the running return goes on from the plain rows."""
    first = torch.tensor([[True, True], [False, False], [True, True], [False, False]])
    plain, mixed = RewardScaler(), RewardScaler()
    reward = torch.tensor([[1.0, 2.0], [3.0, 5.0], [100.0, 50.0], [70.0, 0.0]])
    plain(reward[:2], first[:2])
    extras = {
        "vine": torch.tensor([[-1, -1], [-1, -1], [0, 0], [0, 0]]),
        "use": torch.tensor([[True, True], [True, True], [True, True], [True, False]]),
    }
    scaled = mixed(reward, first, followed(extras))
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(mixed.state_dict()[name], value, rtol=0, atol=1e-12)
    torch.testing.assert_close(scaled, (reward / plain.std(reward)).clamp(-10.0, 10.0))
    assert followed({"use": extras["use"]}) is extras["use"]
    assert followed({}) is None


def test_resume_is_exact_and_inputs_stay() -> None:
    generator = torch.Generator().manual_seed(1)
    rewards = [torch.randn(4, 3, generator=generator) for _ in range(3)]
    first = torch.zeros(4, 3, dtype=torch.bool)
    straight, before, after = RewardScaler(), RewardScaler(), RewardScaler()
    for reward in rewards[:2]:
        kept = reward.clone()
        straight(reward, first)
        before(reward, first)
        assert reward.equal(kept)
    after.load_state_dict(before.state_dict())
    assert after(rewards[2], first).equal(straight(rewards[2], first))


def test_another_number_of_environments_is_refused() -> None:
    scaler = RewardScaler()
    scaler(torch.ones(2, 3), torch.zeros(2, 3, dtype=torch.bool))
    with pytest.raises(ShapeError, match="num_envs"):
        scaler(torch.ones(2, 4), torch.zeros(2, 4, dtype=torch.bool))
