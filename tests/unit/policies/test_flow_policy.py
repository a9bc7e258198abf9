"""Flow policies: sampling and scoring under every kernel, learned noise, shortcuts, and the folder on disk."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from robopo.errors import ConfigError
from robopo.nn.dit import DiTConfig
from robopo.nn.noise_net import NoiseNet
from robopo.policies.build import with_num_steps
from robopo.policies.config import ChunkPolicyConfig, Reduce
from robopo.policies.io import load_policy, save_policy
from robopo.processes.exploration import Exploration, Placement
from robopo.processes.flow import FlowConfig, TimeSampling
from robopo.processes.transitions import CPS, ODE, DanceSDE, DDIMNoise, FlowSDE, LastStep, LearnedNoise
from tests.unit.policies.toy import DDIM_5, MLP, UNET, make_obs, make_policy, rng

FREE = ChunkPolicyConfig(denoised_clip=None, reduce=Reduce.SUM)
NOISY = FlowSDE(0.3, LastStep.NOISY)
DIT = DiTConfig(width=32, depth=1, heads=2, time_dim=16)


def make_flow(kernel=None, placement=Placement.ALL, window=(0, 0), *, K=4, ft=None, net=MLP, config=FREE, **flow):
    policy = make_policy(net, FlowConfig(num_steps=K, **flow), config)
    if kernel is not None:
        policy.begin_finetuning(K if ft is None else ft, Exploration(kernel, placement, window))
    return policy


def perturb(module: torch.nn.Module) -> None:
    with torch.no_grad():
        for n, parameter in enumerate(module.parameters()):
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(n)))


KERNELS = [
    (NOISY, Placement.ALL),
    (NOISY, Placement.LAST_ODE),
    (NOISY, Placement.ONE_RANDOM),
    (NOISY, Placement.WINDOW),
    (DanceSDE(0.2), Placement.ALL),
    (CPS(0.5), Placement.ALL),
    (LearnedNoise(), Placement.ALL),
    (LearnedNoise(), Placement.ONE_RANDOM),
    (ODE(), Placement.ALL),
    (ODE(0.05), Placement.ALL),
]


@pytest.mark.parametrize("ft", [2, 4])
@pytest.mark.parametrize(("kernel", "placement"), KERNELS)
def test_replay_repeats_the_stored_likelihoods(kernel, placement, ft):
    """Single precision and bit for bit; inactive steps score 0 and are marked."""
    policy = make_flow(kernel, placement, (0, 1), ft=ft)
    _, chain = policy.sample_chain(make_obs(), generator=rng())
    assert chain.latents.shape == (5, ft + 1, 4, 2)
    assert chain.means.shape == (5, ft, 4, 2)
    assert chain.stds.shape[:2] == (5, ft)
    active = torch.ones(5, ft, dtype=torch.bool) if chain.active is None else chain.active
    again = policy.replay(make_obs(), chain.latents)
    assert torch.equal(torch.where(active, again, 0.0), chain.log_probs)
    assert chain.log_probs.isfinite().all()
    # Every active step really was drawn from its stored Gaussian, every inactive one is its mean.
    z = (chain.latents[:, 1:] - chain.means) / chain.stds
    assert z[active].abs().max() <= 3.0 + 1e-4 if active.any() else True
    moved = (chain.latents[:, 1:] - chain.means).abs().amax((-1, -2))
    assert torch.equal(moved > 0, active)


def test_replay_in_double_precision_and_other_batch_layout():
    """log r = 0 within 1e-10 however the pairs are batched."""
    policy = make_flow(NOISY).double()
    obs = {key: value.double() for key, value in make_obs().items()}
    _, chain = policy.sample_chain(obs, generator=rng())
    decision, i = torch.tensor([3, 0, 4, 0]), torch.tensor([0, 2, 3, 1])
    rows = {key: value[decision] for key, value in obs.items()}
    scores = policy.step_log_prob(rows, chain.latents[decision, i], chain.latents[decision, i + 1], i)
    torch.testing.assert_close(scores, chain.log_probs[decision, i], rtol=0, atol=1e-10)
    mean, std = policy.step_moments(rows, chain.latents[decision, i], i)
    torch.testing.assert_close(mean, chain.means[decision, i], rtol=0, atol=1e-10)
    torch.testing.assert_close(std, chain.stds[decision, i], rtol=0, atol=1e-10)


def test_a_time_grid_that_is_off_by_one_point_is_noticed():
    """The published ReinFlow samples on k/(K-1) and scores on k/K: with that, the first ratio can't be 1."""
    policy = make_flow(NOISY)
    _, chain = policy.sample_chain(make_obs(), generator=rng())
    policy.process.timesteps.copy_(100.0 * (1.0 - torch.linspace(0, 1, 4)))
    assert (policy.replay(make_obs(), chain.latents) - chain.log_probs).abs().max() > 1e-3


