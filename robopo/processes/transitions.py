"""Exploration kernels: the Gaussian N(c_a a^ + c_e e^, sd^2) that each step draws from while a policy explores.

a^ is the clean estimate at (x, t), e^ the noise estimate; with x = signal a + noise e, the noise-free step has
c_a = signal', c_e = noise' (a prime: at the end of the step). Every kernel is its three columns, so sampling and
scoring are one code path. Flow-SDE: Liu et al. 2025 (Flow-GRPO), arXiv 2505.05470. Dance-SDE: Xue et al. 2025
(DanceGRPO), arXiv 2505.07818. CPS: Wang and Yu 2025 (Flow-CPS), arXiv 2509.05952. Learned noise: Zhang et al. 2025
(ReinFlow), arXiv 2505.22094. DDPM, DDIM: see the files of those names.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import torch
from torch import Tensor

from robopo.errors import ConfigError
from robopo.named_choice import named_choice
from robopo.processes.kernels import Grid

INACTIVE_STD = 1e-6
"""A step with less noise has no likelihood to speak of: it is left out of ratios, divergences and masks."""
NOISY_LAST_STD = 0.1
"""LastStep.AUTO keeps the last step's noise up to this standard deviation of the normalised action."""


class LastStep(StrEnum):
    """What happens at t' = 0, where noise lands on the action itself."""

    AUTO = "auto"
    """Noisy if its standard deviation is at most NOISY_LAST_STD, else as the ODE."""
    NOISY = "noisy"
    ODE = "ode"


class TransitionKernel(Protocol):
    """Turns the levels of a sampler into its Gaussian steps."""

    @property
    def learned_std(self) -> bool:
        """Whether a network of the policy says the standard deviation instead of the table."""
        ...

    def coefficients(self, grid: Grid) -> Tensor:
        """Columns c_a, c_e, sd [S, 3] float64. ConfigError (a ValueError) when the process doesn't suit the kernel."""
        ...


@dataclass(frozen=True, slots=True)
class ODE:
    """No noise along the path. All randomness is the initial latent, and ``action_noise`` on the action."""

    action_noise: float = 0.0
    """Standard deviation added to the last step, in normalised units (FPO++ uses 0.02); 0: none."""
    learned_std: bool = False

    def coefficients(self, grid: Grid) -> Tensor:
        """See TransitionKernel."""
        rows = _euler(grid)
        rows[-1, 2] = self.action_noise
        return rows


@dataclass(frozen=True, slots=True)
class FlowSDE:
    """sd = g sqrt(h), g = eta sqrt(t / (1 - t)): the marginals of the flow as h -> 0, too much noise for large h.

    At t = 1 the denominator takes the next time of the grid, which makes the first sd exactly eta.
    """

    eta: float = 0.3
    """Noise level; 0.7 for images, 0.3 to 0.5 for robot actions."""
    last_step: LastStep = LastStep.AUTO
    """Its sd is eta h / sqrt(1 - h) on a uniform grid, on the action."""
    learned_std: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "last_step", named_choice(LastStep, "last_step", self.last_step))
        _check_eta(self.eta, upper=None)

    def coefficients(self, grid: Grid) -> Tensor:
        """See TransitionKernel."""
        t = _flow_time(grid, "FlowSDE")
        bounded = torch.where(t[:-1] >= 1.0, t[1], t[:-1])
        return _sde(t, self.eta * (t[:-1] / (1.0 - bounded)).sqrt(), self.last_step)


@dataclass(frozen=True, slots=True)
class DanceSDE:
    """sd = eta sqrt(h): the same noise at every time."""

    eta: float = 0.3
    """Noise level."""
    last_step: LastStep = LastStep.AUTO
    """What happens on the action."""
    learned_std: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "last_step", named_choice(LastStep, "last_step", self.last_step))
        _check_eta(self.eta, upper=None)

    def coefficients(self, grid: Grid) -> Tensor:
        """See TransitionKernel."""
        t = _flow_time(grid, "DanceSDE")
        return _sde(t, torch.full_like(t[:-1], self.eta), self.last_step)


@dataclass(frozen=True, slots=True)
class CPS:
    """Coefficient-preserving sampling: c_e^2 + sd^2 = noise'^2, so the latents are as noisy as the ODE's.

    The last step is exact and therefore inactive. A peaked policy explores no more than its ODE does.
    """

    eta: float = 0.5
    """Share of the noise that is fresh, an angle eta pi / 2; in [0, 1]: above 1 the estimate would be subtracted."""
    learned_std: bool = False

    def __post_init__(self) -> None:
        _check_eta(self.eta, upper=1.0)

    def coefficients(self, grid: Grid) -> Tensor:
        """See TransitionKernel."""
        rows, angle = _euler(grid), self.eta * math.pi / 2.0
        std = rows[:, 1] * math.sin(angle)
        return torch.stack([rows[:, 0], rows[:, 1] * math.cos(angle), std], dim=1)


