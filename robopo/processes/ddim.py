"""Sampling on a subset of the training steps: Song et al. 2021 (DDIM), arXiv 2010.02502, eq. 12 and 16."""

from __future__ import annotations

import torch
from torch import Tensor

from robopo.errors import ConfigError
from robopo.processes.base import DiffusionConfig, DiffusionProcess, ProcessKind, clean_coefficients
from robopo.processes.kernels import StepTable, cosine_alphas_cumprod

STD_FLOOR = 1e-10


class DDIM(DiffusionProcess):
    """S steps, spaced K // S apart and ending at t = 0 ("leading"), after which abar is 1.

    The noise estimate is computed again from the clipped clean estimate, as DPPO does. Acting uses eta = 0 and no
    noise: the chunk is a function of the initial latent.
    """

    def __init__(self, config: DiffusionConfig) -> None:
        if config.kind is not ProcessKind.DDIM:
            raise ConfigError(f"kind={config.kind.value}: DDIM needs kind=ddim")
        ratio = config.num_train_steps // config.sampler_steps
        timesteps = [ratio * n for n in range(config.sampler_steps - 1, -1, -1)]
        train, acting = _rows(config, timesteps, config.eta), _rows(config, timesteps, 0.0)
        acting[:, 4] = 0.0
        super().__init__(config, timesteps=timesteps, train=StepTable(train), evaluate=StepTable(acting))


def _rows(config: DiffusionConfig, timesteps: list[int], eta: float) -> Tensor:
    """[S, 5] float64. With e = (x - sqrt(abar) x0) / sqrt(1 - abar), the mean is sqrt(abar') x0 + direction e."""
    table = cosine_alphas_cumprod(config.num_train_steps)
    abar = table[torch.tensor(timesteps)]
    previous = torch.cat([abar[1:], abar.new_ones(1)])
    std = eta * ((1.0 - previous) / (1.0 - abar)).sqrt() * (1.0 - abar / previous).sqrt()
    std = std.clamp(min=STD_FLOOR)
    direction = (1.0 - previous - std.square()).clamp(min=0.0).sqrt()
    mean_x = direction / (1.0 - abar).sqrt()
    mean_clean = previous.sqrt() - mean_x * abar.sqrt()
    clean_x, clean_out = clean_coefficients(abar, config.prediction)
    return torch.stack([clean_x, clean_out, mean_clean, mean_x, std], dim=1)
