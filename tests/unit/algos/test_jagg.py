"""When two backward passes give the gradient of a whole window, how far off they are elsewhere, and who notices."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from robopo.algos.choices import Samples
from robopo.algos.jagg import FixedOutput, Jagg, JaggBackward, chord_weights, straightness, to_ends
from robopo.errors import ConfigError, ShapeError
from robopo.policies.config import ChunkPolicyConfig, Reduce
from robopo.types import Moments

H, TA, A, OBS = 3, 2, 2, 4
TIMES = torch.tensor([1.0, 0.9, 0.75, 0.5, 0.45, 0.3, 0.2, 0.05], dtype=torch.float64)  # two windows of 4


class Field(nn.Module):
    """x' ~ N(x - h v(x, t, s), std^2), v a network of (x, t, s); the std may be learned."""

    has_moments = True

    def __init__(self, hidden: int | None, times: Tensor = TIMES) -> None:
        super().__init__()
        torch.manual_seed(0)
        size, out = H * A + 1 + OBS, H * A
        layers = [nn.Linear(size, out)] if hidden is None else [nn.Linear(size, hidden), nn.Tanh()]
        self.net = nn.Sequential(*layers, *([] if hidden is None else [nn.Linear(hidden, out)]))
        self.log_std = nn.Parameter(torch.tensor(-1.5))
        self.process = SimpleNamespace(timesteps=times)
        self.spec = SimpleNamespace(action_steps=TA)
        self.config = ChunkPolicyConfig()
        self.ft_steps = len(times)
        self.rows: list[tuple[int, bool]] = []  # (rows, with a graph) of every pass
        self.double()

    def net_output(self, obs, x_in, i):
        self.rows.append((len(i), torch.is_grad_enabled()))
        features = torch.cat([x_in.flatten(1), self.process.timesteps[i][:, None], obs["state"].flatten(1)], dim=1)
        return self.net(features).view(-1, H, A)

    def moments(self, obs, x_in, out, i):
        std = self.log_std.exp().expand(len(i), 1, 1)
        return Moments(x_in - 0.1 * out, std)

    def step_moments(self, obs, x_in, i):
        return self.moments(obs, x_in, self.net_output(obs, x_in, i), i)


def make_data(policy: Field, *, noise: float = 0.0, decisions: int = 6) -> Samples:
    """Paths x_t = (1 - t) a + t e, the straight ones of a flow, plus noise off them."""
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    K = policy.ft_steps
    t = policy.process.timesteps.view(1, K, 1, 1)
    latents = (1 - t) * 0.3 * normal(decisions, 1, H, A) + t * normal(decisions, 1, H, A)
    latents = latents + noise * normal(*latents.shape)
    unused = torch.zeros(decisions, dtype=torch.float64)
    return Samples(
        obs={"state": normal(decisions, 1, OBS)},
        latents=torch.cat([latents, normal(decisions, 1, H, A)], dim=1),
        log_probs=torch.zeros(decisions, K, dtype=torch.float64),
        means=None,
        stds=None,
        active=None,
        use=None,
        value=unused,
        advantage=normal(decisions),
        returns=unused,
        anchors={"target": normal(decisions, K, H, A)},
    )


def clip_loss(data: Samples, unit: Tensor, K: int):
    """A clipped surrogate of some ratio: what matters is that it bends in the outputs."""

    def loss_of(policy) -> Tensor:
        decision, i = unit // K, unit % K
        moments = policy.step_moments(data.rows(decision), data.latents[decision, i], i)
        z = (data.anchors["target"][decision, i] - moments.mean)[:, :TA] / moments.std
        ratio = (-0.05 * z.square() - 0.05 * moments.std.log()).mean((1, 2)).add(0.05).exp()
        adv = data.advantage[decision]
        return torch.maximum(-adv * ratio, -adv * ratio.clamp(0.8, 1.2)).mean()

    return loss_of


def all_units(data: Samples) -> Tensor:
    return torch.arange(data.log_probs.numel())


def gradient(policy: Field, of: str = "net") -> Tensor:
    parameters = policy.net.parameters() if of == "net" else [policy.log_std]
    return torch.cat([p.grad.flatten() for p in parameters])


def exact(policy: Field, data: Samples, unit: Tensor) -> Tensor:
    policy.zero_grad()
    clip_loss(data, unit, policy.ft_steps)(policy).backward()
    return gradient(policy)


def run(policy: Field, data: Samples, unit: Tensor | None = None, **settings) -> tuple[Tensor, float, JaggBackward]:
    unit = all_units(data) if unit is None else unit
    loose = {"window": 4, "min_score": -1.0, "min_cosine": -1.0}
    accelerator = JaggBackward(Jagg(**(loose | settings)), policy)
    policy.zero_grad()
    share = accelerator.backward(policy, data, unit, clip_loss(data, unit, policy.ft_steps))
    return gradient(policy), share, accelerator


def relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def test_by_hand():
    t = torch.tensor([1.0, 0.75, 0.5])
    assert chord_weights(t).tolist() == [0.0, 0.5, 1.0]
    assert chord_weights(torch.tensor([1.0, 0.9, 0.5])).tolist() == pytest.approx([0.0, 0.2, 1.0])
    assert chord_weights(torch.tensor([1.0, 0.9, 0.5]), index_weights=True).tolist() == [0.0, 0.5, 1.0]
    s = torch.tensor([1.0, 10.0, 100.0]).view(1, 3, 1, 1)
    ends = to_ends(s, torch.tensor([[0.0, 0.2, 1.0]]))
    assert ends.flatten().tolist() == pytest.approx([1 + 8.0, 2.0 + 100])
    # Ends (1, 0) and (0, 1): the chord's middle is (.5, .5), at 45 degrees to (1, 0).
    out = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]).view(1, 3, 1, 2)
    assert straightness(out, torch.tensor([[0.0, 0.5, 1.0]])).item() == pytest.approx(0.5**0.5)


def test_exact_on_a_linear_field_and_a_straight_path():
    policy = Field(None)
    data = make_data(policy)
    expected = exact(policy, data, all_units(data))
    found, share, _ = run(policy, data)
    assert share == 1.0
    assert relative_error(found, expected) < 1e-12
    # The published code's weights forget that the grid isn't uniform.
    assert relative_error(run(policy, data, index_weights=True)[0], expected) > 1e-3


def test_two_steps_are_exact_for_any_network_and_path():
    policy = Field(16)
    data = make_data(policy, noise=1.0)
    assert relative_error(run(policy, data, window=2)[0], exact(policy, data, all_units(data))) < 1e-12


def test_a_bent_network_on_a_straight_path_is_close():
    policy = Field(32)
    data = make_data(policy)
    error = relative_error(run(policy, data)[0], exact(policy, data, all_units(data)))
    assert 1e-6 < error < 0.05


@pytest.mark.parametrize("hidden", [None, 32])
def test_the_error_grows_with_the_noise_of_the_path(hidden):
    policy = Field(hidden)
    errors = []
    for noise in (0.0, 0.05, 0.2, 0.8):
        data = make_data(policy, noise=noise)
        errors.append(relative_error(run(policy, data)[0], exact(policy, data, all_units(data))))
    assert errors == sorted(errors)
    assert errors[-1] > 0.1


@pytest.mark.parametrize("missing", [[1], [3], [0, 2], [0, 1, 2, 3]])
@pytest.mark.parametrize("settings", [{}, {"min_score": 1.0}])
def test_masked_steps_contribute_nothing(missing, settings):
    policy = Field(None)
    data = make_data(policy, decisions=3)
    present = torch.tensor([n for n in range(data.log_probs.numel()) if n not in missing])
    found = run(policy, data, present, **settings)[0]
    assert relative_error(found, exact(policy, data, present)) < 1e-12
    assert relative_error(found, exact(policy, data, all_units(data))) > 1e-3


def test_a_learned_noise_gets_its_exact_gradient():
    policy = Field(32)
    data = make_data(policy, noise=0.5)
    exact(policy, data, all_units(data))
    expected = gradient(policy, "std")
    run(policy, data)
    torch.testing.assert_close(gradient(policy, "std"), expected, rtol=1e-12, atol=0)


def test_passes_are_counted():
    policy = Field(32)
    data = make_data(policy)
    _, _, accelerator = run(policy, data, check_every=50)
    policy.rows.clear()
    unit = all_units(data)
    accelerator.backward(policy, data, unit, clip_loss(data, unit, 8))
    # 12 windows of 4: one look at all 48 steps, a graph over 24.
    assert policy.rows == [(48, False), (24, True)]


def test_windows_that_bend_get_the_exact_gradient():
    policy = Field(32)
    straight, bent = make_data(policy, decisions=3), make_data(policy, noise=3.0, decisions=3)
    data = Samples(
        **dict.fromkeys(("means", "stds", "active", "use")),
        obs={"state": torch.cat([straight.obs["state"], bent.obs["state"]])},
        anchors={"target": torch.cat([straight.anchors["target"], bent.anchors["target"]])},
        **{
            name: torch.cat([getattr(straight, name), getattr(bent, name)])
            for name in ("latents", "log_probs", "value", "advantage", "returns")
        },
    )
    unit = all_units(data)
    expected = exact(policy, data, unit)
    found, share, _ = run(policy, data, min_score=0.95)
    assert share == 0.5
    assert relative_error(found, expected) < 0.05
    assert relative_error(run(policy, data)[0], expected) > 0.1
    # frac bounds the share even where all are straight enough, and takes the straightest: 3 of 12 windows.
    assert run(policy, data, frac=0.25)[1] == 0.25
    assert relative_error(run(policy, data, frac=0.25)[0], expected) < 0.05
    assert relative_error(run(policy, data, min_score=1.0)[0], expected) < 1e-12


