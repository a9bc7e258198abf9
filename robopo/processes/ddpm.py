"""Ancestral sampling of denoising diffusion: Ho et al. 2020, arXiv 2006.11239, eq. 6-7 and algorithm 2."""

from __future__ import annotations

import torch

from robopo.errors import ConfigError
from robopo.processes.base import DiffusionConfig, DiffusionProcess, ProcessKind, clean_coefficients
from robopo.processes.kernels import StepTable, cosine_alphas_cumprod

VARIANCE_FLOOR = 1e-20
EVALUATION_STD_FLOOR = 1e-3


class DDPM(DiffusionProcess):
    """All K steps; the std of step t is the posterior's, sqrt(beta_t (1 - abar_{t-1}) / (1 - abar_t)).

    Acting keeps the noise of every step but the last, whose mean is returned: it is still random given the start.
    """

    def __init__(self, config: DiffusionConfig) -> None:
        if config.kind is not ProcessKind.DDPM:
            raise ConfigError(f"kind={config.kind.value}: DDPM needs kind=ddpm")
        K = config.num_train_steps
        abar = cosine_alphas_cumprod(K)
        previous = torch.cat([abar.new_ones(1), abar[:-1]])  # abar_{t-1}
        alpha = abar / previous
        clean_x, clean_out = clean_coefficients(abar, config.prediction)
        mean_clean = (1.0 - alpha) * previous.sqrt() / (1.0 - abar)
        mean_x = (1.0 - previous) * alpha.sqrt() / (1.0 - abar)
        std = ((1.0 - alpha) * (1.0 - previous) / (1.0 - abar)).clamp(min=VARIANCE_FLOOR).sqrt()
        rows = torch.stack([clean_x, clean_out, mean_clean, mean_x, std], dim=1).flip(0)  # [K, 5], noisiest first
        acting = rows.clone()
        acting[:, 4] = acting[:, 4].clamp(min=EVALUATION_STD_FLOOR)
        acting[-1, 4] = 0.0
        super().__init__(
            config, timesteps=list(range(K - 1, -1, -1)), train=StepTable(rows), evaluate=StepTable(acting)
        )
