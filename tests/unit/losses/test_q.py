"""Targets, weights and gradients worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, tensor

from robopo.losses import q as losses

close = torch.testing.assert_close


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_target_bootstraps_unless_terminated() -> None:
    next_value = tensor([2.0, math.inf], requires_grad=True)
    target = losses.td_target(
        reward=tensor([1.0, 3.0]), terminated=tensor([False, True]), next_value=next_value, gamma=0.9
    )
    close(target, tensor([2.8, 3.0]))
    assert not target.requires_grad


def test_td_loss_adds_the_heads() -> None:
    # head 0: (1 + 4) / 2, head 1: (0 + 1) / 2
    close(losses.td_loss(q=tensor([[1.0, 2.0], [0.0, 1.0]]), target=tensor([0.0, 0.0])), tensor(3.0))


def test_smallest_of_all_and_of_some_heads() -> None:
    q = torch.arange(10.0).view(5, 2)
    close(losses.clipped_double_q(q), tensor([0.0, 1.0]))
    generator, seen = rng(), set()
    for _ in range(200):
        value = losses.min_of_random_heads(q, 2, generator)
        assert value[1] == value[0] + 1  # one draw of heads for all rows
        seen.add(float(value[0]))
    assert seen == {0.0, 2.0, 4.0, 6.0}  # the best of five is never the smaller of two
    with pytest.raises(ValueError, match="5 heads"):
        losses.min_of_random_heads(q, 6, generator)


def test_expectile_weighs_the_sides() -> None:
    close(losses.expectile_loss(tensor([1.0, -1.0]), 0.8), tensor(0.5))
    close(losses.expectile_loss(tensor([2.0]), 0.8), tensor(3.2))
    close(losses.expectile_loss(tensor([-2.0]), 0.8), tensor(0.8))


def test_expectile_of_a_half_is_half_the_squared_error() -> None:
    error = torch.randn(20, generator=rng())
    close(losses.expectile_loss(error, 0.5), 0.5 * error.square().mean())


def test_exponential_weights_are_capped_and_never_infinite() -> None:
    x = tensor([-1.0, 0.0, 0.1, 1e30], requires_grad=True)
    weights = losses.exponential_weights(x, beta=10.0, cap=100.0)
    close(weights, tensor([math.exp(-10), 1.0, math.e, 100.0]))
    assert not weights.requires_grad


def test_standardize() -> None:
    close(losses.standardize(tensor([[1.0, 3.0]]), eps=0.0), tensor([[-1.0, 1.0]]))
    close(losses.standardize(tensor([5.0]), eps=1e-3), tensor([0.0]))


def test_two_level_weights_prefer_what_beats_the_value() -> None:
    # column 0: one of three above V: .7, .3, .3 -> / 1.3; column 1: none above: equal
    q, value = tensor([[2.0, 0.0], [1.0, 0.0], [0.0, -1.0]]), tensor([1.0, 0.0])
    expected = tensor([[0.7 / 1.3, 1 / 3], [0.3 / 1.3, 1 / 3], [0.3 / 1.3, 1 / 3]])
    close(losses.two_level_weights(q=q, value=value, high=0.7), expected)


def test_boltzmann_weights() -> None:
    close(losses.boltzmann_weights(q=tensor([[math.log(3.0)], [0.0]]), temperature=1.0), tensor([[0.75], [0.25]]))


def test_choice_takes_a_candidate_per_row() -> None:
    candidates = torch.arange(12.0).view(3, 2, 2)  # M, B, A
    close(losses.choose(candidates, tensor([2, 0])), tensor([[8.0, 9.0], [2.0, 3.0]]))


def test_draws_follow_the_weights() -> None:
    weights = tensor([[0.25, 0.0], [0.75, 1.0]])
    generator = rng()
    drawn = torch.stack([losses.draw(weights, generator) for _ in range(2000)])
    assert float(drawn[:, 0].float().mean()) == pytest.approx(0.75, abs=0.05)
    assert bool((drawn[:, 1] == 1).all())


def test_action_gradient_is_each_rows_own() -> None:
    action = torch.randn(3, 2, 2, generator=rng())

    def q(a: Tensor) -> Tensor:
        return tensor([1.0, 2.0, 3.0]) * a.square().sum((1, 2))

    with torch.no_grad():
        gradient = losses.action_gradient(q, action)
    close(gradient, 2.0 * action * tensor([1.0, 2.0, 3.0]).view(3, 1, 1))
    assert not action.requires_grad


def test_q_loss_is_scaled_by_the_other_head_without_its_gradient() -> None:
    q = tensor([[1.0, 3.0], [-4.0, 4.0]], requires_grad=True)
    loss = losses.normalized_q_loss(q, 0)
    close(loss, tensor(-0.5))
    loss.backward()
    assert q.grad is not None
    close(q.grad, tensor([[-0.125, -0.125], [0.0, 0.0]]))
    for head in (0, 1):
        assert losses.normalized_q_loss(q, torch.tensor([head])).equal(losses.normalized_q_loss(q, head))


def test_reward_to_go_stops_at_both_ends_and_marks_the_unfinished() -> None:
    reward = tensor([[1.0, 1.0], [2.0, 0.0], [4.0, 8.0]])
    terminated = tensor([[False, False], [True, False], [False, False]])
    truncated = tensor([[False, True], [False, False], [False, False]])
    result = losses.reward_to_go(reward=reward, terminated=terminated, truncated=truncated, gamma=0.5)
    close(result.returns, tensor([[2.0, 1.0], [2.0, 4.0], [4.0, 8.0]]))
    assert result.finished.tolist() == [[True, True], [True, False], [False, False]]
