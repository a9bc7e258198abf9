"""PPO on the policies that draw a chunk at once: the policy-gradient family with a chain of one step."""

from __future__ import annotations

import pytest
import torch

from robopo.algos.dppo import Clip, PerStep
from robopo.algos.flow_dppo import DivergenceMask
from robopo.algos.gae_advantage import GAE
from robopo.algos.grpo_guard import NormalizedRatio
from robopo.algos.policy_gradient import PolicyGradient
from robopo.algos.policy_gradient_config import PolicyGradientConfig
from robopo.critics.value import ValueNet
from robopo.errors import ConfigError
from robopo.nn.activation import Activation
from robopo.nn.gaussian_mlp import GaussianMLPConfig
from robopo.policies.config import Reduce
from robopo.policies.one_step import OneStepConfig, OneStepPolicy
from robopo.types import RolloutBatch
from tests.unit.policies.toy_one_step import SPEC, gaussian, gmm, make_obs, rng

WIDE = GaussianMLPConfig(
    hidden=(32, 32), residual=False, activation=Activation.TANH, output_gain=0.01, initial_std=0.5, max_std=1.0
)
CONFIG = PolicyGradientConfig(
    actor_lr=1e-2, critic_lr=1e-2, epochs=3, batch_size=128, critic_warmup_iterations=0, scale_rewards=False
)


def bandit(policy: OneStepPolicy, seed: int) -> RolloutBatch:
    """Episodes of one decision; the nearer the executed rows are to .5 and -.5, the better."""
    T, E = 8, 64
    obs = make_obs(T * E, seed)
    _, chain = policy.sample_chain(obs, generator=rng(seed))
    error = chain.latents[:, 1, : SPEC.action_steps] - torch.tensor([0.5, -0.5])
    reward = -error.square().mean((1, 2))
    done = torch.ones(T, E, dtype=torch.bool)
    split = {key: value.unflatten(0, (T, E)) for key, value in obs.items()}
    return RolloutBatch(
        obs=split,
        next_obs=split,
        latents=chain.latents.unflatten(0, (T, E)),
        log_probs=chain.log_probs.unflatten(0, (T, E)),
        reward=reward.view(T, E),
        terminated=done,
        truncated=~done,
        first=done,
        means=None if chain.means is None else chain.means.unflatten(0, (T, E)),
        stds=None if chain.stds is None else chain.stds.unflatten(0, (T, E)),
    )


def ppo(policy: OneStepPolicy, trust_region=None, *, divergence: bool = False, **changes) -> PolicyGradient:
    return PolicyGradient(
        policy,
        ValueNet(SPEC.obs, SPEC.obs_steps, (16, 16, 16), policy.normalizer),
        CONFIG if not changes else PolicyGradientConfig(**changes),
        ratio=PerStep(gamma_denoise=1.0, divergence=divergence),
        advantage=GAE(),
        trust_region=trust_region or Clip(base=0.2, coef=0.2),
    )


@pytest.mark.parametrize("make", [gaussian, gmm])
def test_it_learns_a_bandit(make) -> None:
    policy = make(OneStepConfig(ft_steps=1, reduce=Reduce.SUM), WIDE)
    algorithm = ppo(policy)
    first = algorithm.update(bandit(policy, 0), generator=rng())
    for seed in range(1, 10):
        last = algorithm.update(bandit(policy, seed), generator=rng(seed))
    # At first the mean is near 0 and the std .5: -.25 - .25. A perfect mean with that std would have -.25.
    assert first.return_mean == pytest.approx(-0.5, abs=0.05)
    assert last.return_mean > -0.2
    assert policy.net.std().max() < 0.5  # noise costs here
    assert 0.0 < last.clip_frac < 0.8


@pytest.mark.parametrize("reduce", list(Reduce))
def test_the_exact_kl_and_the_divergence_mask_work_on_one_gaussian_step(reduce) -> None:
    policy = gaussian(OneStepConfig(ft_steps=1, reduce=reduce), WIDE)
    for algorithm in (ppo(policy, divergence=True), ppo(policy, DivergenceMask())):
        metrics = algorithm.update(bandit(policy, 3), generator=rng())
        assert metrics.chain_kl is not None
        assert 0.0 < metrics.chain_kl < 10.0
        assert len(metrics.kl_per_step) == 1


def test_a_bonus_on_the_entropy_widens_the_learned_std() -> None:
    """The reward asks for less noise; a large weight of the entropy asks for more, and wins."""
    stds: list[float] = []
    for coef in (0.0, 1.0):
        policy = gaussian(OneStepConfig(ft_steps=1, reduce=Reduce.SUM), WIDE)
        assert policy.learns_std
        algorithm = ppo(policy, actor_lr=1e-2, batch_size=128, critic_warmup_iterations=0, entropy_coef=coef)
        for seed in range(3):
            algorithm.update(bandit(policy, seed), generator=rng(seed))
        stds.append(policy.net.std().mean().item())
    assert stds[0] < 0.5 < stds[1]


def test_a_mixture_has_no_closed_entropy() -> None:
    assert gmm().learns_std
    with pytest.raises(ConfigError, match=r"entropy_coef > 0 needs Gaussian steps .* GMMPolicy"):
        ppo(gmm(), critic_warmup_iterations=0, batch_size=256, entropy_coef=0.1)


def test_a_ratio_of_means_alone_would_leave_the_learned_std_where_it_is() -> None:
    with pytest.raises(ConfigError, match="NormalizedRatio with a GaussianPolicy whose std is learned"):
        NormalizedRatio(step_weight=False).check(gaussian())


def test_a_mixture_has_no_exact_kl() -> None:
    with pytest.raises(ConfigError, match="Gaussian"):
        ppo(gmm(), DivergenceMask())


def test_the_bc_term_and_the_kl_to_the_cloned_policy_are_available() -> None:
    for policy, terms in ((gaussian(), {"kl_coef": 0.1, "bc_coef": 0.1}), (gmm(), {"bc_coef": 0.1})):
        algorithm = ppo(policy, critic_warmup_iterations=0, batch_size=256, **terms)
        metrics = algorithm.update(bandit(policy, 3), generator=rng())
        assert len(metrics.regularisers) == len(terms)
