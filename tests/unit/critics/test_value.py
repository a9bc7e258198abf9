from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from robopo.critics.value import ValueNet
from robopo.errors import ConfigError, ShapeError
from robopo.policies.normalizer import MinMaxNormalizer


class Halve(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(0.5))

    def apply(self, key: str, x: Tensor) -> Tensor:  # type: ignore[override]
        return x * self.scale


def test_published_size() -> None:
    """Hopper: 11 inputs and 3 x 256 give 134,913 parameters."""
    assert sum(p.numel() for p in ValueNet({"state": 11}, 1).parameters()) == 134_913


def test_observations_are_normalised_sorted_and_flattened() -> None:
    torch.manual_seed(0)
    net = ValueNet({"b": 1, "a": 2}, 2, (8, 8, 8), Halve())
    a, b = torch.randn(5, 2, 2), torch.randn(5, 2, 1)
    expected = net.net(torch.cat([a.flatten(1), b.flatten(1)], 1) / 2).squeeze(1)
    found = net({"b": b, "a": a, "unused": a})
    assert found.shape == (5,)
    torch.testing.assert_close(found, expected)


def test_statistics_are_not_trained() -> None:
    names = [name for name, _ in ValueNet({"a": 2}, 1, (8, 8, 8), Halve()).named_parameters()]
    assert all(name.startswith("net.") for name in names)


def test_errors_name_the_observation() -> None:
    net = ValueNet({"state": 2}, 1, (8, 8, 8))
    with pytest.raises(ShapeError, match=r"expected \[B, 1, 2\]"):
        net({"state": torch.zeros(3, 2, 2)})
    with pytest.raises(ShapeError, match="did you mean 'stat'"):
        net({"stat": torch.zeros(3, 1, 2)})
    with pytest.raises(ConfigError, match="at least one"):
        ValueNet({}, 1)


def test_states_far_outside_the_demonstrations_dont_explode() -> None:
    torch.manual_seed(0)
    normalizer = MinMaxNormalizer({"state": (torch.zeros(2), torch.ones(2))})
    critic = ValueNet({"state": 2}, 1, (16, 16, 16), normalizer)
    edge, fallen = (critic({"state": torch.full((1, 1, 2), x)}) for x in (3.0, -700.0))
    assert fallen.abs() < 50 and edge.isfinite().all()
    # Beyond the bound of 5, that is x = 3, nothing changes any more.
    torch.testing.assert_close(critic({"state": torch.full((1, 1, 2), 400.0)}), edge)
