"""Kernels of the flow: algebra, boundaries, and what each does to Gaussian data (exact velocity)."""

from __future__ import annotations

import math

import pytest
import torch

from robopo.errors import ConfigError
from robopo.processes.base import DiffusionConfig, ProcessKind
from robopo.processes.build import build_process
from robopo.processes.chain import run_chain
from robopo.processes.exploration import Exploration, Placement, exploration_steps
from robopo.processes.flow import Flow, FlowConfig, TimeSampling
from robopo.processes.kernels import StepTable, transition_rows
from robopo.processes.transitions import (
    CPS,
    ODE,
    DanceSDE,
    DDIMNoise,
    DDPMNoise,
    FlowSDE,
    LastStep,
    LearnedNoise,
)


def flow(K: int) -> Flow:
    return Flow(FlowConfig(num_steps=K))


def parts(K: int):
    """t, t', h of the K steps."""
    time = flow(K).grid.time
    return time[:-1], time[1:], time[:-1] - time[1:]


@pytest.mark.parametrize("K", [1, 4, 7])
@pytest.mark.parametrize("eta", [0.3, 0.7])
def test_clean_and_noise_form_equals_position_and_velocity_form(K, eta):
    """mu = x (1 - g^2 h / (2 t)) - v h (1 + g^2 (1 - t) / (2 t))."""
    process = flow(K)
    t, _, h = parts(K)
    rows = FlowSDE(eta, LastStep.NOISY).coefficients(process.grid)
    table = StepTable(transition_rows(process.grid, (process.clean[0], process.clean[1]), rows)).double()
    g = rows[:, 2] / h.sqrt()
    x, v = torch.randn(2, 5, 3, 2, dtype=torch.float64)
    for k in range(K):
        c_x, c_out, m_clean, m_x, _ = table._rows[k]
        got = m_clean * (c_x * x + c_out * v) + m_x * x
        gg = g[k] ** 2
        expected = x * (1 - gg * h[k] / (2 * t[k])) - v * h[k] * (1 + gg * (1 - t[k]) / (2 * t[k]))
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


