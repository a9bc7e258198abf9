from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from robopo.algos.learning_rate import warmup_cosine
from robopo.algos.stepping import GuardedAdamW, first_nonfinite, minibatches, permutation


def test_a_step_with_a_nan_gradient_changes_nothing() -> None:
    parameter = nn.Parameter(torch.tensor([1.0, 2.0]))
    optimizer = GuardedAdamW([parameter], lr=0.1)
    parameter.grad = torch.tensor([1.0, -1.0])
    assert optimizer.guarded_step().item() == pytest.approx(math.sqrt(2.0))
    # Adam's first step is lr * sign(gradient)
    torch.testing.assert_close(parameter.detach(), torch.tensor([0.9, 2.1]))
    before = parameter.detach().clone()
    state = {key: value.clone() for key, value in optimizer.state[parameter].items()}
    for bad in (float("nan"), float("inf")):
        parameter.grad = torch.tensor([bad, 1.0])
        assert not math.isfinite(optimizer.guarded_step(max_grad_norm=1.0).item())
    assert parameter.detach().equal(before)
    for key, value in state.items():
        assert optimizer.state[parameter][key].equal(value), key
    parameter.grad = torch.tensor([1.0, 1.0])
    optimizer.guarded_step()
    assert not parameter.detach().equal(before)


def test_equals_adam_and_clips() -> None:
    ours, theirs = nn.Parameter(torch.tensor([1.0, 2.0])), nn.Parameter(torch.tensor([1.0, 2.0]))
    a, b = GuardedAdamW([ours], lr=0.01), torch.optim.Adam([theirs], lr=0.01)
    for gradient in ([3.0, 4.0], [0.3, -0.4]):
        ours.grad, theirs.grad = torch.tensor(gradient), torch.tensor(gradient)
        norm = a.guarded_step(max_grad_norm=1.0)
        assert norm.item() == pytest.approx(math.hypot(*gradient))
        nn.utils.clip_grad_norm_([theirs], 1.0)
        b.step()
    torch.testing.assert_close(ours.detach(), theirs.detach())


def test_minibatches() -> None:
    index = torch.arange(10)
    assert [part.tolist() for part in minibatches(index, 4)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [len(part) for part in minibatches(index, 99)] == [10]
    assert minibatches(index[:0], 4) == ()
    order = permutation(10, torch.Generator().manual_seed(0), torch.device("cpu"))
    assert sorted(order.tolist()) == list(range(10))


def test_first_nonfinite() -> None:
    good, bad = torch.ones(2), torch.tensor([1.0, float("inf")])
    assert first_nonfinite({"a": good, "b": None}) is None
    found = first_nonfinite({"a": good, "b": bad})
    assert found is not None
    assert found[0] == "b"


def test_learning_rate() -> None:
    def rate(step: int) -> float:
        return warmup_cosine(step, low=1e-5, high=1e-4, warmup=10, cycle=30)

    assert rate(0) == pytest.approx(1e-5)
    assert rate(5) == pytest.approx(5.5e-5)
    assert rate(10) == pytest.approx(1e-4)
    assert rate(20) == pytest.approx(5.5e-5)  # half-way down the cosine
    assert rate(29) < 1.1e-5
    assert rate(30) == pytest.approx(1e-5)  # the cycle restarts
    assert warmup_cosine(7, low=1e-4, high=1e-4, warmup=10, cycle=30) == pytest.approx(1e-4)
