"""Flow matching on straight paths: x_t = (1 - t) a + t e, velocity u = dx/dt = e - a, t = 1 noise, t = 0 action.

Rectified flow (Liu et al. 2022, arXiv 2209.03003; Lipman et al. 2022, arXiv 2210.02747), and shortcut models
(Frans et al. 2024, arXiv 2410.12557), whose network is also told the size of its step. Networks that run the other way
(tau = 1 - t, target a - e) are converted by v_t(x, t) = -v_tau(x, 1 - tau) when they are loaded, never here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from robopo.errors import ConfigError
from robopo.processes.base import Process, ProcessKind
from robopo.processes.kernels import Grid, StepTable, transition_rows

TIME_SCALE = 100.0
"""The network's time is this times t: its sinusoids were laid out for indices, and [0, 1] would look constant."""

type Net = Callable[[Tensor, Tensor, Tensor], Tensor]


class TimeSampling(StrEnum):
    """Density of the training times."""

    UNIFORM = "uniform"
    BETA = "beta"
    """Beta(1.5, 1) towards noise, as pi0 (Black et al. 2024, arXiv 2410.24164) does."""
    LOGIT_NORMAL = "logit_normal"
    """Sigmoid of a standard normal (Esser et al. 2024, arXiv 2403.03206)."""


@dataclass(frozen=True, slots=True)
class FlowConfig:
    """Euler sampler and training times of a flow."""

    kind: ProcessKind = ProcessKind.FLOW
    """Always flow."""
    num_steps: int = 4
    """K, Euler steps of the sampler; may be changed without training again."""
    time_sampling: TimeSampling = TimeSampling.UNIFORM
    """Where training puts its times."""
    shortcut: bool = False
    """Tell the network its step size, and train big steps to equal two small ones; then K = 1 works."""
    shortcut_share: float = 0.25
    """Share of a batch that trains the big steps; of a shortcut model."""
    shortcut_levels: int = 5
    """Finest step 2^-levels; K must be a power of two, at most 2^levels; of a shortcut model."""

    def __post_init__(self) -> None:
        if self.kind is not ProcessKind.FLOW:
            raise ConfigError(
                f"kind={self.kind.value}: a flow's kind is flow; for diffusion choose policy=diffusion_mlp"
            )
        if self.num_steps < 1:
            raise ConfigError(f"num_steps={self.num_steps}: at least one Euler step is needed")
        if not 0.0 < self.shortcut_share < 1.0 or not 1 <= self.shortcut_levels <= 10:
            raise ConfigError(
                f"shortcut_share={self.shortcut_share}, shortcut_levels={self.shortcut_levels}: expected a share in "
                "(0, 1) and 1 to 10 levels"
            )
        if self.shortcut and (self.num_steps & (self.num_steps - 1) or self.num_steps > 2**self.shortcut_levels):
            raise ConfigError(
                f"num_steps={self.num_steps}: a shortcut model takes a power of two of steps, at most "
                f"{2**self.shortcut_levels} (2^shortcut_levels)"
            )

    @property
    def sampler_steps(self) -> int:
        """S."""
        return self.num_steps


class Flow(Process):
    """K equal Euler steps x' = x - h v(x, t, s); acting adds no noise."""

    config: FlowConfig

    def __init__(self, config: FlowConfig) -> None:
        K = config.num_steps
        time = 1.0 - torch.arange(K + 1, dtype=torch.float64) / K  # k / K everywhere: sampling and scoring agree
        grid = Grid(signal=1.0 - time, noise=time, time=time)
        clean = torch.stack([torch.ones(K, dtype=torch.float64), -time[:-1]])  # a^ = x - t v
        euler = torch.stack([1.0 - time[1:], time[1:], torch.zeros(K, dtype=torch.float64)], dim=1)
        table = StepTable(transition_rows(grid, (clean[0], clean[1]), euler))
        timesteps = (TIME_SCALE * time[:-1]).to(torch.get_default_dtype())
        super().__init__(K, grid=grid, timesteps=timesteps, clean=clean, train=table, evaluate=table)
        self.config = config
        self.kind = ProcessKind.FLOW
        self.extra_cond = 1 if config.shortcut else 0

    def draw_levels(self, count: int, generator: torch.Generator | None) -> Tensor:
        """Times in (0, 1) -> [count]."""
        like = self.timesteps
        draw = torch.rand(count, generator=generator, device=like.device, dtype=like.dtype)
        match self.config.time_sampling:
            case TimeSampling.UNIFORM:
                return draw
            case TimeSampling.BETA:
                return draw.pow(2.0 / 3.0)  # inverse of the distribution function t^1.5
            case TimeSampling.LOGIT_NORMAL:
                return torch.sigmoid(torch.special.ndtri(draw.clamp(1e-6, 1.0 - 1e-6)))

    def add_noise(self, clean: Tensor, noise: Tensor, level: Tensor) -> Tensor:
        """(1 - t) clean + t noise; clean and noise [B, H, A], level [B] is t."""
        return torch.lerp(clean, noise, level.view(-1, 1, 1))

    def target(self, clean: Tensor, noise: Tensor) -> Tensor:
        """E - a."""
        return noise - clean

    def network_time(self, level: Tensor) -> Tensor:
        """TIME_SCALE t."""
        return TIME_SCALE * level

    def condition(self, cond: Tensor) -> Tensor:
        """A shortcut model is told the sampler's step 1 / K."""
        return self.with_step(cond, math.log2(self.num_steps)) if self.extra_cond else cond

    def finest(self, cond: Tensor) -> Tensor:
        """The condition of the instantaneous velocity."""
        return self.with_step(cond, float(self.config.shortcut_levels)) if self.extra_cond else cond

    def with_step(self, cond: Tensor, halvings: Tensor | float) -> Tensor:
        """Append the step size 2^-halvings, as halvings / levels in [0, 1]; cond [B, C], halvings [B] or a number."""
        entry = torch.as_tensor(halvings, device=cond.device, dtype=cond.dtype) / self.config.shortcut_levels
        return torch.cat([cond, entry.expand(cond.shape[0])[:, None]], dim=1)


def shortcut_target(
    process: Flow, net: Net, cond: Tensor, clean: Tensor, noise: Tensor, generator: torch.Generator | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Self-consistency of a shortcut model (Frans et al. 2024, eq. 4): one step of 2 d equals two steps of d.

    cond [B, C], clean and noise [B, H, A] -> latents [B, H, A], network times [B], conditions [B, C + 1] and targets
    [B, H, A] for a squared error; the targets carry no graph.
    """
    B, levels = clean.shape[0], process.config.shortcut_levels
    halvings = torch.randint(levels, (B,), generator=generator, device=clean.device)  # of the big step
    pieces = (2**halvings).to(clean.dtype)  # steps on a whole path
    draw = torch.rand(B, generator=generator, device=clean.device, dtype=clean.dtype)
    t = ((draw * pieces).floor() + 1.0) / pieces  # where the big step starts: 1/pieces, ..., 1
    half = 0.5 / pieces
    x = process.add_noise(clean, noise, t)
    fine = process.with_step(cond, (halvings + 1).to(clean.dtype))
    with torch.no_grad():
        first = net(x, process.network_time(t), fine)
        middle = x - half.view(-1, 1, 1) * first
        second = net(middle, process.network_time(t - half), fine)
    coarse = process.with_step(cond, halvings.to(clean.dtype))
    return x, process.network_time(t), coarse, 0.5 * (first + second)
