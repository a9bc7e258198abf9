from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from robopo.algos.choices import Samples
from robopo.algos.dppo import dppo
from robopo.algos.policy_gradient import PolicyGradient
from robopo.algos.policy_gradient_config import PolicyGradientConfig
from robopo.algos.regularisers import (
    BaseChains,
    DemonstrationLoss,
    ReferenceKL,
    SampledEntropy,
    StepEntropy,
    Units,
    active_step,
    as_pretrained,
    configured,
)
from robopo.critics.value import ValueNet
from robopo.errors import ConfigError
from robopo.rollout.collector import Collector
from tests.helpers.fake_policy import FakePolicy
from tests.helpers.point_mass import PointMass

CONFIG = PolicyGradientConfig(batch_size=60, epochs=1, critic_warmup_iterations=0, scale_rewards=False)


def samples(policy: FakePolicy, count: int = 40) -> Samples:
    generator = torch.Generator().manual_seed(0)
    obs = {key: torch.randn(count, 1, 2, generator=generator) for key in policy.spec.obs}
    with torch.no_grad():
        _, chain = policy.sample_chain(obs, generator=generator)
    zeros = torch.zeros(count)
    return Samples(
        obs, chain.latents, chain.log_probs, chain.means, chain.stds, chain.active, None, zeros, zeros, zeros, {}
    )  # fmt: skip


