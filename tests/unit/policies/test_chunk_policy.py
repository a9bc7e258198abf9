"""Chains, their likelihood, and which network runs at which step."""

from __future__ import annotations

import dataclasses
import hashlib

import pytest
import torch
from torch import Tensor, nn

from robopo.errors import ConfigError, ShapeError
from robopo.policies.base import PolicySpec
from robopo.policies.chunk_policy import ChunkPolicy
from robopo.policies.config import ChunkPolicyConfig, Reduce
from robopo.processes.kernels import step_mean

from .toy import DDIM_5, DDPM_20, MLP, SPEC, UNET, make_obs, make_policy, rng

FREE = ChunkPolicyConfig(randn_clip=100.0, denoised_clip=None)


def perturb(module: nn.Module, scale: float = 0.05) -> None:
    with torch.no_grad():
        for p in module.parameters():
            p.add_(scale * torch.randn_like(p))


def count_calls(policy: ChunkPolicy) -> dict[str, int]:
    """Count steps of both networks, by either way of asking them."""
    calls = {"net": 0, "frozen_net": 0}
    for name in calls:
        net = getattr(policy, name)

        def counted(function, name=name):
            def call(*args, **kwargs):
                calls[name] += 1
                return function(*args, **kwargs)

            return call

        net.forward, net.chain_step = counted(net.forward), counted(net.chain_step)
    return calls


@pytest.mark.parametrize("net", [MLP, UNET])
@pytest.mark.parametrize(("process", "ft_steps"), [(DDIM_5, 2), (DDIM_5, 5), (DDPM_20, 10), (DDPM_20, 1)])
def test_a_fresh_chain_replays_bit_for_bit(net, process, ft_steps):
    policy = make_policy(net, process)
    policy.begin_finetuning(ft_steps)
    perturb(policy.net)
    chunk, chain = policy.sample_chain(make_obs(), generator=rng())
    assert chain.latents.shape == (5, ft_steps + 1, 4, 2)
    assert chain.log_probs.shape == (5, ft_steps)
    assert torch.equal(policy.normalizer.invert("action", chain.latents[:, -1]), chunk)
    again = policy.replay(make_obs(), chain.latents)
    assert torch.equal(again, chain.log_probs)
    assert again.requires_grad
    assert not chain.log_probs.requires_grad


@pytest.mark.parametrize("process", [DDIM_5, DDPM_20])
def test_mixed_pairs_score_as_the_chain(process):
    policy = make_policy(process=process)
    policy.begin_finetuning(4)
    perturb(policy.net)
    obs = make_obs()
    _, chain = policy.sample_chain(obs, generator=rng())
    pair = torch.randperm(20, generator=rng())
    decision, i = pair // 4, pair % 4
    scores = policy.step_log_prob(
        {key: value[decision] for key, value in obs.items()},
        chain.latents[decision, i],
        chain.latents[decision, i + 1],
        i,
    )
    torch.testing.assert_close(scores, chain.log_probs[decision, i], rtol=1e-4, atol=1e-5)


def test_whole_chain_starts_from_the_noise():
    policy = make_policy()
    policy.begin_finetuning(5)
    _, chain = policy.sample_chain(make_obs(), generator=rng())
    assert torch.equal(chain.latents[:, 0], torch.randn(5, 4, 2, generator=rng()))


def test_the_network_of_each_step():
    policy = make_policy()
    policy.begin_finetuning(2)
    calls = count_calls(policy)
    policy.sample_chain(make_obs(), generator=rng())
    assert calls == {"net": 2, "frozen_net": 3}
    policy.act(make_obs(), generator=rng())
    assert calls == {"net": 4, "frozen_net": 6}


@pytest.mark.parametrize(("ft_steps", "expected"), [(5, {"net": 5, "frozen_net": 0}), (0, {"net": 0, "frozen_net": 5})])
def test_all_or_none_fine_tuned(ft_steps, expected):
    policy = make_policy()
    base = policy.act(make_obs(), generator=rng())
    policy.begin_finetuning(ft_steps)
    calls = count_calls(policy)
    torch.testing.assert_close(policy.act(make_obs(), generator=rng()), base, rtol=1e-5, atol=1e-6)
    assert calls == expected