def test_moments_come_from_the_network_output():
    policy = make_flow(LearnedNoise())
    obs, i = make_obs(), torch.tensor([0, 1, 2, 3, 1])
    x = torch.randn(5, 4, 2, generator=rng())
    out = policy.net_output(obs, x, i)
    for got, expected in zip(policy.moments(obs, x, out, i), policy.step_moments(obs, x, i), strict=True):
        assert torch.equal(got, expected)


def test_one_random_active_step_per_chunk():
    policy = make_flow(NOISY, Placement.ONE_RANDOM)
    _, chain = policy.sample_chain(make_obs(64), generator=rng())
    assert chain.active.sum(1).eq(1).all()
    assert chain.active.any(0).all()


def test_deterministic_acting_is_euler_and_knows_no_noise():
    obs, x = make_obs(), torch.randn(5, 4, 2, generator=rng())
    plain, learned = make_flow(), make_flow(LearnedNoise())
    expected = plain.act(obs, noise=x)
    perturb(learned.noise_net)
    torch.testing.assert_close(learned.act(obs, noise=x), expected)
    by_hand = x
    for k in range(4):
        t = torch.full((5,), 1.0 - k / 4)
        by_hand = by_hand - 0.25 * plain.velocity(obs, by_hand, t)
    torch.testing.assert_close(plain.normalizer.apply("action", expected), by_hand, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(plain.sample_differentiable(obs, noise=x), by_hand, rtol=1e-4, atol=1e-5)


def test_gradient_through_every_step_of_sampling():
    policy = make_flow()
    policy.sample_differentiable(make_obs(), generator=rng()).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in policy.net.parameters())


def test_steps_chosen_at_run_time():
    policy = make_flow()
    more = with_num_steps(policy, 16)
    assert (policy.process.num_steps, more.process.num_steps) == (4, 16)
    assert more.net is policy.net
    assert with_num_steps(policy, 4) is policy
    policy.begin_finetuning(4, Exploration(NOISY))
    with pytest.raises(ConfigError, match="fine-tuned with 4 sampler steps"):
        with_num_steps(policy, 8)