def at(data: Samples, *, step: bool = True) -> Units:
    N, K = data.log_probs.shape
    pair = torch.arange(N * K)
    return Units(pair // K, pair % K if step else None, torch.Generator().manual_seed(1))


def shifted(policy: FakePolicy, by: float) -> None:
    last: Any = policy.net[2]
    with torch.no_grad():
        last.bias.add_(by)


def test_reference_kl_by_hand() -> None:
    """Means 0.02 apart at std 0.1: KL 0.02 per number; the gradient leads back, and none reaches the noise."""
    policy = FakePolicy(3, learned_noise=True)
    data, term = samples(policy), ReferenceKL(1.0)
    assert policy.noise_net is not None
    assert term.loss(policy, data, at(data)).item() == pytest.approx(0.0, abs=1e-9)
    shifted(policy, 0.02)
    loss = term.loss(policy, data, at(data))
    assert loss.item() == pytest.approx(0.02, rel=1e-4)
    loss.backward()
    last: Any = policy.net[2]
    torch.testing.assert_close(last.bias.grad, torch.full((4,), 0.02 / 0.01 / 4), rtol=1e-3, atol=0)
    torch.testing.assert_close(policy.noise_net[0].grad, torch.zeros(1, 1, 2), atol=1e-5, rtol=0)
    assert policy.frozen_net is not None
    assert all(p.grad is None for p in policy.frozen_net.parameters())


def test_base_chains_are_the_frozen_networks() -> None:
    policy = FakePolicy(3)
    shifted(policy, 0.05)
    data, term = samples(policy), BaseChains(1.0)
    net = policy.net
    term.begin(policy, data, torch.Generator().manual_seed(2))
    assert policy.net is net
    with as_pretrained(policy), torch.no_grad():
        _, chain = policy.sample_chain(data.obs, generator=torch.Generator().manual_seed(2))
    i = torch.zeros(40, dtype=torch.long)
    expected = -policy.step_log_prob(data.obs, chain.latents[:, 0], chain.latents[:, 1], i).mean()
    found = term.loss(policy, data, Units(torch.arange(40), i, torch.Generator()))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("failing", [False, True])
def test_the_learning_network_comes_back(failing: bool) -> None:
    policy = FakePolicy(2)
    net = policy.net
    try:
        with as_pretrained(policy):
            assert policy.net is policy.frozen_net
            if failing:
                raise RuntimeError
    except RuntimeError:
        pass
    assert policy.net is net


def test_entropy_of_a_learned_noise() -> None:
    """-H = -(log 0.1 + log(2 pi e) / 2); its gradient in log std is -1, split over 2 numbers."""
    policy = FakePolicy(3, learned_noise=True)
    data = samples(policy)
    loss = StepEntropy(1.0).loss(policy, data, at(data))
    assert loss.item() == pytest.approx(2.302585 - 1.418939, abs=1e-5)
    loss.backward()
    assert policy.noise_net is not None
    torch.testing.assert_close(policy.noise_net[0].grad, torch.full((1, 1, 2), -0.5))


class Window(NamedTuple):
    obs: dict[str, Tensor]
    action: Tensor
    pad_mask: Tensor


class Demos:
    """Window n: every number is n."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def __len__(self) -> int:
        return 5

    def gather(self, index: Tensor) -> Window:
        self.asked.append(index.tolist())
        rows = index[:, None, None].float()
        obs = {key: rows.expand(-1, 1, 2) for key in ("state", "environment_state")}
        return Window(obs, rows.expand(-1, 2, 2), torch.zeros(len(index), 2, dtype=torch.bool))


class Cloner(FakePolicy):
    def bc_loss(self, obs: Any, action: Tensor, generator: Any, pad_mask: Any) -> Tensor:
        return self.mean(obs, torch.zeros_like(action), torch.zeros(len(action))).sub(action).square().mean()


def make(policy: FakePolicy, config: PolicyGradientConfig, **more: Any) -> tuple[PolicyGradient, Collector]:
    torch.manual_seed(1)
    critic = ValueNet(policy.spec.obs, 1, (16, 16, 16))
    sim = PointMass(8, max_episode_steps=6, radius=0.75, terminate_on_success=False)
    return dppo(policy, critic, config, **more), Collector(sim, policy)


def test_demonstrations_pull_and_follow_the_generator() -> None:
    config = dataclasses.replace(CONFIG, demo_coef=10.0, actor_lr=3e-3, epochs=10)
    asked = []
    for _ in range(2):
        demos = Demos()
        algo, collector = make(Cloner(3), config, demonstrations=demos)
        generator = torch.Generator().manual_seed(0)
        losses = [
            algo.update(collector.collect(10, generator), generator=generator).regularisers["demo"] for _ in range(3)
        ]
        asked.append(demos.asked)
        assert losses[-1] < 0.5 * losses[0]
        assert {n for batch in demos.asked for n in batch} == set(range(5))
        assert all(len(batch) == 60 for batch in demos.asked)
    assert asked[0] == asked[1]


class Flow(FakePolicy):
    """One-step samples e - v = spread * e: Gaussian with that std."""

    def __init__(self) -> None:
        super().__init__(3)
        self.spread = nn.Parameter(torch.tensor(0.5))

    def velocity(self, obs: Any, x: Tensor, t: Tensor) -> Tensor:
        assert (t == 1.0).all()
        return (1.0 - self.spread) * x


def test_sampled_entropy_pushes_samples_apart() -> None:
    """H / D of N(0, s^2) is log s + const, so the loss has the derivative -1 / s in s."""
    policy = Flow()
    data = samples(policy)
    loss = SampledEntropy(1.0).loss(policy, data, at(data, step=False))
    (gradient,) = torch.autograd.grad(loss, policy.spread)
    assert gradient.item() == pytest.approx(-2.0, rel=1e-3)
    assert loss.item() == pytest.approx(0.6931 - 1.4189, abs=0.15)  # 32 estimates from 16 samples


def test_a_random_step_is_an_active_one() -> None:
    policy = FakePolicy(4, inactive=(1, 3))
    data = samples(policy)
    found = active_step(data.active, data.log_probs, at(data, step=False))
    assert set(found.tolist()) == {0, 2}
    with pytest.raises(ConfigError, match="noisy kernel"):
        active_step(torch.zeros(40, 4, dtype=torch.bool), data.log_probs, at(data))
    everything = active_step(None, data.log_probs, at(data, step=False))
    assert set(everything.tolist()) == {0, 1, 2, 3}


def test_weights_of_zero_add_nothing_and_others_in_order() -> None:
    policy: Any = Cloner(2, learned_noise=True)
    assert configured(policy, CONFIG, None) == ()
    config = dataclasses.replace(CONFIG, kl_coef=0.1, bc_coef=0.2, demo_coef=0.3, entropy_coef=0.4)
    terms = configured(policy, config, Demos())
    assert [(term.name, term.coef) for term in terms] == [
        ("kl_reference", 0.1), ("bc", 0.2), ("demo", 0.3), ("entropy", 0.4),
    ]  # fmt: skip
    assert isinstance(terms[2], DemonstrationLoss)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("demo_coef", "demos="),
        ("entropy_coef", "std is learned"),
        ("knn_coef", "flow policy"),
        ("kl_coef", "begin_finetuning"),
        ("bc_coef", "begin_finetuning"),
    ],
)
def test_what_the_policy_can_not_give_is_refused(name: str, expected: str) -> None:
    policy: Any = FakePolicy(2)
    policy.frozen_net = None
    with pytest.raises(ConfigError, match=expected):
        configured(policy, dataclasses.replace(CONFIG, **{name: 0.1}), None)


def test_demonstrations_need_a_policy_that_clones() -> None:
    with pytest.raises(ConfigError, match="FakePolicy can't clone"):
        configured(FakePolicy(2), dataclasses.replace(CONFIG, demo_coef=0.1), Demos())


def test_the_weight_counts_once_whatever_the_parts() -> None:
    """Accumulation splits the minibatch; regularisers are weighed by each part's share."""
    found = []
    for parts in (1, 3):
        config = dataclasses.replace(CONFIG, kl_coef=5.0, accumulate=parts)
        policy = FakePolicy(3)
        shifted(policy, 0.05)
        algo, collector = make(policy, config)
        generator = torch.Generator().manual_seed(0)
        metrics = algo.update(collector.collect(10, generator), generator=generator)
        found.append((metrics.regularisers["kl_reference"], torch.cat([p.flatten() for p in policy.net.parameters()])))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-4)
    torch.testing.assert_close(found[0][1], found[1][1], atol=2e-6, rtol=0)
