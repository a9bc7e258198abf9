"""SPO's stationary point and the sign beyond it; the unbounded surrogate."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from robopo.algos.choices import RatioBatch
from robopo.algos.no_region import Unbounded
from robopo.algos.spo import SPO
from robopo.errors import ConfigError


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def slope(region: SPO | Unbounded, r: Tensor, adv: Tensor) -> Tensor:
    """dJ/dr."""
    r = r.clone().requires_grad_()
    loss = region.surrogate(RatioBatch(r.log(), None), adv, num_steps=1).loss
    (gradient,) = torch.autograd.grad(-loss.sum(), r)
    return gradient


def test_stationary_at_the_border_and_pulled_back_beyond() -> None:
    adv = column(2.0, -0.7)
    border = 1.0 + 0.2 * adv.sign()
    torch.testing.assert_close(slope(SPO(0.2), border, adv), torch.zeros_like(adv), atol=1e-12, rtol=0)
    inside, outside = slope(SPO(0.2), 1.0 + 0.19 * adv.sign(), adv), slope(SPO(0.2), 1.0 + 0.21 * adv.sign(), adv)
    assert (inside.sign() == adv.sign()).all()
    assert (outside.sign() == -adv.sign()).all()
    torch.testing.assert_close(slope(SPO(0.2), torch.ones_like(adv), adv), adv)  # the policy gradient at r = 1


def test_value_by_hand() -> None:
    # r = 1.5, A = -2, eps = .25: J = -3 - 2 * .25 / .5 = -4
    loss, blocked, *_ = SPO(0.25).surrogate(RatioBatch(column(math.log(1.5)), None), column(-2.0), num_steps=1)
    torch.testing.assert_close(loss, column(4.0))
    assert not blocked.any()  # a corrective ratio


def test_blocked_marks_what_is_pulled_back() -> None:
    r = column(1.3, 1.3, 0.7, 0.7, 1.3, 1.1)
    adv = column(1.0, -1.0, 1.0, -1.0, 0.0, 1.0)
    blocked = SPO(0.2).surrogate(RatioBatch(r.log(), None), adv, num_steps=1).blocked
    assert blocked.flatten().tolist() == [True, False, False, True, False, False]


def test_unbounded_is_the_importance_weighted_gradient() -> None:
    r, adv = column(0.5, 3.0), column(1.0, -2.0)
    loss, blocked, *_ = Unbounded().surrogate(RatioBatch(r.log(), None), adv, num_steps=1)
    torch.testing.assert_close(loss, column(-0.5, 6.0))
    assert not blocked.any()
    torch.testing.assert_close(slope(Unbounded(), r, adv), adv)


def test_errors() -> None:
    with pytest.raises(ConfigError, match="eps=0"):
        SPO(0.0)
