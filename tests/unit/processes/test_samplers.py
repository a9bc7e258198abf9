"""Schedules and steps against diffusers, hand-taken numbers and a linear-Gaussian oracle."""

from __future__ import annotations

import math

import pytest
import torch
from diffusers import DDIMScheduler, DDPMScheduler

from robopo.errors import ConfigError
from robopo.processes.base import DiffusionConfig, Prediction, ProcessKind, denoising_loss
from robopo.processes.build import build_process
from robopo.processes.chain import Step, run_chain
from robopo.processes.ddim import DDIM
from robopo.processes.ddpm import DDPM
from robopo.processes.kernels import cosine_alphas_cumprod, gaussian_log_prob, step_mean

PREDICTION = {Prediction.NOISE: "epsilon", Prediction.CLEAN: "sample"}


def ddim(K: int, S: int, eta: float = 1.0, prediction: Prediction = Prediction.NOISE) -> DDIM:
    return DDIM(DiffusionConfig(kind=ProcessKind.DDIM, num_train_steps=K, num_steps=S, eta=eta, prediction=prediction))


@pytest.mark.parametrize("K", [1, 20, 100])
def test_schedule_is_diffusers_cosine(K):
    theirs = DDPMScheduler(K, beta_schedule="squaredcos_cap_v2").alphas_cumprod.double()
    torch.testing.assert_close(cosine_alphas_cumprod(K), theirs, rtol=0, atol=1e-6)


def test_schedule_numbers_of_twenty_steps():
    abar = cosine_alphas_cumprod(20)
    assert abar[0].item() == pytest.approx(0.992007, abs=1e-6)
    assert abar[19].item() == pytest.approx(6.06e-6, rel=1e-3)
    sigma = DDPM(DiffusionConfig()).train_steps.columns[4].flip(0)  # by t
    expected = torch.tensor([0.0, 0.0758, 0.1232, 0.1617, 0.1952, 0.2257, 0.2546, 0.2827, 0.3107, 0.3392])
    torch.testing.assert_close(sigma[:10], expected, rtol=0, atol=6e-5)
    assert sigma[19].item() == pytest.approx(0.9965, abs=5e-5)
    sigma = ddim(100, 5).train_steps.columns[4]
    torch.testing.assert_close(sigma, torch.tensor([0.73775, 0.51397, 0.29511, 0.02506, 0.0]), rtol=0, atol=6e-6)


def in_double[S: (DDPMScheduler, DDIMScheduler)](scheduler: S) -> S:
    """diffusers' scheduler on tables that were not rounded to single precision: those cost it up to 1e-5."""
    scheduler.alphas_cumprod = cosine_alphas_cumprod(scheduler.config.num_train_timesteps)
    scheduler.one = torch.ones((), dtype=torch.float64)
    return scheduler


@pytest.mark.parametrize("prediction", list(Prediction))
@pytest.mark.parametrize(("K", "double", "tolerance"), [(20, False, 3e-6), (100, False, 2e-5), (100, True, 1e-6)])
def test_ddpm_step_is_diffusers(K, double, tolerance, prediction):
    theirs = DDPMScheduler(
        K,
        beta_schedule="squaredcos_cap_v2",
        variance_type="fixed_small",
        clip_sample=True,
        prediction_type=PREDICTION[prediction],
    )
    theirs = in_double(theirs) if double else theirs
    ours = DDPM(DiffusionConfig(num_train_steps=K, prediction=prediction))
    generator = torch.Generator().manual_seed(0)
    for k, t in enumerate(ours.timesteps.tolist()):
        x, out = torch.randn(2, 6, 4, 7, generator=generator)
        expected = theirs.step(out, t, x, generator=torch.Generator().manual_seed(t)).prev_sample
        z = torch.randn(x.shape, generator=torch.Generator().manual_seed(t)) if t > 0 else torch.zeros_like(x)
        step = ours.train_steps.at(k)
        got = step_mean(x, out, step, 1.0) + step.std * z
        torch.testing.assert_close(got, expected.float(), rtol=0, atol=tolerance)