def test_noise_budgets():
    """CPS keeps c_e^2 + sd^2 = t'^2; Flow-SDE exceeds it by g^2 h^2 / t + g^4 h^2 / (4 t^2)."""
    t, after, h = parts(5)
    rows = CPS(0.7).coefficients(flow(5).grid)
    torch.testing.assert_close(rows[:, 1] ** 2 + rows[:, 2] ** 2, after**2, rtol=0, atol=1e-12)
    rows = FlowSDE(0.7, LastStep.NOISY).coefficients(flow(5).grid)
    g2 = rows[:, 2] ** 2 / h
    excess = rows[:, 1] ** 2 + rows[:, 2] ** 2 - after**2
    # e^ is weighted with t' - g^2 h / (2 t): the cross term is -t' g^2 h / t, the fresh noise g^2 h.
    torch.testing.assert_close(excess, g2 * h**2 / t + g2**2 * h**2 / (4 * t**2), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kernel", [FlowSDE(0.0), DanceSDE(0.0), CPS(0.0), ODE()])
def test_no_noise_is_euler(kernel):
    euler = flow(6).train_steps._rows
    process = flow(6)
    rows = transition_rows(process.grid, (process.clean[0], process.clean[1]), kernel.coefficients(process.grid))
    torch.testing.assert_close(rows, euler, rtol=0, atol=1e-12)
    x, v = torch.randn(2, 3, 2, 2)
    step = process.evaluate_steps.at(2)
    mean = step.mean_clean * (x + step.clean_out * v) + step.mean_x * x
    torch.testing.assert_close(mean, x - v / 6, rtol=0, atol=1e-6)


@pytest.mark.parametrize("K", [2, 4, 10])
@pytest.mark.parametrize("eta", [0.3, 0.7])
def test_boundaries_of_the_flow_sde(K, eta):
    """sd_0 = eta on any grid; the last sd is eta h / sqrt(1 - h) on a uniform one; finite everywhere."""
    rows = FlowSDE(eta, LastStep.NOISY).coefficients(flow(K).grid)
    h = 1 / K
    assert rows[0, 2].item() == pytest.approx(eta, abs=1e-12)
    assert rows[-1, 2].item() == pytest.approx(eta * h / math.sqrt(1 - h), abs=1e-12)
    assert rows.isfinite().all()
    uneven = flow(3).grid._replace(time=torch.tensor([1.0, 0.6, 0.1, 0.0], dtype=torch.float64))
    assert FlowSDE(eta).coefficients(uneven)[0, 2].item() == pytest.approx(eta, abs=1e-12)


def test_last_step_rule():
    def last(kernel, K):
        return kernel.coefficients(flow(K).grid)[-1].tolist()

    assert last(FlowSDE(0.3), 4)[2] == pytest.approx(0.0866, abs=1e-4)  # at most 0.1: noisy
    assert last(FlowSDE(0.7), 4) == [1.0, 0.0, 0.0]  # 0.202: as the ODE
    assert last(FlowSDE(0.7, LastStep.NOISY), 4)[2] == pytest.approx(0.202, abs=1e-3)
    assert last(FlowSDE(0.3, LastStep.ODE), 4) == [1.0, 0.0, 0.0]
    assert last(CPS(0.5), 4)[2] == 0.0  # exact, therefore inactive
    assert last(ODE(action_noise=0.02), 4) == [1.0, 0.0, 0.02]


TABLE = {  # final std of N(.3, s0^2) with the exact velocity
    (0.1, 4): {"ode": 0.028, "sde.3": 0.088, "sde.7": 0.215, "sde.7ode": 0.043, "cps": (0.028, 0.028, 0.028)},
    (0.1, 10): {"ode": 0.062, "sde.3": 0.070, "sde.7": 0.092, "sde.7ode": 0.079, "cps": (0.061, 0.059, 0.057)},
    (0.5, 4): {"ode": 0.341, "sde.3": 0.372, "sde.7": 0.454, "sde.7ode": 0.456, "cps": (0.335, 0.325, 0.308)},
    (0.5, 10): {"ode": 0.431, "sde.3": 0.444, "sde.7": 0.480, "sde.7ode": 0.480, "cps": (0.420, 0.400, 0.370)},
}


def exact_velocity(x, t, s0, mean=0.3):
    """E[e - a | x_t = x] for a ~ N(mean, s0^2): the slope is Cov(e - a, x) / Var(x)."""
    variance = (1 - t) ** 2 * s0**2 + t**2
    return (t - (1 - t) * s0**2) / variance * (x - (1 - t) * mean) - mean


def final_std(kernel, s0, K):
    """Propagate mean and variance through the affine steps."""
    process = flow(K)
    rows = transition_rows(process.grid, (process.clean[0], process.clean[1]), kernel.coefficients(process.grid))
    variance = torch.tensor(1.0, dtype=torch.float64)
    for k in range(K):
        t = process.grid.time[k]
        slope = exact_velocity(torch.tensor(1.0), t, s0) - exact_velocity(torch.tensor(0.0), t, s0)
        c_x, c_out, m_clean, m_x, std = rows[k]
        variance = (m_clean * (c_x + c_out * slope) + m_x) ** 2 * variance + std**2
    return variance.sqrt().item()


@pytest.mark.parametrize(("s0", "K"), list(TABLE))
def test_exploration_table(s0, K):
    """Mean and variance through affine steps, against numbers worked out elsewhere."""
    row = TABLE[s0, K]
    assert final_std(ODE(), s0, K) == pytest.approx(row["ode"], abs=5e-3)
    for eta in (0.3, 0.7):
        assert final_std(FlowSDE(eta, LastStep.NOISY), s0, K) == pytest.approx(row[f"sde.{eta * 10:.0f}"], abs=5e-3)
    assert final_std(FlowSDE(0.7, LastStep.ODE), s0, K) == pytest.approx(row["sde.7ode"], abs=5e-3)
    for eta, expected in zip((0.3, 0.5, 0.7), row["cps"], strict=True):
        assert final_std(CPS(eta), s0, K) == pytest.approx(expected, abs=5e-3)


@pytest.mark.parametrize("kernel", [FlowSDE(0.3, LastStep.NOISY), CPS(0.5), ODE()])
def test_samples_have_the_propagated_std(kernel):
    """2e5 samples agree with the propagated variance."""
    process, s0 = flow(4), 0.1
    steps = exploration_steps(process, Exploration(kernel), 4)
    generator = torch.Generator().manual_seed(0)
    x, z = torch.randn(200_000, 1, 1, generator=generator), torch.randn(4, 200_000, 1, 1, generator=generator)
    out = run_chain(
        x, predict=lambda x, k: exact_velocity(x, process.grid.time[k].float(), s0), table=steps.sample,
        clean_clip=None, noise=z,
    )  # fmt: skip
    assert out.std().item() == pytest.approx(final_std(kernel, s0, 4), rel=0.01)
    assert out.mean().item() == pytest.approx(0.3, abs=2e-3)


def test_time_convention_of_other_code():
    """a network that runs tau = 1 - t with target a - e gives the same chain after v_t = -v_tau(x, 1 - tau)."""
    process = flow(5)

    def v_t(x, t):
        return torch.sin(3 * x) * t + 0.2 * x

    def v_tau(x, tau):
        return -v_t(x, 1 - tau)

    x = torch.randn(4, 2, 2, dtype=torch.float64)
    ours = run_chain(x, predict=lambda x, k: v_t(x, process.grid.time[k]), table=process.evaluate_steps.double(),
                     clean_clip=None, noise=None)  # fmt: skip
    theirs = x
    for k in range(5):
        theirs = theirs + v_tau(theirs, torch.tensor(k / 5, dtype=torch.float64)) / 5
    # The table itself is float32 before .double(): compare in its precision.
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_diffusion_kernels_are_the_process_itself():
    """DDIM and DDPM noise as kernels give the tables that the processes build for themselves."""
    for config, kernel in (
        (DiffusionConfig(kind=ProcessKind.DDIM, num_train_steps=100, num_steps=5), DDIMNoise(1.0, 1e-10)),
        (DiffusionConfig(kind=ProcessKind.DDIM, num_train_steps=20, num_steps=7, eta=0.5), DDIMNoise(0.5, 1e-10)),
        (DiffusionConfig(num_train_steps=20), DDPMNoise(1e-10)),
    ):
        process = build_process(config)
        rows = transition_rows(process.grid, (process.clean[0], process.clean[1]), kernel.coefficients(process.grid))
        torch.testing.assert_close(rows, process.train_steps._rows, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("kernel", [FlowSDE(), DanceSDE()])
def test_flow_kernels_refuse_diffusion(kernel):
    with pytest.raises(ConfigError, match=f"{type(kernel).__name__} needs a flow policy, this one is a diffusion"):
        exploration_steps(build_process(DiffusionConfig()), Exploration(kernel), 5)


@pytest.mark.parametrize("kernel", [DDIMNoise(), DDPMNoise()])
def test_diffusion_kernels_refuse_a_flow(kernel):
    with pytest.raises(ConfigError, match=f"{type(kernel).__name__} needs a diffusion policy, this one is a flow"):
        exploration_steps(flow(4), Exploration(kernel), 4)


def test_placements():
    noisy = FlowSDE(0.3, LastStep.NOISY)

    def active(placement, window=(0, 0), ft=4, kernel=noisy):
        return exploration_steps(flow(5), Exploration(kernel, placement, window), ft).active

    assert active(Placement.ALL) == (True,) * 5
    assert active(Placement.LAST_ODE) == (True, True, True, True, False)
    assert active(Placement.WINDOW, (0, 2)) == (False, True, True, False, False)  # numbered among the fine-tuned
    assert active(Placement.ONE_RANDOM) == (False, True, True, True, True)
    assert active(Placement.ALL, kernel=CPS(0.5)) == (True, True, True, True, False)
    assert active(Placement.ALL, kernel=LearnedNoise()) == (False, True, True, True, True)
    assert active(Placement.LAST_ODE, kernel=LearnedNoise()) == (False, True, True, True, False)
    assert active(Placement.WINDOW, (1, 3), kernel=LearnedNoise()) == (False, False, True, True, False)
    assert active(Placement.ONE_RANDOM, kernel=LearnedNoise()) == (False, True, True, True, True)
    with pytest.raises(ConfigError, match=r"window=\(0, 5\): the policy fine-tunes 4 steps"):
        active(Placement.WINDOW, (0, 5))
    with pytest.raises(ConfigError, match="0 <= first < end"):
        Exploration(noisy, Placement.WINDOW)


def test_one_random_step_of_each_chunk():
    steps = exploration_steps(flow(4), Exploration(FlowSDE(0.3, LastStep.NOISY), Placement.ONE_RANDOM), 3)
    places = steps.draw_places(3000, torch.Generator().manual_seed(0))
    assert places.sum(1).eq(1).all()
    assert not places[:, 0].any()
    assert places[:, 1:].float().mean(0).sub(1 / 3).abs().max() < 0.04
    step = steps.at(2, places, None)
    assert torch.equal(step.std.flatten() > 0, places[:, 2])
    assert torch.equal(
        step.mean_x.flatten()[~places[:, 2]], steps.plain.at(2).mean_x.flatten().expand(int((~places[:, 2]).sum()))
    )


@pytest.mark.parametrize("placement", list(Placement))
def test_a_learned_noise_leaves_the_frozen_steps_quiet(placement):
    """No network says how much noise they would have, so the tables must not either."""
    steps = exploration_steps(flow(5), Exploration(LearnedNoise(), placement, (0, 2)), 3)
    assert steps.sample.stds()[:2] == [0.0, 0.0]
    assert torch.equal(steps.sample.columns[:, :2], steps.plain.columns[:, :2])


def test_bound_schedule_of_learned_noise():
    kernel = LearnedNoise(low=0.1, high=0.2, decay_iterations=100)
    assert kernel.upper_bound(0) == kernel.upper_bound(35) == pytest.approx(0.2)
    assert kernel.upper_bound(100) == kernel.upper_bound(500) == pytest.approx(0.17)
    assert 0.17 < kernel.upper_bound(70) < 0.2
    assert LearnedNoise(low=0.1, high=0.2).upper_bound(10**6) == 0.2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CPS(1.2), "expected 0 to 1"),
        (lambda: FlowSDE(-0.1), "expected 0 or more"),
        (lambda: LearnedNoise(low=0.2, high=0.1), "0 < low < high"),
        (lambda: FlowConfig(num_steps=0), "at least one Euler step"),
        (lambda: FlowConfig(num_steps=3, shortcut=True), "power of two"),
        (lambda: FlowConfig(num_steps=64, shortcut=True), "at most 32"),
        (lambda: DiffusionConfig(kind=ProcessKind.FLOW), "choose policy=flow_mlp"),
    ],
)
def test_bad_settings(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize(
    ("sampling", "mean"), [(TimeSampling.UNIFORM, 0.5), (TimeSampling.BETA, 0.6), (TimeSampling.LOGIT_NORMAL, 0.5)]
)
def test_training_times(sampling, mean):
    t = Flow(FlowConfig(time_sampling=sampling)).draw_levels(40_000, torch.Generator().manual_seed(0))
    assert 0.0 <= t.min() < t.max() < 1.0
    assert t.mean().item() == pytest.approx(mean, abs=0.01)  # Beta(1.5, 1): 1.5 / 2.5