def test_it_switches_itself_off_and_says_so_once(caplog):
    policy = Field(32)
    data = make_data(policy, noise=3.0)
    expected = exact(policy, data, all_units(data))
    with caplog.at_level(logging.WARNING, logger="robopo.algos.jagg"):
        found, share, accelerator = run(policy, data, min_cosine=0.999)
        # The step that finds out already uses the exact gradient.
        assert share == 0.0
        assert relative_error(found, expected) < 1e-12
        unit = all_units(data)
        policy.zero_grad()
        accelerator.backward(policy, data, unit, clip_loss(data, unit, 8))
    assert relative_error(gradient(policy), expected) < 1e-12
    assert len(caplog.records) == 1
    assert "min_cosine=0.999" in caplog.text
    state = accelerator.state_dict()
    again = JaggBackward(accelerator.config, policy)
    assert again.enabled
    again.load_state_dict(state)
    assert again.state_dict() == state
    assert (again.enabled, again.cosine) == (False, accelerator.cosine)


def test_it_is_checked_every_so_many_steps():
    policy = Field(32)
    good, bad = make_data(policy), make_data(policy, noise=3.0)
    unit = all_units(good)
    _, _, accelerator = run(policy, good, min_cosine=0.9, check_every=3)
    assert accelerator.cosine > 0.99
    enabled = []
    for _ in range(3):
        accelerator.backward(policy, bad, unit, clip_loss(bad, unit, 8))
        enabled.append(accelerator.enabled)
    assert enabled == [True, True, False]


def test_a_loss_without_gradient_is_not_a_disagreement():
    policy = Field(32)
    data = make_data(policy)
    accelerator = JaggBackward(Jagg(min_score=-1.0), policy)
    accelerator.backward(policy, data, all_units(data), lambda p: 0.0 * clip_loss(data, all_units(data), 8)(p))
    assert accelerator.enabled


def test_minibatches_keep_windows_whole():
    policy = Field(None)
    accelerator = JaggBackward(Jagg(window=4), policy)
    missing = {5, 6, 40}
    units = torch.tensor([n for n in range(48) if n not in missing and not 16 <= n < 20])
    parts = accelerator.minibatches(units, 12, torch.Generator().manual_seed(0))
    assert len(parts) == 3  # 11 windows, 3 in each
    for part in parts:
        windows = set((part // 4).tolist())
        assert len(windows) == 3
        expected = [n for n in units.tolist() if n // 4 in windows]
        assert sorted(part.tolist()) == expected
        assert all(a < b or a // 4 != b // 4 for a, b in zip(part.tolist(), part.tolist()[1:], strict=False))
    other = accelerator.minibatches(units, 12, torch.Generator().manual_seed(1))
    assert any(not torch.equal(a, b) for a, b in zip(parts, other, strict=True))
    assert accelerator.minibatches(units[:0], 12, torch.Generator()) == []


@pytest.mark.parametrize("reduce", list(Reduce))
def test_a_policy_that_has_answered_scores_executed_rows_with_its_answers(reduce):
    policy = Field(16)
    policy.config = ChunkPolicyConfig(reduce=reduce)
    data = make_data(policy)
    unit = torch.tensor([3, 9, 40])
    decision, i = unit // 8, unit % 8
    obs, x_in, x_out = data.rows(decision), data.latents[decision, i], data.latents[decision, i + 1]
    fixed = FixedOutput(policy, policy.net_output(obs, x_in, i))
    expected = policy.step_moments(obs, x_in, i)
    assert all(torch.equal(a, b) for a, b in zip(fixed.step_moments(obs, x_in, i), expected, strict=True))
    normal = torch.distributions.Normal(expected.mean, expected.std)
    elements = normal.log_prob(x_out)[:, :TA].flatten(1)
    scores = elements.mean(1) if reduce is Reduce.MEAN else elements.sum(1)
    torch.testing.assert_close(fixed.step_log_prob(obs, x_in, x_out, i), scores, rtol=1e-10, atol=1e-10)
    assert fixed.spec is policy.spec


def test_what_does_not_fit_is_refused():
    policy = Field(None)
    with pytest.raises(ConfigError, match=r"window=3.*ft_steps=8"):
        JaggBackward(Jagg(window=3), policy)
    policy.has_moments = False
    with pytest.raises(ConfigError, match="no moments"):
        JaggBackward(Jagg(), policy)
    policy.has_moments, policy.config = True, ChunkPolicyConfig(compat_published=True)
    with pytest.raises(ConfigError, match=r"Jagg.*compat_published"):
        JaggBackward(Jagg(), policy)
    fixed = FixedOutput(policy, torch.zeros(4, H, A))
    assert fixed.ft_steps == 8
    with pytest.raises(ShapeError, match="2 steps were asked for, 4"):
        fixed.step_moments({}, torch.zeros(2, H, A), torch.zeros(2))


@pytest.mark.parametrize(
    "bad", [{"window": 1}, {"frac": 0.0}, {"frac": 1.5}, {"min_score": 2.0}, {"min_cosine": -2.0}, {"check_every": 0}]
)
def test_bad_settings_are_refused(bad):
    with pytest.raises(ConfigError, match=next(iter(bad))):
        Jagg(**bad)