def test_nothing_fine_tuned_means_the_base_policy():
    policy = make_policy()
    policy.begin_finetuning(0)
    before = policy.act(make_obs(), generator=rng())
    perturb(policy.net, 1.0)
    assert torch.equal(policy.act(make_obs(), generator=rng()), before)
    chunk, chain = policy.sample_chain(make_obs(), generator=rng())
    assert chain.latents.shape == (5, 1, 4, 2)
    assert chain.log_probs.shape == policy.replay(make_obs(), chain.latents).shape == (5, 0)
    assert torch.equal(policy.normalizer.invert("action", chain.latents[:, -1]), chunk)


def test_before_fine_tuning_the_net_does_all_and_nothing_is_scored():
    policy = make_policy()
    _, chain = policy.sample_chain(make_obs(), generator=rng())
    assert chain.log_probs.shape == (5, 0)
    assert policy.ft_steps == 0
    assert policy.frozen_net is None


def digest(module: nn.Module) -> str:
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in module.state_dict().values())).hexdigest()


def test_only_the_trained_copy_learns():
    policy = make_policy()
    policy.begin_finetuning(2)
    before = digest(policy.frozen_net)
    _, chain = policy.sample_chain(make_obs(), generator=rng())
    optimiser = torch.optim.Adam([p for p in policy.parameters() if p.requires_grad], 0.1)
    policy.replay(make_obs(), chain.latents).sum().backward()
    optimiser.step()
    assert digest(policy.frozen_net) == before
    assert all(p.grad is None for p in policy.frozen_net.parameters())
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in policy.net.parameters())
    assert policy.train().frozen_net.training is False


def test_frozen_weights_change_the_early_steps_only():
    policy = make_policy()
    policy.begin_finetuning(2)
    obs = make_obs()
    _, chain = policy.sample_chain(obs, generator=rng())
    scores = policy.replay(obs, chain.latents)
    perturb(policy.frozen_net)
    assert torch.equal(policy.replay(obs, chain.latents), scores)
    _, other = policy.sample_chain(obs, generator=rng())
    assert not torch.allclose(other.latents[:, 0], chain.latents[:, 0])


@pytest.mark.parametrize("reduce", list(Reduce))
def test_log_prob_is_that_of_torch_over_executed_rows(reduce):
    policy = make_policy(config=ChunkPolicyConfig(reduce=reduce))
    policy.begin_finetuning(3)
    obs = make_obs()
    _, chain = policy.sample_chain(obs, generator=rng())
    cond = policy.encode(obs)
    for i in range(3):
        k = 2 + i
        x = chain.latents[:, i]
        out = policy.net(x, policy.process.timesteps[k].expand(5), cond)
        mean = step_mean(x, out, policy.process.train_steps.at(k), 1.0)
        std = policy.process.train_steps.at(k).std.clamp(min=0.1)
        each = torch.distributions.Normal(mean, std.expand_as(mean)).log_prob(chain.latents[:, i + 1])[:, :3]
        expected = each.flatten(1).mean(1) if reduce is Reduce.MEAN else each.flatten(1).sum(1)
        torch.testing.assert_close(chain.log_probs[:, i], expected.detach(), rtol=1e-5, atol=1e-5)


def test_mean_and_sum_are_one_joint_density():
    """With every row executed, D times the mean is the joint log-density of the step."""
    spec = PolicySpec(obs=SPEC.obs, action_dim=2, action_names=("x", "y"), obs_steps=2, horizon=4, action_steps=4)
    mean, total = (make_policy(config=ChunkPolicyConfig(reduce=r), spec=spec) for r in (Reduce.MEAN, Reduce.SUM))
    for policy in (mean, total):
        policy.begin_finetuning(5)
    _, chain = mean.sample_chain(make_obs(), generator=rng())
    torch.testing.assert_close(
        8 * chain.log_probs, total.replay(make_obs(), chain.latents).detach(), rtol=1e-5, atol=1e-4
    )


def test_score_gradient_is_that_of_finite_differences():
    policy = make_policy(process=DDPM_20).double()
    policy.begin_finetuning(3)
    obs = {key: value.double() for key, value in make_obs().items()}
    _, chain = policy.sample_chain(obs, generator=rng())
    weight = policy.net.body.output.bias
    policy.replay(obs, chain.latents).sum().backward()
    with torch.no_grad():
        weight[0] += 1e-6
        above = policy.replay(obs, chain.latents).sum()
        weight[0] -= 2e-6
        below = policy.replay(obs, chain.latents).sum()
    assert weight.grad[0].item() == pytest.approx(float(above - below) / 2e-6, rel=1e-5)


