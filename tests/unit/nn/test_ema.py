"""The running average of weights."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from robopo.errors import CheckpointError, ConfigError
from robopo.nn.ema import EMA


def test_a_constant_target_is_approached_geometrically():
    # ema_n = d^n start + (1 - d^n) target, d = .995
    net = nn.Linear(2, 1, bias=False)
    nn.init.constant_(net.weight, 1.0)
    ema = EMA(net, 0.995, warmup=False)
    nn.init.constant_(net.weight, 3.0)
    for _ in range(10):
        ema.update()
    ema.copy_to(net)
    torch.testing.assert_close(net.weight.data, torch.full((1, 2), 3.0 - 2.0 * 0.995**10))


def test_warmup_by_hand():
    # decays 1/10 then 2/11: 0 -> 1 leaves 1/10, then 2/11 of that: 1 - 1/55
    net = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(net.weight)
    ema = EMA(net, 0.995)
    nn.init.ones_(net.weight)
    ema.update()
    ema.update()
    ema.copy_to(net)
    assert net.weight.item() == pytest.approx(1.0 - 1.0 / 55.0)


def test_the_module_is_untouched_and_state_continues_bit_for_bit():
    torch.manual_seed(0)
    net = nn.Linear(3, 2)
    twin = copy.deepcopy(net)
    ema, restored = EMA(net), EMA(twin)

    def drift(module: nn.Module, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for p in module.parameters():
                p.add_(torch.randn(p.shape, generator=generator))

    drift(net, 1)
    before = net.weight.detach().clone()
    ema.update()
    assert torch.equal(net.weight, before)
    saved = ema.state_dict()
    twin.load_state_dict(net.state_dict())
    for average, module in ((ema, net), (restored, twin)):
        if average is restored:
            average.load_state_dict(saved)
        drift(module, 2)
        average.update()
    for a, b in zip(ema.state_dict()["shadow"].values(), restored.state_dict()["shadow"].values(), strict=True):
        assert torch.equal(a, b)
    assert saved["updates"] == 1


def test_foreign_state_and_bad_decay_are_refused():
    with pytest.raises(CheckpointError, match="another network"):
        EMA(nn.Linear(2, 1)).load_state_dict(EMA(nn.Linear(3, 1)).state_dict())
    with pytest.raises(ConfigError, match="decay=1"):
        EMA(nn.Linear(2, 1), 1.0)
