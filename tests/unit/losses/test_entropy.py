from __future__ import annotations

import math

import pytest
import torch

from robopo.losses.entropy import gaussian_entropy, knn_entropy


def test_gaussian_entropy_equals_torchs() -> None:
    std = torch.tensor([0.1, 1.0, 3.0], dtype=torch.float64)
    torch.testing.assert_close(gaussian_entropy(std), torch.distributions.Normal(torch.zeros(3), std).entropy())


def test_knn_entropy_by_hand() -> None:
    """Points 0, 1, 3 on a line: distances 1, 1, 2; volume of the unit ball 2; psi(3) - psi(1) = 1 + 1/2."""
    sample = torch.tensor([[[0.0], [1.0], [3.0]]])
    expected = math.log(2.0) / 3 + math.log(2.0) + 1.5
    torch.testing.assert_close(knn_entropy(sample), torch.tensor([expected]))
    # second neighbours: 3, 2, 3; psi(3) - psi(2) = 1/2
    second = (2 * math.log(3.0) + math.log(2.0)) / 3 + math.log(2.0) + 0.5
    torch.testing.assert_close(knn_entropy(sample, k=2), torch.tensor([second]))


def test_knn_entropy_finds_a_gaussians_and_scales_with_it() -> None:
    sample = torch.randn(64, 256, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    entropy = 2 * gaussian_entropy(torch.ones((), dtype=torch.float64))
    found = knn_entropy(sample)
    assert abs(found.mean() - entropy) < 4 * found.std() / 8  # 64 estimates
    torch.testing.assert_close(knn_entropy(3.0 * sample), found + 2 * math.log(3.0))


def test_knn_entropy_survives_equal_samples_and_refuses_too_few() -> None:
    sample = torch.zeros(1, 4, 2, requires_grad=True)
    entropy = knn_entropy(sample)
    (gradient,) = torch.autograd.grad(entropy.sum(), sample)
    assert entropy.isfinite().all()
    assert gradient.isfinite().all()
    with pytest.raises(ValueError, match="k=4"):
        knn_entropy(sample, k=4)