def test_one_floor_for_sampling_and_scoring():
    """z = (x_out - mean) / std of the samples is standard normal at the scoring std."""
    policy = make_policy(config=FREE)
    policy.begin_finetuning(5)
    obs = {key: value.expand(4000, -1, -1) for key, value in make_obs(1).items()}
    _, chain = policy.sample_chain(obs, generator=rng())
    std = policy.process.train_steps.columns[4].clamp(min=0.1)
    z2 = -2.0 * (chain.log_probs + std.log() + 0.9189385332)  # mean of z^2 over 6 numbers
    torch.testing.assert_close(z2.mean(0), torch.ones(5), rtol=0, atol=4.0 * (2.0 / 24_000) ** 0.5)


def test_published_scoring_clamps_elements():
    config = ChunkPolicyConfig(sampling_std_floor=0.04, logprob_std_floor=0.01, compat_published=True)
    policy = make_policy(config=config)
    policy.begin_finetuning(1)
    obs = make_obs()
    _, chain = policy.sample_chain(obs, generator=rng())
    exact = policy.replay(obs, torch.stack([chain.latents[:, 0], chain.latents[:, 1]], 1))
    assert torch.equal(exact, chain.log_probs)
    assert chain.log_probs.min() >= -5.0
    assert chain.log_probs.max() <= 2.0
    far = chain.latents.clone()
    far[:, 1] += 10.0
    assert torch.equal(policy.replay(obs, far), torch.full((5, 1), -5.0))


def test_final_clip_is_stored_and_scored():
    policy = make_policy(config=ChunkPolicyConfig(final_action_clip=0.05))
    policy.begin_finetuning(2)
    _, chain = policy.sample_chain(make_obs(), generator=rng())
    assert chain.latents[:, -1].abs().max() <= 0.05
    assert torch.equal(policy.replay(make_obs(), chain.latents), chain.log_probs)


