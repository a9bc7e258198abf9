"""The flow-matching ratio: 1 at the old policy, its two granularities, its proxy divergence; ASPO by element."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from robopo.algos.choices import Ratio, RatioBatch, Samples
from robopo.algos.flow_dppo import DivergenceMask
from robopo.algos.fpo import ASPO, CfmRatio
from robopo.algos.no_region import Unbounded
from robopo.errors import ConfigError
from robopo.losses.divergence import proxy_kl_weight
from robopo.policies.config import ChunkPolicyConfig, Reduce
from robopo.processes.flow import FlowConfig
from tests.unit.algos.ratio_fakes import FakeFlow, perturb, rollout
from tests.unit.policies.toy import MLP, make_obs, make_policy

UNIT = torch.tensor([4, 0, 3, 5])
KINDS = ["velocity", "noise", "clean", "huber"]


def ratio(**settings) -> CfmRatio:
    return CfmRatio(**({"num_samples": 5, "log_ratio_clamp": None} | settings))


def anchored(policy: FakeFlow, chosen: CfmRatio, *, seed: int = 1, **fields) -> Samples:
    data = rollout(policy, **fields)
    return dataclasses.replace(data, anchors=chosen.anchor(policy, data, torch.Generator().manual_seed(seed)))


def gradient(policy: FakeFlow, value: Tensor) -> Tensor:
    return torch.cat([g.flatten() for g in torch.autograd.grad(value, list(policy.net.parameters()))])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("granularity", ["per_sample", "per_action"])
def test_ratio_is_one_before_the_update(granularity: str, kind: str) -> None:
    policy, chosen = FakeFlow(), ratio(granularity=granularity, loss=kind, divergence=True)
    out = chosen.evaluate(policy, anchored(policy, chosen), UNIT)
    assert out.log_ratio.shape == (4, 5 if granularity == "per_sample" else 1)
    assert out.log_ratio.abs().max() < 1e-12
    assert out.divergence is not None and out.divergence.shape == out.log_ratio.shape
    assert out.divergence.abs().max() < 1e-12


def test_by_hand() -> None:
    """Stored pairs, old losses and new ones, written out for one decision and one pair."""
    policy, chosen = FakeFlow(), ratio(loss="velocity", reduction="mean", scale=3.0)
    data = anchored(policy, chosen)
    perturb(policy)
    t, e = data.anchors["cfm_t"][3, 2], data.anchors["cfm_noise"][3, 2]
    a = data.latents[3, -1]
    v = policy.velocity({"state": data.obs["state"][3:4]}, ((1 - t) * a + t * e)[None], t[None])[0]
    new = 3.0 * (v - (e - a))[:2].square().mean()
    found = chosen.evaluate(policy, data, UNIT).log_ratio[2, 2]
    torch.testing.assert_close(found, data.anchors["cfm_loss"][3, 2] - new, atol=1e-12, rtol=0)


def test_granularities_have_one_gradient_at_first_and_part_after_a_step() -> None:
    policy = FakeFlow()
    single, whole = ratio(), ratio(granularity="per_action")
    data = anchored(policy, single)
    adv = torch.tensor([1.0, -0.5, 0.3, -2.0], dtype=torch.float64)[:, None]

    def objective(chosen: CfmRatio) -> Tensor:
        out = chosen.evaluate(policy, data, UNIT)
        return Unbounded().surrogate(out, adv.expand_as(out.log_ratio), num_steps=3).loss.mean()

    torch.testing.assert_close(
        gradient(policy, objective(single)), gradient(policy, objective(whole)), atol=1e-10, rtol=0
    )
    perturb(policy)
    assert (gradient(policy, objective(single)) - gradient(policy, objective(whole))).abs().max() > 1e-3
    one, many = whole.evaluate(policy, data, UNIT).log_ratio, single.evaluate(policy, data, UNIT).log_ratio
    torch.testing.assert_close(one, many.mean(1, keepdim=True), atol=1e-12, rtol=0)
    assert (many.exp().mean(1, keepdim=True) >= one.exp()).all()


def test_a_step_for_positive_advantages_lowers_the_loss_of_the_stored_pairs() -> None:
    policy, chosen = FakeFlow(), ratio()
    data = anchored(policy, chosen)
    out = chosen.evaluate(policy, data, UNIT)
    loss = Unbounded().surrogate(out, torch.ones_like(out.log_ratio), num_steps=3).loss.mean()
    grads = torch.autograd.grad(loss, list(policy.net.parameters()))
    with torch.no_grad():
        for parameter, grad in zip(policy.net.parameters(), grads, strict=True):
            parameter.add_(grad, alpha=-1e-3)
    assert chosen.evaluate(policy, data, UNIT).log_ratio.mean() > 1e-6


def test_unexecuted_rows_are_seen_by_the_network_but_not_counted() -> None:
    policy, chosen = FakeFlow(), ratio()
    data = anchored(policy, chosen)
    perturb(policy)
    before = chosen.evaluate(policy, data, UNIT).log_ratio
    # the last layer's outputs of row 2 can't matter; its inputs do
    last = policy.net[2]
    with torch.no_grad():
        last.bias[4:] += 10.0
    assert chosen.evaluate(policy, data, UNIT).log_ratio.equal(before)
    data.latents[:, -1, 2] += 1.0
    assert not chosen.evaluate(policy, data, UNIT).log_ratio.equal(before)


@pytest.mark.parametrize("times", ["uniform", "grid", "interval"])
def test_times(times: str) -> None:
    policy, chosen = FakeFlow(), ratio(times=times, num_samples=200, grid_steps=4)
    t = anchored(policy, chosen).anchors["cfm_t"]
    assert t.shape == (6, 200)
    assert t.dtype == torch.float64
    if times == "grid":
        assert sorted(set(t.flatten().tolist())) == [0.25, 0.5, 0.75, 1.0]
    else:
        low, high = (0.0, 1.0) if times == "uniform" else (0.005, 0.995)
        assert low <= t.min() < low + 0.01 and high - 0.01 < t.max() <= high


def test_anchor_repeats_with_its_generator_and_whatever_the_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, chosen = FakeFlow(), ratio(divergence=True)
    first = anchored(policy, chosen).anchors
    monkeypatch.setattr("robopo.algos.fpo._ANCHOR_ROWS", 10)  # two decisions a pass
    again = anchored(policy, chosen).anchors
    other = anchored(policy, chosen, seed=2).anchors
    assert first.keys() == {"cfm_t", "cfm_noise", "cfm_loss", "cfm_velocity"}
    for name, tensor in first.items():
        torch.testing.assert_close(again[name], tensor, atol=1e-12, rtol=0)
        assert not other[name].equal(tensor)
        assert not tensor.requires_grad
    assert "cfm_velocity" not in anchored(policy, ratio()).anchors


def test_clamps_bound_values_but_not_gradients() -> None:
    policy = FakeFlow()
    plain = ratio(reduction="sum")
    data = anchored(policy, plain)
    perturb(policy, 1.0)
    free = plain.evaluate(policy, data, UNIT).log_ratio
    new = data.anchors["cfm_loss"][UNIT] - free
    assert free.abs().max() > 2.0 and new.max() > 8.0
    narrow = ratio(reduction="sum", log_ratio_clamp=2.0).evaluate(policy, data, UNIT).log_ratio
    torch.testing.assert_close(narrow, free.clamp(-2.0, 2.0))
    torch.testing.assert_close(gradient(policy, narrow.sum()), gradient(policy, free.sum()))
    free = plain.evaluate(policy, data, UNIT).log_ratio
    both = ratio(reduction="sum", old_loss_clamp=6.0, new_loss_clamp=8.0).evaluate(policy, data, UNIT).log_ratio
    torch.testing.assert_close(both, data.anchors["cfm_loss"][UNIT].clamp(max=6.0) - new.clamp(max=8.0))
    torch.testing.assert_close(gradient(policy, both.sum()), gradient(policy, free.sum()))


@pytest.mark.parametrize("reduce", list(Reduce))
def test_proxy_divergence(reduce: Reduce) -> None:
    policy, chosen = FakeFlow(reduce=reduce), ratio(divergence=True, divergence_eta=0.5)
    data = anchored(policy, chosen)
    old = data.anchors["cfm_velocity"][UNIT]
    perturb(policy)
    new = chosen._velocity(policy, data, UNIT, data.anchors["cfm_t"][UNIT], data.anchors["cfm_noise"][UNIT])
    gap = (new - old)[:, :, :2].square()
    expected = proxy_kl_weight(data.anchors["cfm_t"][UNIT], 0.5) * gap.sum((2, 3)) / (4 if reduce is Reduce.MEAN else 1)
    torch.testing.assert_close(chosen.evaluate(policy, data, UNIT).divergence, expected, atol=1e-12, rtol=0)
    whole = dataclasses.replace(chosen, granularity="per_action").evaluate(policy, data, UNIT).divergence
    torch.testing.assert_close(whole, expected.mean(1, keepdim=True), atol=1e-12, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("granularity", ["per_sample", "per_action"])
def test_exact_direction_of_the_mask(granularity: str, kind: str) -> None:
    """A value is blocked exactly where following A r raises its proxy divergence, whatever the loss."""
    policy = FakeFlow()
    chosen = ratio(granularity=granularity, loss=kind, divergence=True, huber_width=0.5, num_samples=3)
    data = anchored(policy, chosen, decisions=60)
    perturb(policy, 0.3)
    unit = torch.arange(60)
    v = chosen._velocity(policy, data, unit, data.anchors["cfm_t"], data.anchors["cfm_noise"]).detach()
    v.requires_grad_()
    policy.velocity = lambda obs, x, t: v.flatten(0, 1)
    out = chosen.evaluate(policy, data, unit)
    adv = torch.randn(out.log_ratio.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    blocked = DivergenceMask(delta=1e-12).surrogate(out, adv, num_steps=3).blocked
    (up,) = torch.autograd.grad((adv * out.log_ratio.exp()).sum(), v, retain_graph=True)
    (away,) = torch.autograd.grad(out.divergence.sum(), v)
    along = (up * away).sum((2, 3))
    expected = along > 0 if granularity == "per_sample" else along.sum(1, keepdim=True) > 0
    assert blocked.equal(expected)
    assert 0.2 < blocked.double().mean() < 0.8


def test_units_ignore_whether_steps_are_active() -> None:
    chosen: Ratio = ratio()
    policy = FakeFlow()
    silent = torch.zeros(6, 3, dtype=torch.bool)
    use = torch.tensor([True, False, True, False, False, True])
    assert chosen.units(rollout(policy, active=silent)).tolist() == list(range(6))
    assert chosen.units(rollout(policy, active=silent, use=use)).tolist() == [0, 2, 5]
    assert chosen.decision(rollout(policy), UNIT).equal(UNIT)


def test_check_and_settings() -> None:
    ratio().check(FakeFlow())
    diffusion = FakeFlow()
    diffusion.process = SimpleNamespace(step_sizes=None)
    for policy in (diffusion, SimpleNamespace(has_moments=True)):
        with pytest.raises(ConfigError, match=r"ratio=CfmRatio needs a velocity.*PerStep"):
            ratio().check(policy)
    with pytest.raises(ConfigError, match=r"reduction='root' is unknown.*known: mean, rows, sqrt, sum"):
        CfmRatio(reduction="root")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="num_samples=0"):
        CfmRatio(num_samples=0)
    with pytest.raises(ConfigError, match="log_ratio_clamp=0"):
        CfmRatio(log_ratio_clamp=0)
    with pytest.raises(ConfigError, match="eps=1"):
        ASPO(1.0)


def test_a_shortcut_model_must_act_with_the_velocity_that_the_ratio_trains() -> None:
    """Told a step of 1/4 it samples with another output than the velocity: CFM would train what never acts."""
    config = ChunkPolicyConfig(denoised_clip=None)
    coarse, finest, plain = (
        make_policy(MLP, FlowConfig(num_steps=4, shortcut=shortcut, shortcut_levels=levels), config)
        for shortcut, levels in ((True, 5), (True, 2), (False, 5))
    )
    x, i = torch.randn(5, 4, 2, generator=torch.Generator().manual_seed(0)), torch.zeros(5, dtype=torch.long)
    for policy, acts in ((coarse, False), (finest, True), (plain, True)):
        policy.begin_finetuning(4)
        trained = policy.velocity(make_obs(), x, torch.ones(5))
        assert torch.allclose(policy.net_output(make_obs(), x, i), trained) == acts
    for policy in (finest, plain):
        ratio().check(policy)
    with pytest.raises(ConfigError, match=r"CfmRatio .*shortcut.*num_steps=4.*32"):
        ratio().check(coarse)


def test_aspo_is_the_clip_or_spo_element_by_element() -> None:
    """Values with A > 0 keep their own losses: averaging them before the choice would make them all alike."""
    r = torch.tensor([[1.02, 1.3, 0.6], [0.99, 0.7, 1.4]], dtype=torch.float64)
    adv = torch.tensor([[2.0, 1.0, 0.5], [-1.0, -2.0, -0.5]], dtype=torch.float64)
    log_ratio = r.log().requires_grad_()
    loss, blocked, *_ = ASPO(0.05).surrogate(RatioBatch(log_ratio, None), adv, num_steps=1)
    clip = torch.maximum(-adv * r, -adv * r.clamp(0.95, 1.05))
    spo = -(r * adv - adv.abs() * (r - 1).square() / 0.1)
    torch.testing.assert_close(loss, torch.where(adv > 0, clip, spo), atol=1e-12, rtol=0)
    assert len({round(float(x), 6) for x in loss[0].detach()}) == 3
    assert blocked.tolist() == [[False, True, False], [False, True, False]]
    (slope,) = torch.autograd.grad(loss.sum(), log_ratio)
    expected = torch.stack([-adv[0] * r[0] * (r[0] <= 1.05), (-adv[1] + adv[1].abs() * (r[1] - 1) / 0.05) * r[1]])
    torch.testing.assert_close(slope, expected, atol=1e-12, rtol=0)


def test_aspo_gives_no_nan_where_a_clipped_ratio_overflows() -> None:
    log_ratio = torch.tensor([[1000.0, math.inf]], dtype=torch.float64, requires_grad=True)
    loss, *_ = ASPO().surrogate(RatioBatch(log_ratio, None), torch.ones(1, 2, dtype=torch.float64), num_steps=1)
    torch.testing.assert_close(loss.detach(), torch.full((1, 2), -1.05, dtype=torch.float64))
    loss.sum().backward()
    assert log_ratio.grad is not None and log_ratio.grad.equal(torch.zeros(1, 2, dtype=torch.float64))
