"""The drift of generated samples: by hand, where it vanishes, and what it must not differentiate."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from robopo.losses.drift import DriftKernel, drift_field, drift_loss, mean_shift

KERNELS = list(DriftKernel)


def points(count: int, seed: int = 0, dims: int = 3) -> Tensor:
    return torch.randn(count, dims, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def field(x: Tensor, positive: Tensor, weight: Tensor | None = None, **settings) -> tuple[Tensor, Tensor]:
    ones = torch.ones(len(x), len(x), dtype=x.dtype)
    if weight is None:
        weight = torch.ones(len(x), len(positive), dtype=x.dtype)
    defaults = {"kernel": DriftKernel.LAPLACIAN, "bandwidth": 0.7}
    return drift_field(x=x, positive=positive, positive_weight=weight, negative_weight=ones, **(defaults | settings))


def test_mean_shift_by_hand():
    # One number per sample; from 0 to 1 (distance 1) and to -2 (distance 2), bandwidth 1.
    x, y = torch.tensor([[0.0]]), torch.tensor([[1.0], [-2.0]])
    w = torch.tensor([[1.0, 3.0]])
    laplacian = (math.exp(-1) * 1 + 3 * math.exp(-2) * -2) / (math.exp(-1) + 3 * math.exp(-2))
    gaussian = (math.exp(-0.5) * 1 + 3 * math.exp(-2) * -2) / (math.exp(-0.5) + 3 * math.exp(-2))
    for kernel, expected in ((DriftKernel.LAPLACIAN, laplacian), (DriftKernel.GAUSSIAN, gaussian)):
        shift, some = mean_shift(x=x, y=y, weight=w, kernel=kernel, bandwidth=1.0)
        assert shift.item() == pytest.approx(expected, rel=1e-6)
        assert some.tolist() == [True]


def test_distance_does_not_depend_on_the_number_of_dimensions():
    x, y = torch.zeros(1, 1), torch.tensor([[1.0], [-2.0]])
    kw = {"weight": torch.ones(1, 2), "kernel": DriftKernel.LAPLACIAN, "bandwidth": 1.0}
    narrow = mean_shift(x=x, y=y, **kw)[0]
    wide = mean_shift(x=x.expand(1, 9), y=y.expand(2, 9), **kw)[0]
    torch.testing.assert_close(wide, narrow.expand(1, 9))


@pytest.mark.parametrize("kernel", KERNELS)
def test_nothing_drifts_when_generated_and_positives_agree(kernel):
    x = points(6)
    assert torch.equal(field(x, x, kernel=kernel)[0], torch.zeros_like(x))
    assert field(x, x + 0.1, kernel=kernel)[0].abs().min() > 1e-3


def test_a_gaussian_kernel_gives_a_difference_of_scores():
    """V = s^2 D grad log(p_s / q_s) for the kernel densities p_s of the positives and q_s of the generated."""
    x, positive, bandwidth = points(5), points(7, seed=1), 0.8

    def log_density(at: Tensor, centres: Tensor) -> Tensor:
        squares = (at[:, None] - centres).square().mean(-1)
        return torch.logsumexp(-0.5 * squares / bandwidth**2, dim=1)

    at = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad((log_density(at, positive) - log_density(at, x)).sum(), at)
    found = field(x, positive, kernel=DriftKernel.GAUSSIAN, bandwidth=bandwidth)[0]
    torch.testing.assert_close(found, bandwidth**2 * x.shape[1] * gradient, rtol=1e-9, atol=1e-12)


def test_weights_choose_the_positives():
    x, positive = points(4), points(3, seed=1)
    weight = torch.tensor([[0.0, 2.0, 0.0]], dtype=torch.float64).expand(4, 3)
    torch.testing.assert_close(field(x, positive, weight)[0], field(x, positive[1:2])[0])


@pytest.mark.parametrize("kernel", KERNELS)
def test_far_samples_still_pull(kernel):
    x = torch.zeros(1, 2)
    found, some = field(x, torch.full((1, 2), 1e4), torch.ones(1, 1), kernel=kernel, bandwidth=0.01)
    assert some.all()
    torch.testing.assert_close(found, torch.full((1, 2), 1e4))


@pytest.mark.parametrize("count", [0, 3])
def test_without_positives_nothing_moves(count):
    x = points(4).requires_grad_()
    V, some = field(x.detach(), points(count, seed=1), torch.zeros(4, count, dtype=torch.float64))
    out = drift_loss(x=x, field=V, some=some)
    out.loss.backward()
    assert out.loss.item() == 0.0
    assert out.rows.item() == 0.0
    assert torch.equal(x.grad, torch.zeros_like(x))


def test_rows_without_positives_stay_where_they_are():
    x, positive = points(2), points(3, seed=1)
    weight = torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    V, some = field(x, positive, weight)
    assert some.tolist() == [True, False]
    assert torch.equal(V[1], torch.zeros(3, dtype=torch.float64))
    out = drift_loss(x=x, field=V, some=some)
    assert out.loss.item() == pytest.approx(V[0].square().mean().item())


def test_the_gradient_stops_at_the_field():
    x, positive = points(4).requires_grad_(), points(3, seed=1)
    V, some = field(x, positive)
    assert not V.requires_grad
    out = drift_loss(x=x, field=V, some=some)
    out.loss.backward()
    torch.testing.assert_close(x.grad, -2.0 * V / (3 * 4), rtol=1e-12, atol=0)
    assert out.field_rms.item() == pytest.approx(V.square().mean().sqrt().item())


@pytest.mark.parametrize("kernel", KERNELS)
def test_following_the_loss_spreads_samples_over_two_modes(kernel):
    """Attraction alone would put every sample near the middle of its neighbours; repulsion keeps both modes."""
    generator = torch.Generator().manual_seed(0)
    x = (0.05 * torch.randn(64, 1, generator=generator)).requires_grad_()
    positive = torch.cat([torch.full((32, 1), -1.0), torch.full((32, 1), 1.0)])
    positive = positive + 0.05 * torch.randn(positive.shape, generator=generator)
    optimiser = torch.optim.Adam([x], lr=0.02)
    for _ in range(300):
        V, some = field(x.detach(), positive, kernel=kernel, bandwidth=0.3)
        optimiser.zero_grad()
        drift_loss(x=x, field=V, some=some).loss.backward()
        optimiser.step()
    left, right = x.detach() < 0, x.detach() > 0
    assert left.sum() >= 20
    assert right.sum() >= 20
    assert x.detach()[left].mean().item() == pytest.approx(-1.0, abs=0.15)
    assert x.detach()[right].mean().item() == pytest.approx(1.0, abs=0.15)
