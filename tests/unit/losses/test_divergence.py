"""Gaussian divergences and log-ratios against torch.distributions, sampling, and the kernels they came from."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from robopo.losses.divergence import (
    MaskDirection,
    cps_kl_weight,
    flow_sde_kl_weight,
    gaussian_kl,
    gaussian_log_ratio,
    learned_noise_kl_weight,
    moves_away,
    proxy_kl_weight,
)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pair(*shape: int, equal_std: bool) -> dict[str, Tensor]:
    old_std = (0.3 * randn(*shape, seed=3)).exp() * 0.2
    new_std = old_std if equal_std else old_std * (0.4 * randn(*shape, seed=4)).exp()
    return {
        "old_mean": randn(*shape, seed=1),
        "new_mean": randn(*shape, seed=1) + 0.1 * randn(*shape, seed=2),
        "old_std": old_std,
        "new_std": new_std,
    }


@pytest.mark.parametrize("equal_std", [True, False])
def test_kl_and_log_ratio_equal_torch_distributions(equal_std: bool) -> None:
    p = pair(5, 3, 2, equal_std=equal_std)
    old, new = Normal(p["old_mean"], p["old_std"]), Normal(p["new_mean"], p["new_std"])
    torch.testing.assert_close(gaussian_kl(**p), kl_divergence(old, new), atol=1e-10, rtol=0)
    x = p["old_mean"] + p["old_std"] * randn(5, 3, 2, seed=5)
    torch.testing.assert_close(gaussian_log_ratio(x, **p), new.log_prob(x) - old.log_prob(x), atol=1e-10, rtol=0)


def test_kl_by_hand() -> None:
    # means 0 -> .2, std .1: .04 / .02 = 2. std .1 -> .2: log 2 + (.01 + .04) / .08 - .5 = .693147 + .625 - .5
    one = {"old_mean": torch.zeros(1), "new_mean": torch.tensor([0.2]), "old_std": torch.tensor([0.1])}
    torch.testing.assert_close(gaussian_kl(**one, new_std=torch.tensor([0.1])), torch.tensor([2.0]))
    torch.testing.assert_close(gaussian_kl(**one, new_std=torch.tensor([0.2])), torch.tensor([0.818147]))


def test_stds_broadcast_and_mean_is_sum_over_dims() -> None:
    mean = randn(4, 3, 2)
    std = torch.full((4, 1, 1), 0.1, dtype=torch.float64)
    kl = gaussian_kl(old_mean=mean, new_mean=mean + 0.05, old_std=std, new_std=std)
    torch.testing.assert_close(kl, torch.full((4, 3, 2), 0.125, dtype=torch.float64))
    torch.testing.assert_close(kl.mean((1, 2)), kl.sum((1, 2)) / 6)


def test_unchanged_policy_gives_exact_zeros_in_float32() -> None:
    p = {key: value.float() for key, value in pair(1000, equal_std=True).items()} | {}
    p["new_mean"] = p["old_mean"]
    assert gaussian_kl(**p).abs().max() == 0.0
    assert gaussian_log_ratio(torch.randn(1000), **p).abs().max() == 0.0


def test_log_ratio_identity_per_sample() -> None:
    """log r = z.d / std - KL, summed over the dimensions."""
    p = pair(6, 4, 7, equal_std=True)
    z = randn(6, 4, 7, seed=8)
    x = p["old_mean"] + p["old_std"] * z
    d = p["new_mean"] - p["old_mean"]
    found = gaussian_log_ratio(x, **p).sum((1, 2))
    expected = (z * d / p["old_std"]).sum((1, 2)) - gaussian_kl(**p).sum((1, 2))
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)


def test_log_ratio_statistics() -> None:
    """Under the old policy: E[log r] = -KL, Var[log r] = 2 KL, E[r] = 1, each within 4 standard errors."""
    n = 400_000
    p = {
        "old_mean": torch.zeros(2, dtype=torch.float64),
        "new_mean": torch.tensor([0.1, -0.05], dtype=torch.float64),
        "old_std": torch.full((2,), 0.4, dtype=torch.float64),
        "new_std": torch.full((2,), 0.4, dtype=torch.float64),
    }
    kl = float(gaussian_kl(**p).sum())
    assert kl == pytest.approx(0.0125 / 0.32)
    log_r = gaussian_log_ratio(0.4 * randn(n, 2), **p).sum(1)
    squared = (log_r + kl).square()
    for value, expected in ((log_r, -kl), (squared, 2 * kl), (log_r.exp(), 1.0)):
        assert abs(float(value.mean()) - expected) < 4 * float(value.std()) / math.sqrt(n)


def mean_of_step(kind: str, x: Tensor, v: Tensor, t: float, t_next: float, eta: float) -> tuple[Tensor, float]:
    """Mean and std through clean and noise estimates, as samplers compute them."""
    clean, noise, h = x - t * v, x + (1 - t) * v, t - t_next
    if kind == "cps":
        angle = 0.5 * math.pi * eta
        return (1 - t_next) * clean + t_next * math.cos(angle) * noise, t_next * math.sin(angle)
    if kind == "learned":
        return (1 - t_next) * clean + t_next * noise, eta
    g = eta * math.sqrt(t / (h if t == 1.0 else 1 - t))
    return (1 - t_next) * clean + (t_next - g**2 * h / (2 * t)) * noise, g * math.sqrt(h)


@pytest.mark.parametrize("eta", [0.3, 0.7])
@pytest.mark.parametrize("times", [(1.0, 0.8), (0.8, 0.6), (0.5, 0.1), (0.2, 0.05)])
@pytest.mark.parametrize("kind", ["flow_sde", "cps", "learned"])
def test_kl_through_velocities(kind: str, times: tuple[float, float], eta: float) -> None:
    x, v_old, v_new = randn(9), randn(9, seed=1), randn(9, seed=2)
    old, std = mean_of_step(kind, x, v_old, *times, eta)
    new, _ = mean_of_step(kind, x, v_new, *times, eta)
    s = torch.tensor(std, dtype=torch.float64)
    expected = gaussian_kl(old_mean=old, new_mean=new, old_std=s, new_std=s)
    t, t_next = torch.tensor(times, dtype=torch.float64)
    weight = {
        "flow_sde": lambda: flow_sde_kl_weight(t, t_next, eta),
        "cps": lambda: cps_kl_weight(t, t_next, eta),
        "learned": lambda: learned_noise_kl_weight(t - t_next, s),
    }[kind]()
    torch.testing.assert_close(weight * (v_new - v_old).square(), expected, atol=1e-10, rtol=1e-10)


def test_late_steps_dominate() -> None:
    """K = 5, eta = .3: the weights on |dv|^2."""
    t = torch.linspace(1.0, 0.0, 6, dtype=torch.float64)
    flow = flow_sde_kl_weight(t[:-1], t[1:], 0.3)
    torch.testing.assert_close(
        flow, torch.tensor([0.22, 0.30, 0.81, 1.82, 4.85], dtype=torch.float64), atol=6e-3, rtol=0
    )
    cps = cps_kl_weight(t[:-2], t[1:-1], 0.3)
    torch.testing.assert_close(cps, torch.tensor([0.15, 0.31, 0.72, 2.75], dtype=torch.float64), atol=6e-3, rtol=0)


def test_proxy_weight_is_the_flow_sde_weight_per_unit_of_time() -> None:
    t = torch.tensor([0.2, 0.5, 0.8], dtype=torch.float64)
    h = 0.05
    torch.testing.assert_close(proxy_kl_weight(t, 0.3) * h, flow_sde_kl_weight(t, t - h, 0.3))
    ends = proxy_kl_weight(torch.tensor([0.0, 0.1, 0.9, 1.0], dtype=torch.float64), 0.3)
    assert ends[0] == ends[1] and ends[2] == ends[3] and ends.isfinite().all()


def test_exact_direction_predicts_the_change_of_kl() -> None:
    """A 1e-9 step along grad(A r) with respect to the mean raises KL exactly where A (log r - KL) > 0."""
    n, dims = 1000, 3
    std = torch.tensor(0.5, dtype=torch.float64)
    old = randn(n, dims)
    new = (old + 0.4 * randn(n, dims, seed=1)).requires_grad_()
    x = old + std * randn(n, dims, seed=2)
    adv = randn(n, seed=3)
    moments = {"old_mean": old, "old_std": std, "new_std": std}
    log_ratio = gaussian_log_ratio(x, new_mean=new, **moments).sum(1)
    (gradient,) = torch.autograd.grad((adv * log_ratio.exp()).sum(), new)
    direction = gradient / gradient.norm(dim=1, keepdim=True)
    before = gaussian_kl(new_mean=new.detach(), **moments).sum(1)
    after = gaussian_kl(new_mean=new.detach() + 1e-9 * direction, **moments).sum(1)
    found = moves_away(adv=adv, log_ratio=log_ratio, divergence=before)
    assert not found.requires_grad
    assert found.equal(after > before)
    published = moves_away(adv=adv, log_ratio=log_ratio, divergence=before, direction=MaskDirection.PAPER)
    differs = published != found
    assert 0 < int(differs.sum()) < n // 2
    assert ((log_ratio > 0) & (log_ratio < before))[differs].all()