@dataclass(frozen=True, slots=True)
class LearnedNoise:
    """The ODE step plus noise whose sd a small network gives for every number; it is dropped for acting."""

    low: float = 0.05
    """Least sd, in normalised units; not scaled with the step, so the total noise grows with K."""
    high: float = 0.15
    """Greatest sd at the start."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the noise network."""
    hold: float = 0.35
    """Share of ``decay_iterations`` during which ``high`` stays."""
    final: float = 0.7
    """Where the cosine decay ends: low + final (high - low)."""
    decay_iterations: int | None = None
    """Iterations of the published bound schedule; null: the bounds stay."""
    learned_std: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", tuple(self.hidden))
        if not 0.0 < self.low < self.high:
            raise ConfigError(f"low={self.low}, high={self.high}: expected 0 < low < high")
        if not 0.0 <= self.hold <= 1.0 or not 0.0 <= self.final <= 1.0:
            raise ConfigError(f"hold={self.hold}, final={self.final}: expected numbers in [0, 1]")
        if self.decay_iterations is not None and self.decay_iterations < 1:
            raise ConfigError(f"decay_iterations={self.decay_iterations}: expected 1 or more, or null")

    def coefficients(self, grid: Grid) -> Tensor:
        """See TransitionKernel; the sd column only marks the steps as active."""
        rows = _euler(grid)
        rows[:, 2] = math.sqrt(self.low * self.high)
        return rows

    def upper_bound(self, iteration: int) -> float:
        """``high`` after ``iteration`` iterations: held, then a cosine down to low + final (high - low)."""
        if self.decay_iterations is None:
            return self.high
        held = self.hold * self.decay_iterations
        rest = max(self.decay_iterations - held, 1e-9)
        progress = min(max((iteration - held) / rest, 0.0), 1.0)
        end = self.low + self.final * (self.high - self.low)
        return end + 0.5 * (self.high - end) * (1.0 + math.cos(math.pi * progress))


@dataclass(frozen=True, slots=True)
class DDIMNoise:
    """DDIM's own noise (Song et al. 2021, eq. 16) with a floor: what DPPO uses on few sampler steps."""

    eta: float = 1.0
    """0 none, 1 as much as DDPM."""
    std_floor: float = 0.1
    """Least sd of every step; the means keep the coefficients of the unraised one."""
    learned_std: bool = False

    def __post_init__(self) -> None:
        _check_eta(self.eta, upper=1.0)

    def coefficients(self, grid: Grid) -> Tensor:
        """See TransitionKernel."""
        if grid.time is not None:
            raise ConfigError("kernel DDIMNoise needs a diffusion policy, this one is a flow: use FlowSDE or CPS")
        abar, following = grid.signal[:-1].square(), grid.signal[1:].square()
        std = self.eta * ((1.0 - following) / (1.0 - abar)).sqrt() * (1.0 - abar / following).clamp(min=0.0).sqrt()
        c_e = (1.0 - following - std.square()).clamp(min=0.0).sqrt()
        return torch.stack([grid.signal[1:], c_e, std.clamp(min=self.std_floor)], dim=1)


@dataclass(frozen=True, slots=True)
class DDPMNoise:
    """The posterior of ancestral sampling (Ho et al. 2020, eq. 6-7) with a floor: DPPO's own kernel."""

    std_floor: float = 0.1
    """Least sd of every step."""
    learned_std: bool = False

    def coefficients(self, grid: Grid) -> Tensor:
        """DDIM with eta = 1 has the same posterior when it visits every level, and on any subset of them."""
        if grid.time is not None:
            raise ConfigError("kernel DDPMNoise needs a diffusion policy, this one is a flow: use FlowSDE or CPS")
        return DDIMNoise(eta=1.0, std_floor=self.std_floor).coefficients(grid)


def _euler(grid: Grid) -> Tensor:
    """Noise-free rows [S, 3]."""
    return torch.stack([grid.signal[1:], grid.noise[1:], torch.zeros_like(grid.signal[1:])], dim=1)


def _sde(t: Tensor, g: Tensor, last_step: LastStep) -> Tensor:
    """Rows of a stochastic flow with diffusion g [S] on the times t [S+1]: c_e = t' - g^2 h / (2 t), sd = g sqrt(h)."""
    start, end, h = t[:-1], t[1:], t[:-1] - t[1:]
    rows = torch.stack([1.0 - end, end - g.square() * h / (2.0 * start), g * h.sqrt()], dim=1)
    noisy = last_step is LastStep.NOISY or (last_step is LastStep.AUTO and float(rows[-1, 2]) <= NOISY_LAST_STD)
    if not noisy:
        rows[-1] = torch.tensor([1.0, 0.0, 0.0], dtype=t.dtype)
    return rows


def _flow_time(grid: Grid, kernel: str) -> Tensor:
    if grid.time is None:
        raise ConfigError(
            f"kernel {kernel} needs a flow policy, this one is a diffusion: use DDIMNoise, DDPMNoise or CPS"
        )
    return grid.time


def _check_eta(eta: float, upper: float | None) -> None:
    if eta < 0.0 or (upper is not None and eta > upper):
        raise ConfigError(f"eta={eta}: expected {'0 or more' if upper is None else f'0 to {upper:g}'}")