def test_flow_matching_loss_by_hand():
    """E || v(x_t, t, s) - (e - a) ||^2 with x_t = (1 - t) a + t e."""
    policy, obs = make_flow(), make_obs(3)
    action = torch.randn(3, 4, 2, generator=rng())
    generator, again = rng(9), rng(9)
    loss = policy.bc_loss(obs, action, generator)
    clean = policy.normalizer.apply("action", action)
    t = torch.rand(3, generator=again)
    noise = torch.randn(clean.shape, generator=again)
    x = (1 - t)[:, None, None] * clean + t[:, None, None] * noise
    error = (policy.velocity(obs, x, t) - (noise - clean)).square()
    torch.testing.assert_close(loss, error.mean(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("net", [MLP, UNET, DIT])
def test_cloning_learns_a_one_dimensional_flow(net):
    """Constant actions: after a few hundred steps the ODE lands on them from any noise."""
    policy = make_flow(net=net, K=4)
    target = torch.full((64, 4, 2), 0.15)
    optimizer = torch.optim.Adam(policy.net.parameters(), lr=3e-3)
    generator, obs = rng(), make_obs(64)
    first = policy.bc_loss(obs, target, generator).item()
    for _ in range(200):
        optimizer.zero_grad()
        loss = policy.bc_loss(obs, target, generator)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.5 * first
    normalised = policy.normalizer.apply("action", policy.act(obs, generator=rng(5)))
    assert (normalised - policy.normalizer.apply("action", target)).abs().mean() < 0.35


def test_shortcut_model_learns_to_do_one_step():
    """Two actions, +-1 in normalised units: one Euler step of a plain flow gives their mean, a shortcut one of them."""
    torch.manual_seed(0)
    results = {}
    for shortcut in (False, True):
        policy = make_flow(K=4, shortcut=shortcut, shortcut_levels=3)
        low, high = policy.normalizer.bounds("action")
        sign = torch.where(torch.arange(256) % 2 == 0, 1.0, 0.0)[:, None, None]
        action = (low + (high - low) * sign).expand(256, 4, 2).contiguous()
        optimizer = torch.optim.Adam(policy.net.parameters(), lr=3e-3)
        generator, obs = rng(), {key: torch.zeros(256, 2, size) for key, size in policy.spec.obs.items()}
        for _ in range(600):
            optimizer.zero_grad()
            policy.bc_loss(obs, action, generator).backward()
            optimizer.step()
        one = with_num_steps(policy, 1)
        results[shortcut] = one.normalizer.apply("action", one.act(obs, generator=rng(3))).abs().mean().item()
    assert results[False] < 0.3  # the mean of the modes
    assert results[True] > 0.6  # the modes
    assert policy.net.cond_dim == policy.spec.cond_dim + 1


@pytest.mark.parametrize("flow", [{}, {"shortcut": True}, {"time_sampling": TimeSampling.BETA}])
def test_folder_round_trip(tmp_path, flow):
    policy = make_flow(LearnedNoise(), **flow)
    perturb(policy.net)
    save_policy(tmp_path / "policy", policy, {})
    loaded = load_policy(tmp_path / "policy")
    assert loaded.noise_net is None  # acting needs none
    assert loaded.process.config == policy.process.config
    assert torch.equal(loaded.act(make_obs(), generator=rng()), policy.act(make_obs(), generator=rng()))
    loaded.begin_finetuning(4, Exploration(LearnedNoise()))  # as a resumed run does
    assert loaded.frozen_net is not None
    assert not torch.equal(next(loaded.frozen_net.parameters()), next(loaded.net.parameters()))


def test_noise_network_stays_between_its_bounds():
    """Extreme logits reach the bounds, none passes them."""
    net = NoiseNet(3, 4, 2, low=0.05, high=0.2)
    cond, t = torch.randn(7, 3), torch.rand(7)
    torch.testing.assert_close(net(cond, t), torch.full((7, 4, 2), math.sqrt(0.05 * 0.2)))
    for logit in (1e3, -1e3):
        torch.nn.init.constant_(net.body[-1].bias, logit)
        std = net(cond, t)
        torch.testing.assert_close(std, torch.full_like(std, 0.2 if logit > 0 else 0.05))
    net.set_upper_bound(0.1)
    torch.nn.init.constant_(net.body[-1].bias, 1e3)
    assert net(cond, t).max().item() == pytest.approx(0.1)


def test_learned_noise_likelihood_is_the_product_of_densities():
    """chain log-prob = sum of step densities; gradients reach velocity and noise networks."""
    policy = make_flow(LearnedNoise())
    perturb(policy.noise_net)
    _, chain = policy.sample_chain(make_obs(), generator=rng())
    rows = policy.spec.action_steps
    density = torch.distributions.Normal(chain.means[:, :, :rows], chain.stds[:, :, :rows])
    expected = density.log_prob(chain.latents[:, 1:, :rows]).sum((-1, -2))
    torch.testing.assert_close(chain.log_probs, expected, rtol=1e-5, atol=1e-4)
    assert chain.stds.std() > 0
    policy.replay(make_obs(), chain.latents).sum().backward()
    for net in (policy.net, policy.noise_net):
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in net.parameters())
    assert len(policy.trainable()) == len(list(policy.net.parameters())) + len(list(policy.noise_net.parameters()))
    policy.end_iteration(10)  # no schedule: nothing moves
    assert policy.noise_net.bounds[1].item() == pytest.approx(2 * math.log(0.15))


def test_frozen_steps_are_left_to_the_frozen_network_without_noise():
    policy = make_flow(LearnedNoise(), ft=2)
    perturb(policy.net)
    _, chain = policy.sample_chain(make_obs(), generator=rng())
    untouched = copy.deepcopy(policy)
    perturb(untouched.net)
    _, other = untouched.sample_chain(make_obs(), generator=rng())
    assert torch.equal(chain.latents[:, 0], other.latents[:, 0])
    assert not torch.equal(chain.latents[:, 1], other.latents[:, 1])


def test_combinations_that_do_not_exist():
    with pytest.raises(ConfigError, match="FlowSDE needs a flow policy, this one is a diffusion"):
        make_policy(MLP, DDIM_5).begin_finetuning(5, Exploration(FlowSDE()))
    with pytest.raises(ConfigError, match="DDIMNoise needs a diffusion policy, this one is a flow"):
        make_flow(DDIMNoise())
    with pytest.raises(ConfigError, match="a ddim policy has no velocity: use a flow policy"):
        make_policy(MLP, DDIM_5).velocity(make_obs(), torch.zeros(5, 4, 2), torch.zeros(5))


def test_diffusion_policies_may_explore_with_other_kernels():
    policy = make_policy(MLP, DDIM_5)
    policy.begin_finetuning(5, Exploration(DDIMNoise()))
    reference = make_policy(MLP, DDIM_5)
    reference.begin_finetuning(5)
    for kernel in (CPS(0.5), LearnedNoise(), DDIMNoise()):
        policy.begin_finetuning(5, Exploration(kernel))
        chunk, chain = policy.sample_chain(make_obs(), generator=rng())
        assert torch.equal(policy.replay(make_obs(), chain.latents), chain.log_probs)
    torch.testing.assert_close(chunk, reference.sample_chain(make_obs(), generator=rng())[0])
