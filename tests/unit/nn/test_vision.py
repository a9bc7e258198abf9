from __future__ import annotations

import pytest
import torch
from torch import Tensor

from robopo.errors import ConfigError, ShapeError
from robopo.nn import vision
from robopo.nn.augment import random_shift
from robopo.nn.vision import as_channels
from robopo.nn.vision_build import VisionNetConfig, build_vision
from robopo.nn.vision_resnet import Pool, ResNetConfig, mean_positions
from robopo.nn.vision_vit import VitConfig

SMALL = [
    VitConfig(features=8, width=16),
    ResNetConfig(features=8, width=16, keypoints=4),
    ResNetConfig(8, 16, pool=Pool.MEAN),
]


def count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def pictures(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_vit_has_the_published_number_of_parameters() -> None:
    encoder = build_vision(VitConfig(), {"image_a": (96, 96, 3), "image_b": (96, 96, 3)}, obs_steps=1, low_dim=9)
    assert count(encoder.trunks) == 386_304  # DPPO's at 96 x 96: 121 patches of 128
    assert count(encoder.heads) == 2 * ((121 + 9) * 128 + 128 + 2 * 128 + 128 * 128)
    assert encoder.dim == 256


def test_resnet_has_as_many_parameters_as_resnet18_without_its_classifier() -> None:
    encoder = build_vision(ResNetConfig(), {"image_a": (64, 64, 3)}, obs_steps=1, low_dim=9)
    assert count(encoder.trunks) == 11_176_512
    assert count(encoder.heads) == 512 * 32 + 32 + 64 * 64 + 64


@pytest.mark.parametrize("config", SMALL)
@pytest.mark.parametrize("obs_steps", [1, 2])
def test_pictures_become_features(config: VisionNetConfig, obs_steps: int) -> None:
    shape = (32, 40, 3)
    encoder = build_vision(config, {"b": shape, "a": shape}, obs_steps=obs_steps, low_dim=3)
    seen = [pictures(5, obs_steps, *shape), pictures(5, obs_steps, *shape)]
    out = encoder(seen, torch.zeros(5, 3))
    assert list(out.shape) == [5, 16] == [5, encoder.dim]
    assert list(encoder.images) == ["a", "b"]
    assert len(encoder.trunks) == (1 if config.shared else 2)
    out.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0.0 for p in encoder.parameters())


def test_blocks_without_a_graph_are_the_same_function(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = build_vision(SMALL[0], {"a": (32, 32, 3)}, obs_steps=1, low_dim=2)
    seen, low = [pictures(7, 1, 32, 32, 3)], torch.rand(7, 2)
    monkeypatch.setattr(vision, "BLOCK", 3)
    with torch.no_grad():
        torch.testing.assert_close(encoder(seen, low), encoder._encode(seen, low))


def test_channels_hold_the_steps_one_after_the_other() -> None:
    x = torch.zeros(1, 2, 1, 1, 3, dtype=torch.uint8)
    x[0, 0, 0, 0] = torch.tensor([0, 51, 255])
    x[0, 1, 0, 0] = torch.tensor([255, 0, 0])
    assert as_channels(x, torch.zeros(1))[0, :, 0, 0].tolist() == pytest.approx([-0.5, -0.3, 0.5, 0.5, -0.5, -0.5])
    assert as_channels(x[:, :1], torch.zeros(1))[0, :, 0, 0].tolist() == pytest.approx([-0.5, -0.3, 0.5])


def test_mean_positions_find_a_peak() -> None:
    maps = torch.zeros(1, 1, 5, 9)
    maps[0, 0, 4, 2] = 100.0  # bottom row, x = -1 + 2 / 8 * 2
    assert mean_positions(maps)[0].tolist() == pytest.approx([-0.5, 1.0])


def test_a_shift_moves_a_dot_by_at_most_pad_and_keeps_values() -> None:
    x = torch.zeros(200, 2, 21, 21, 3, dtype=torch.uint8)
    x[:, :, 10, 10] = 200
    out = random_shift(x, 4, torch.Generator().manual_seed(1))
    assert out.dtype == torch.uint8
    assert x[:, :, 10, 10].eq(200).all()
    where = out[..., 0].nonzero()  # [200 * 2, 4]: every picture still has its one dot
    assert len(where) == 400 and set(out.unique().tolist()) == {0, 200}
    moves = where[:, 2:] - 10
    assert moves.min() == -4 and moves.max() == 4
    assert moves.view(200, 2, 2)[:, 0].equal(moves.view(200, 2, 2)[:, 1])  # the steps of a window move together
    assert len({tuple(move) for move in moves.tolist()}) > 60  # of 81


def test_a_shift_repeats_the_border_and_its_generator() -> None:
    x = torch.arange(4, dtype=torch.uint8).view(1, 1, 1, 4, 1)
    found = {tuple(random_shift(x, 1, torch.Generator().manual_seed(n)).flatten().tolist()) for n in range(30)}
    assert found == {(0, 0, 1, 2), (0, 1, 2, 3), (1, 2, 3, 3)}
    y = pictures(6, 1, 8, 8, 3)
    first, second = (random_shift(y, 3, torch.Generator().manual_seed(5)) for _ in range(2))
    assert first.equal(second)
    assert random_shift(y, 0, None).equal(y)
    with pytest.raises(ShapeError, match="expected \\[B, To"):
        random_shift(y[:, 0], 1, None)


def test_mistakes_are_told() -> None:
    with pytest.raises(ConfigError, match="16 x 16"):
        build_vision(VitConfig(), {"a": (12, 12, 3)}, obs_steps=1, low_dim=0)
    with pytest.raises(ConfigError, match=r"vision\.shared=false"):
        build_vision(VitConfig(), {"a": (32, 32, 3), "b": (64, 64, 3)}, obs_steps=1, low_dim=0)
    with pytest.raises(ConfigError, match="must divide width"):
        VitConfig(width=30)
    with pytest.raises(ConfigError, match="must divide width"):
        ResNetConfig(width=40)
    with pytest.raises(ConfigError, match="at least one picture"):
        build_vision(VitConfig(), {}, obs_steps=1, low_dim=0)