@pytest.mark.parametrize("prediction", list(Prediction))
@pytest.mark.parametrize("eta", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(
    ("K", "S", "double", "tolerance"),
    [(100, 5, False, 3e-6), (20, 7, False, 3e-6), (20, 20, False, 1e-5), (20, 20, True, 1e-6)],
)
def test_ddim_step_is_diffusers(K, S, double, tolerance, eta, prediction):
    theirs = DDIMScheduler(
        K,
        beta_schedule="squaredcos_cap_v2",
        clip_sample=True,
        set_alpha_to_one=True,
        steps_offset=0,
        timestep_spacing="leading",
        prediction_type=PREDICTION[prediction],
    )
    theirs = in_double(theirs) if double else theirs
    theirs.set_timesteps(S)
    ours = ddim(K, S, eta, prediction)
    assert ours.timesteps.tolist() == theirs.timesteps.tolist()
    generator = torch.Generator().manual_seed(0)
    for k, t in enumerate(ours.timesteps.tolist()):
        x, out, z = torch.randn(3, 6, 4, 7, generator=generator)
        expected = theirs.step(out, t, x, eta=eta, use_clipped_model_output=True, variance_noise=z).prev_sample
        step = ours.train_steps.at(k)
        torch.testing.assert_close(
            step_mean(x, out, step, 1.0) + step.std * z, expected.float(), rtol=0, atol=tolerance
        )


def test_acting_tables():
    """DDIM acts as eta = 0 without noise; DDPM keeps at least 1e-3 but returns the last mean."""
    acting, free = ddim(100, 5, eta=1.0).evaluate_steps, ddim(100, 5, eta=0.0).train_steps
    assert torch.equal(acting.columns[:4], free.columns[:4])
    assert not acting.noisy
    ours = DDPM(DiffusionConfig())
    assert torch.equal(ours.evaluate_steps.columns[4, :-1], ours.train_steps.columns[4, :-1].clamp(min=1e-3))
    assert ours.evaluate_steps.columns[4, -1] == 0.0


@pytest.mark.parametrize("process", [DDPM(DiffusionConfig()), ddim(100, 5)])
def test_gathered_steps_equal_single_steps_bit_for_bit(process):
    x, out = torch.randn(2, 33, 4, 3)
    table = process.train_steps.with_std_floor(0.1)
    assert float(table.columns[4].min()) == pytest.approx(0.1)
    for k in range(process.num_steps):
        one, many = table.at(k), table.gather(torch.full((33,), k))
        assert torch.equal(step_mean(x, out, one, 1.0), step_mean(x, out, many, 1.0))
        assert torch.equal(one.std.expand(33, 1, 1), many.std)


def test_tables_follow_their_owner_and_stay_out_of_its_state():
    process = ddim(100, 5)
    assert process.train_steps.at(0).std.dtype == torch.float32
    process.double()
    assert process.train_steps.at(0).std.dtype == torch.float64
    assert process.state_dict() == {}


def test_training_noise_by_hand():
    process = DDPM(DiffusionConfig())
    abar = cosine_alphas_cumprod(20)
    clean, noise = torch.ones(2, 1, 1), torch.full((2, 1, 1), 2.0)
    got = process.add_noise(clean, noise, torch.tensor([0, 19])).flatten()
    expected = [math.sqrt(abar[t]) + 2.0 * math.sqrt(1.0 - abar[t]) for t in (0, 19)]
    torch.testing.assert_close(got, torch.tensor(expected))
    assert process.target(clean, noise) is noise
    assert DDPM(DiffusionConfig(prediction=Prediction.CLEAN)).target(clean, noise) is clean


def test_padding_does_not_count():
    predicted, target = torch.zeros(1, 3, 2), torch.tensor([[[1.0, 3.0], [2.0, 0.0], [9.0, 9.0]]])
    mask = torch.tensor([[False, False, True]])
    assert denoising_loss(predicted, target, mask).item() == pytest.approx((5.0 + 2.0) / 2.0)  # rows: 10/2, 4/2
    assert denoising_loss(predicted, target, ~mask).item() == pytest.approx(81.0)
    assert denoising_loss(predicted, target, torch.ones_like(mask)).item() == 0.0
    assert denoising_loss(predicted, target).item() == pytest.approx((10.0 + 4.0 + 162.0) / 6.0)


def test_log_prob_is_torch_normal():
    x, mean = torch.randn(2, 5, 4, 3)
    std = torch.rand(5, 1, 1) + 0.1
    expected = torch.distributions.Normal(mean, std.expand_as(mean)).log_prob(x)
    torch.testing.assert_close(gaussian_log_prob(x, mean, std), expected)
    assert gaussian_log_prob(mean, mean, torch.tensor(0.1)).flatten()[0].item() == pytest.approx(1.3836465598)


def test_linear_gaussian_oracle():
    """eps(x) = a x + b, no clips: mean and variance follow m <- A m + B, v <- A^2 v + s^2 exactly."""
    a, b, N = 0.3, 0.2, 100_000
    table = DDPM(DiffusionConfig()).train_steps
    mean, variance = 0.0, 1.0
    for k in range(20):
        clean_x, clean_out, mean_clean, mean_x, std = (float(v) for v in table.at(k))
        gain = mean_clean * (clean_x + clean_out * a) + mean_x
        mean = gain * mean + mean_clean * clean_out * b
        variance = gain**2 * variance + std**2
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, 1, 1, generator=generator)
    z = torch.randn(20, N, 1, 1, generator=generator)
    got = run_chain(x, predict=lambda x, k: a * x + b, table=table, clean_clip=None, noise=z).double()
    assert abs(got.mean() - mean) < 4.0 * math.sqrt(variance / N)
    assert abs(got.var() - variance) < 4.0 * variance * math.sqrt(2.0 / N)