def test_acting():
    policy = make_policy()
    policy.begin_finetuning(2)
    obs, noise = make_obs(), torch.randn(5, 4, 2)
    once = policy.act(obs, noise=noise)
    assert torch.equal(once, policy.act(obs, noise=noise))
    assert torch.equal(policy.act(obs, generator=rng(3)), policy.act(obs, noise=torch.randn(5, 4, 2, generator=rng(3))))
    exploring = [policy.act(obs, deterministic=False, noise=noise, generator=rng(s)) for s in (1, 1, 2)]
    assert torch.equal(exploring[0], exploring[1])
    assert not torch.equal(exploring[0], exploring[2])
    chunk, _ = policy.sample_chain(obs, generator=rng(1))
    torch.testing.assert_close(policy.act(obs, deterministic=False, generator=rng(1)), chunk, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("net", [MLP, UNET])
def test_acting_in_inference_mode_does_not_spoil_later_gradients(net):
    policy = make_policy(net)
    policy.begin_finetuning(2)
    with torch.inference_mode():
        policy.act(make_obs(), generator=rng())
        _, chain = policy.sample_chain(make_obs(), generator=rng())
    policy.replay(make_obs(), chain.latents.clone()).sum().backward()
    policy.act(make_obs(), generator=rng())
    policy.bc_loss(make_obs(), torch.zeros(5, 4, 2), rng()).backward()
    assert not policy.act(make_obs(), generator=rng()).requires_grad


def test_encoding_is_sorted_normalised_and_flat_in_time():
    policy = make_policy()
    obs = make_obs()
    cond = policy.encode(obs)
    assert cond.shape == (5, 10)
    rows = [policy.normalizer.apply(key, obs[key]) for key in ("environment_state", "state")]
    torch.testing.assert_close(cond[:, 5:], torch.cat(rows, -1)[:, 1])
    clipped = make_policy(config=ChunkPolicyConfig(obs_clip=0.1)).encode(obs)
    assert torch.equal(clipped, cond.clamp(-0.1, 0.1))


def test_bc_loss_of_a_known_network():
    """A network that returns 0 leaves the mean square of the noise; padding drops out."""
    policy = make_policy()
    nn.init.zeros_(policy.net.body.output.weight)
    nn.init.zeros_(policy.net.body.output.bias)
    action = torch.zeros(5, 4, 2)
    generator = rng()
    torch.randint(20, (5,), generator=generator)
    noise = torch.randn(5, 4, 2, generator=generator)
    assert torch.equal(policy.bc_loss(make_obs(), action, rng()).detach(), noise.square().mean())
    mask = torch.zeros(5, 4, dtype=torch.bool)
    mask[:, 2:] = True
    got = policy.bc_loss(make_obs(), action, rng(), mask)
    torch.testing.assert_close(got.detach(), noise[:, :2].square().mean())


def test_wrong_observations_are_named():
    policy, obs = make_policy(), make_obs()
    with pytest.raises(ShapeError, match="'state' is missing; did you mean 'stat'"):
        policy.act({"environment_state": obs["environment_state"], "stat": obs["state"]})
    with pytest.raises(ShapeError, match=r"'state' is \[5, 1, 3\], expected \[B, 2, 3\]"):
        policy.act({**obs, "state": obs["state"][:, :1]})
    with pytest.raises(ShapeError, match=r"expected .B, 1, H, A"):
        policy.replay(obs, torch.zeros(5, 3, 4, 2))


def test_more_fine_tuned_steps_than_the_sampler_has():
    with pytest.raises(ConfigError, match=r"ft_steps=6.*5 steps"):
        make_policy().begin_finetuning(6)
    with pytest.raises(ConfigError, match=r"ft_steps=6.*5 steps"):
        make_policy(config=ChunkPolicyConfig(ft_steps=6))


def test_fine_tuning_begins_once():
    policy = make_policy(config=ChunkPolicyConfig(ft_steps=2))
    frozen = policy.frozen_net
    policy.begin_finetuning(2)
    assert policy.frozen_net is frozen
    assert policy.config.ft_steps == 2
    with pytest.raises(ConfigError, match="already fine-tuned on its last 2"):
        policy.begin_finetuning(3)


def test_parts_that_do_not_fit_are_refused():
    policy = make_policy()
    wide = dataclasses.replace(SPEC, horizon=8)
    with pytest.raises(ConfigError, match=r"\(4, 2, 10\).*\(8, 2, 10\)"):
        ChunkPolicy(wide, policy.net, policy.process, policy.normalizer)
    with pytest.raises(ConfigError, match="'goal'"):
        make = PolicySpec(obs={"goal": 5}, action_dim=2, action_names=("x", "y"))
        ChunkPolicy(make, policy.net, policy.process, policy.normalizer)


def test_any_network_may_denoise():
    class Zero(nn.Module):
        def forward(self, x: Tensor, t: Tensor, cond: Tensor) -> Tensor:
            return torch.zeros_like(x)

    policy = make_policy()
    other = ChunkPolicy(SPEC, Zero(), policy.process, policy.normalizer)
    assert other.act(make_obs()).shape == (5, 4, 2)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"sampling_std_floor": 0.04}, "sampling_std_floor=0.04, logprob_std_floor=0.1.*compat_published"),
        ({"sampling_std_floor": 0.0, "logprob_std_floor": 0.0}, "must be positive"),
        ({"ft_steps": -1}, "ft_steps=-1"),
        ({"randn_clip": 0.0}, "randn_clip=0"),
        ({"denoised_clip": -1.0}, "denoised_clip=-1"),
    ],
)
def test_bad_configurations_are_refused(bad, message):
    with pytest.raises(ConfigError, match=message):
        ChunkPolicyConfig(**bad)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"obs": {}}, "obs="),
        ({"action_names": ("x",)}, "action_dim=2 with 1"),
        ({"action_steps": 5}, "action_steps=5.*horizon=4"),
        ({"obs_steps": 0}, "obs_steps=0"),
        ({"control_hz": 0.0}, "control_hz=0"),
    ],
)
def test_bad_specs_are_refused(bad, message):
    with pytest.raises(ConfigError, match=message):
        PolicySpec(**{"obs": {"a": 1}, "action_dim": 2, "action_names": ("x", "y"), **bad})
