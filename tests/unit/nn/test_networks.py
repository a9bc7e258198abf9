"""Published parameter counts, and one function by two ways: any batch, or step by step along a chain."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from robopo.errors import ConfigError
from robopo.nn.activation import Activation, fast_mish
from robopo.nn.fixed_length import conv_matrix, fixed_length
from robopo.nn.mlp import DiffusionMLP, DiffusionMLPConfig, ResidualMLP
from robopo.nn.time_embed import SinusoidalEmbedding
from robopo.nn.unet1d import UNet1D, UNet1DConfig


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


LARGE = DiffusionMLPConfig(hidden=(1024, 1024, 1024), time_dim=32)


@pytest.mark.parametrize(
    ("config", "horizon", "action_dim", "cond_dim", "expected"),
    [
        (DiffusionMLPConfig(), 4, 3, 11, 553_020),  # hopper
        (DiffusionMLPConfig(), 4, 7, 23, 575_564),  # can
        (LARGE, 4, 7, 23, 2_218_108),  # square
        (LARGE, 8, 14, 59, 2_427_088),  # transport
        (DiffusionMLPConfig(hidden=(256,) * 3, state_hidden=(128, 32)), 4, 9, 60, 175_604),  # kitchen
    ],
)
def test_mlp_has_the_published_size(config, horizon, action_dim, cond_dim, expected):
    assert count(DiffusionMLP(config, horizon=horizon, action_dim=action_dim, cond_dim=cond_dim)) == expected


def test_critic_has_the_published_size():
    assert count(ResidualMLP(11, 1, (256, 256, 256))) == 134_913  # hopper


@pytest.mark.parametrize(
    ("config", "horizon", "action_dim", "cond_dim", "expected"),
    [(UNet1DConfig(), 4, 7, 23, 1_623_255), (UNet1DConfig(mults=(1, 2, 4)), 16, 10, 58, 6_856_346)],  # can, one_leg
)
def test_unet_has_the_published_size(config, horizon, action_dim, cond_dim, expected):
    assert count(UNet1D(config, horizon=horizon, action_dim=action_dim, cond_dim=cond_dim)) == expected


def small_nets() -> list[nn.Module]:
    sizes = {"action_dim": 3, "cond_dim": 5}
    return [
        DiffusionMLP(DiffusionMLPConfig(hidden=(16,) * 5, state_hidden=(8, 4), layer_norm=True), horizon=4, **sizes),
        DiffusionMLP(DiffusionMLPConfig(hidden=(16,) * 3, activation=Activation.RELU), horizon=4, **sizes),
        UNet1D(UNet1DConfig(dim=8, groups=4), horizon=4, **sizes),
        UNet1D(UNet1DConfig(dim=8, groups=4, mults=(1, 2, 4), state_hidden=(6,)), horizon=16, **sizes),
        UNet1D(UNet1DConfig(dim=8, groups=4, mults=(1,), activation=Activation.RELU), horizon=3, **sizes),
    ]


@pytest.mark.parametrize("which", range(5))
@pytest.mark.parametrize("frozen", [False, True])
def test_a_chain_step_is_the_forward_at_that_level(which, frozen):
    torch.manual_seed(0)
    net = small_nets()[which].double()
    net.requires_grad_(not frozen)
    levels = torch.tensor([9, 5, 0])
    x, cond = torch.randn(2, net.horizon, 3).double(), torch.randn(2, 5).double()
    context = net.begin_chain(cond, levels)
    for k, t in enumerate(levels):
        expected = net(x, t.expand(2), cond)
        assert expected.shape == x.shape
        torch.testing.assert_close(net.chain_step(x, context, k), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("which", [0, 2])
@pytest.mark.parametrize("change", ["optimiser", "copy", "load"])
def test_chains_see_changed_weights(which, change):
    torch.manual_seed(0)
    net = small_nets()[which]
    x, cond, t = torch.randn(1, 4, 3), torch.randn(1, 5), torch.tensor([3])
    net.requires_grad_(False)
    before = net.chain_step(x, net.begin_chain(cond, t), 0)
    if change == "optimiser":
        # Fused steps don't raise the version that in-place changes raise.
        net.requires_grad_(True)
        optimiser = torch.optim.AdamW(net.parameters(), lr=0.1, fused=True)
        net(x, t, cond).square().sum().backward()
        optimiser.step()
    elif change == "copy":
        with torch.no_grad():
            for p in net.parameters():
                p.copy_(torch.randn_like(p))
    else:
        net.load_state_dict(copy.deepcopy(small_nets()[which].state_dict()))
    after = net.chain_step(x, net.begin_chain(cond, t), 0)
    assert not torch.allclose(before, after, atol=1e-3)
    torch.testing.assert_close(after, net(x, t, cond).detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv1d(3, 2, 5, padding=2),
        nn.Conv1d(3, 2, 3, stride=2, padding=1),
        nn.Conv1d(3, 2, 1),
        nn.ConvTranspose1d(3, 2, 4, stride=2, padding=1),
    ],
)
@pytest.mark.parametrize("length", [2, 4, 8, 16])
def test_a_convolution_of_fixed_length_is_its_matrix(conv, length):
    x = torch.randn(5, 3, length)
    expected = conv(x).detach()
    matrix = conv_matrix(conv, length)
    with_bias = (x.flatten(1) @ matrix.T).view_as(expected) + conv.bias.detach()[:, None]
    torch.testing.assert_close(with_bias, expected, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        for B in (1, 5):
            got = fixed_length(conv, length)(x[:B])
            torch.testing.assert_close(got, expected[:B], rtol=1e-5, atol=1e-5)


def test_fast_mish_is_mish():
    x = torch.linspace(-100.0, 100.0, 10_001)
    before = x.clone()
    torch.testing.assert_close(fast_mish(x), nn.functional.mish(x), rtol=1e-6, atol=1e-7)
    assert torch.equal(x, before)
    assert torch.equal(fast_mish(x[:10]), nn.functional.mish(x[:10]))
    assert Activation.MISH.inference() is fast_mish


def test_time_embedding_by_hand():
    # Half of 4 is 2: frequencies 1 and 1/10000.
    rows = SinusoidalEmbedding(4)(torch.tensor([0, 2]))
    expected = torch.tensor([[0.0, 0.0, 1.0, 1.0], [0.9092974, 0.0002, -0.4161468, 1.0]])
    torch.testing.assert_close(rows, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("hidden", [(512,), (512, 512), (512, 512, 256), ()])
def test_other_residual_shapes_are_refused(hidden):
    with pytest.raises(ConfigError, match="hidden="):
        DiffusionMLPConfig(hidden=hidden)


def test_a_chunk_that_cannot_be_halved_is_refused():
    with pytest.raises(ConfigError, match=r"horizon=6.*divisible by 4"):
        UNet1D(UNet1DConfig(mults=(1, 2, 4)), horizon=6, action_dim=2, cond_dim=3)


@pytest.mark.parametrize("bad", [{"groups": 7}, {"kernel_size": 4}, {"mults": ()}, {"time_dim": 5}, {"norm_eps": 0.0}])
def test_bad_unet_sizes_are_refused(bad):
    with pytest.raises(ConfigError, match=next(iter(bad))):
        UNet1DConfig(**bad)
