"""Noise schedule and the Gaussian that every sampler step is.

A step of any sampler (DDPM, DDIM, flow) first estimates the clean chunk from the network's output, clips it, and mixes
it with the present latent:  x0 = clip(c_x x + c_out out),  mean = m_0 x0 + m_x x,  x' ~ N(mean, std^2).  Five numbers
per step say it all; sampling and scoring read them from the same table and run the same code.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)


def cosine_alphas_cumprod(num_steps: int, offset: float = 0.008, max_beta: float = 0.999) -> Tensor:
    """Return abar [K] float64, cosine schedule (Nichol and Dhariwal 2021, eq. 17; diffusers' ``squaredcos_cap_v2``)."""
    u = torch.arange(num_steps + 1, dtype=torch.float64) / num_steps
    curve = torch.cos((u + offset) / (1.0 + offset) * (math.pi / 2.0)).square()
    betas = (1.0 - curve[1:] / curve[:-1]).clamp(max=max_beta)
    return torch.cumprod(1.0 - betas, dim=0)


class Grid(NamedTuple):
    """Levels that a sampler visits, noisiest first, one more than its S steps: x = signal a + noise e.

    signal, noise [S+1] float64. time [S+1]: flow time t (1 is noise) of each level, None for diffusion.
    """

    signal: Tensor
    noise: Tensor
    time: Tensor | None


def transition_rows(grid: Grid, clean: tuple[Tensor, Tensor], coefficients: Tensor) -> Tensor:
    """Rows [S, 5] of a StepTable for steps N(c_a a^ + c_e e^, sd^2).

    clean: (c_x, c_out) [S] of the clean estimate. coefficients [S, 3]: c_a, c_e, sd. The noise estimate belongs to the
    clean one, clipped or not: e^ = (x - signal a^) / noise.
    """
    c_a, c_e, std = coefficients.unbind(1)
    signal, noise = grid.signal[:-1], grid.noise[:-1]
    return torch.stack([*clean, c_a - c_e * signal / noise, c_e / noise, std], dim=1)


class StepCoefficients(NamedTuple):
    """The five numbers of one step [1, 1, 1], or of a mixed batch of steps [N, 1, 1]."""

    clean_x: Tensor
    clean_out: Tensor
    mean_clean: Tensor
    mean_x: Tensor
    std: Tensor


class StepTable(nn.Module):
    """Coefficients of the S steps of a sampler, noisiest first. Moves with its owner; not part of its state."""

    def __init__(self, rows: Tensor) -> None:
        """rows: [S, 5] float64, columns in the order of StepCoefficients."""
        super().__init__()
        self._rows = rows
        self.columns: Tensor
        self.register_buffer("columns", rows.T.to(torch.get_default_dtype()).contiguous(), persistent=False)
        self.noisy = bool((rows[:, 4] > 0.0).any())
        self._steps: list[StepCoefficients] | None = None

    def __len__(self) -> int:
        return self.columns.shape[1]

    def with_std_floor(self, floor: float) -> StepTable:
        """The same steps, no std below ``floor``; the means keep the coefficients of the unraised std."""
        rows = self._rows.clone()
        rows[:, 4] = rows[:, 4].clamp(min=floor)
        return StepTable(rows)

    def at(self, k: int) -> StepCoefficients:
        """Coefficients of step k, each [1, 1, 1]. Views made once: indexing would cost as much as the arithmetic."""
        if self._steps is None:
            columns = self.columns.view(5, -1, 1, 1, 1).unbind(0)
            self._steps = [StepCoefficients(*step) for step in zip(*(c.unbind(0) for c in columns), strict=True)]
        return self._steps[k]

    def stds(self) -> list[float]:
        """Standard deviation of each step, noisiest first."""
        return self._rows[:, 4].tolist()

    def with_stds(self, stds: Tensor) -> StepTable:
        """The same means with the standard deviations [S] float64."""
        return StepTable(torch.cat([self._rows[:, :4], stds[:, None]], dim=1))

    def gather(self, k: Tensor) -> StepCoefficients:
        """Map k [N] long to the coefficients [N, 1, 1] of a mixed batch."""
        return StepCoefficients(*self.columns[:, k].view(5, -1, 1, 1).unbind(0))

    def _apply(self, fn: Any, recurse: bool = True) -> StepTable:
        self._steps = None
        return super()._apply(fn, recurse)


def step_mean(x: Tensor, out: Tensor, step: StepCoefficients, clip: float | None) -> Tensor:
    """Mean of the step from x [B, H, A], given the network's output there; x0 is clipped to [-clip, clip]."""
    clean = torch.addcmul(x * step.clean_x, out, step.clean_out)
    if clip is not None:
        clean = clean.clamp(-clip, clip)
    return torch.addcmul(x * step.mean_x, clean, step.mean_clean)


def gaussian_log_prob(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Elementwise log N(x; mean, std^2); std broadcasts."""
    return ((x - mean) / std).square() * -0.5 - (std.log() + LOG_SQRT_2PI)