def test_ddim_without_noise_is_a_function_of_the_start():
    table = ddim(20, 5).evaluate_steps
    x = torch.randn(3, 1, 1)
    records: list[Step] = []
    once = run_chain(x, predict=lambda x, k: 0.3 * x, table=table, clean_clip=None, noise=None, record=records.append)
    again = run_chain(x, predict=lambda x, k: 0.3 * x, table=table, clean_clip=None, noise=None)
    assert torch.equal(once, again)
    assert torch.equal(records[0].x_in, x)
    assert all(torch.equal(step.mean, step.x_out) for step in records)
    assert [step.k for step in records] == list(range(5))


def test_the_last_latent_is_clipped_only():
    def big(x: torch.Tensor, k: int) -> torch.Tensor:
        return -5.0 * torch.ones_like(x)

    records: list[Step] = []
    table = ddim(20, 5).evaluate_steps
    x = run_chain(
        torch.ones(1, 1, 1),
        predict=big,
        table=table,
        clean_clip=None,
        noise=None,
        final_clip=0.5,
        record=records.append,
    )
    assert x.item() == 0.5
    assert records[-1].mean.item() > 0.5
    assert records[0].x_out.item() > 0.5


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"num_train_steps": 0}, "num_train_steps=0"),
        ({"num_steps": 21, "kind": ProcessKind.DDIM}, "num_steps=21.*num_train_steps=20"),
        ({"num_steps": 5}, "num_steps=5 with num_train_steps=20: DDPM"),
        ({"eta": 1.5}, "eta=1.5"),
    ],
)
def test_bad_configurations_are_refused(bad, message):
    with pytest.raises(ConfigError, match=message):
        DiffusionConfig(**bad)


def test_build_follows_the_kind():
    assert isinstance(build_process(DiffusionConfig()), DDPM)
    assert isinstance(build_process(DiffusionConfig(kind=ProcessKind.DDIM, num_steps=5)), DDIM)
    with pytest.raises(ConfigError, match="kind=ddpm"):
        DDIM(DiffusionConfig())
