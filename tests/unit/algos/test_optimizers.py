from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from robopo.algos.optimizers import AdamRMSInterp, AdamW
from robopo.errors import ConfigError

GRADIENTS = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))


def run(optimizer: Any, parameter: nn.Parameter) -> Tensor:
    for gradient in GRADIENTS:
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter.detach()


def ours(choice: AdamW | AdamRMSInterp) -> Tensor:
    parameter = nn.Parameter(torch.ones(3))
    return run(choice.build([parameter], 0.01), parameter)


def test_lambda_one_is_adam() -> None:
    parameter = nn.Parameter(torch.ones(3))
    expected = run(torch.optim.Adam([parameter], lr=0.01, betas=(0.8, 0.99)), parameter)
    torch.testing.assert_close(ours(AdamRMSInterp(lam=1.0, betas=(0.8, 0.99))), expected)


def test_lambda_zero_is_bias_corrected_rmsprop() -> None:
    x, v = torch.ones(3), torch.zeros(3)
    for n, g in enumerate(GRADIENTS, 1):
        v = 0.99 * v + 0.01 * g.square()
        x = x - 0.01 * g / ((v / (1 - 0.99**n)).sqrt() + 1e-8)
    torch.testing.assert_close(ours(AdamRMSInterp(lam=0.0, betas=(0.8, 0.99))), x)


def test_between_the_limits_by_hand() -> None:
    """m = b m + (1 - b) g with b = lam b1 = 0.4, corrected by 1 - b^n."""
    x, m, v = torch.ones(3), torch.zeros(3), torch.zeros(3)
    for n, g in enumerate(GRADIENTS, 1):
        m = 0.5 * 0.8 * m + (1 - 0.5 * 0.8) * g
        v = 0.99 * v + 0.01 * g.square()
        x = x - 0.01 * (m / (1 - 0.4**n)) / ((v / (1 - 0.99**n)).sqrt() + 1e-8)
    torch.testing.assert_close(ours(AdamRMSInterp(lam=0.5, betas=(0.8, 0.99))), x)


def test_weight_decay_and_lists() -> None:
    parameter = nn.Parameter(torch.ones(3))
    choice = AdamW(betas=[0.8, 0.99], weight_decay=0.1)  # type: ignore[arg-type] - as Hydra hands it over
    assert choice.betas == (0.8, 0.99)
    expected = run(torch.optim.AdamW([parameter], lr=0.01, betas=(0.8, 0.99), weight_decay=0.1), parameter)
    torch.testing.assert_close(ours(choice), expected)


@pytest.mark.parametrize("choice", [AdamW(weight_decay=0.1), AdamRMSInterp(lam=0.0)])
def test_a_gradient_that_is_not_finite_changes_nothing(choice: AdamW | AdamRMSInterp) -> None:
    parameter = nn.Parameter(torch.ones(3))
    optimizer = choice.build([parameter], 0.01)
    parameter.grad = GRADIENTS[0].clone()
    optimizer.guarded_step()
    before, state = parameter.detach().clone(), {k: v.clone() for k, v in optimizer.state[parameter].items()}
    parameter.grad = torch.tensor([1.0, float("nan"), 1.0])
    assert not math.isfinite(optimizer.guarded_step().item())
    assert parameter.detach().equal(before)
    assert all(optimizer.state[parameter][key].equal(value) for key, value in state.items())


@pytest.mark.parametrize(
    ("kind", "settings", "named"),
    [
        (AdamW, {"betas": (0.9, 1.0)}, "betas"),
        (AdamW, {"weight_decay": -0.1}, "weight_decay"),
        (AdamRMSInterp, {"lam": 1.5}, "lam"),
        (AdamRMSInterp, {"betas": (0.9,)}, "betas"),
    ],
)
def test_ranges(kind: Any, settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        kind(**settings)
