"""A generative process: how noise is added in training, and the sampler that takes it out again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn

from robopo.errors import ConfigError
from robopo.processes.kernels import Grid, StepTable, cosine_alphas_cumprod


class ProcessKind(StrEnum):
    """Sampler."""

    DDPM = "ddpm"
    DDIM = "ddim"
    FLOW = "flow"


class Prediction(StrEnum):
    """What the network's output means."""

    NOISE = "noise"
    CLEAN = "clean"


@dataclass(frozen=True, slots=True)
class DiffusionConfig:
    """Noise schedule, sampler and meaning of the network's output."""

    kind: ProcessKind = ProcessKind.DDPM
    """DDPM visits all training steps, DDIM ``num_steps`` of them."""
    num_train_steps: int = 20
    """K, steps of the noise schedule in training."""
    num_steps: int = 0
    """S, steps of the sampler; 0 means K. DDPM allows no other value than K."""
    eta: float = 1.0
    """DDIM's noise in training and fine-tuning: 0 none, 1 as much as DDPM. Deterministic acting always uses 0."""
    prediction: Prediction = Prediction.NOISE
    """The network predicts the noise, or the clean chunk."""

    def __post_init__(self) -> None:
        if self.kind is ProcessKind.FLOW:
            raise ConfigError("kind=flow has no noise schedule: choose policy=flow_mlp, flow_unet or flow_dit")
        if self.num_train_steps < 1:
            raise ConfigError(f"num_train_steps={self.num_train_steps}: at least one denoising step is needed")
        if not 0 <= self.num_steps <= self.num_train_steps:
            raise ConfigError(
                f"num_steps={self.num_steps}: expected 1 to num_train_steps={self.num_train_steps}, or 0 for all"
            )
        if self.kind is ProcessKind.DDPM and self.num_steps not in (0, self.num_train_steps):
            raise ConfigError(
                f"num_steps={self.num_steps} with num_train_steps={self.num_train_steps}: DDPM visits every step; "
                "set num_steps=0 or kind=ddim"
            )
        if not 0.0 <= self.eta <= 1.0:
            raise ConfigError(f"eta={self.eta}: expected 0 <= eta <= 1")

    @property
    def sampler_steps(self) -> int:
        """S."""
        return self.num_steps or self.num_train_steps


class Process(nn.Module, ABC):
    """Noising for training, and the samplers of one process: with exploration (``train``) and for acting.

    timesteps [S]: the network's time of each sampler step, noisiest (k = 0) first. step_sizes [S]: t - t' of each step
    of a flow, None for diffusion. extra_cond: numbers that ``condition`` appends to the network's condition. Holds
    tables only, no parameters.
    """

    kind: ProcessKind
    config: Any  # DiffusionConfig or FlowConfig: a dataclass with num_steps
    extra_cond: int = 0

    def __init__(
        self, num_steps: int, *, grid: Grid, timesteps: Tensor, clean: Tensor, train: StepTable, evaluate: StepTable
    ) -> None:
        """Clean [2, S]: coefficients (c_x, c_out) of the clean estimate at each step."""
        super().__init__()
        self.num_steps, self.grid, self.clean = num_steps, grid, clean
        self.train_steps, self.evaluate_steps = train, evaluate
        self.timesteps: Tensor
        self.register_buffer("timesteps", timesteps, persistent=False)
        self.step_sizes: Tensor | None = None if grid.time is None else grid.time[:-1] - grid.time[1:]

    @abstractmethod
    def draw_levels(self, count: int, generator: torch.Generator | None) -> Tensor:
        """Random noise levels [count] for training, on the process's device."""

    @abstractmethod
    def add_noise(self, clean: Tensor, noise: Tensor, level: Tensor) -> Tensor:
        """The latent at ``level`` [B] between clean and noise [B, H, A]."""

    @abstractmethod
    def target(self, clean: Tensor, noise: Tensor) -> Tensor:
        """What the network should return."""

    def network_time(self, level: Tensor) -> Tensor:
        """The network's time input at ``level``."""
        return level

    def condition(self, cond: Tensor) -> Tensor:
        """[B, C] -> [B, C + extra_cond]: what the network is told while sampling."""
        return cond


class DiffusionProcess(Process):
    """Variance-preserving noising on a cosine schedule of K levels."""

    config: DiffusionConfig

    def __init__(self, config: DiffusionConfig, *, timesteps: list[int], train: StepTable, evaluate: StepTable) -> None:
        abar = cosine_alphas_cumprod(config.num_train_steps)
        visited = torch.cat([abar[torch.tensor(timesteps)], abar.new_ones(1)])  # after the last step: no noise
        super().__init__(
            config.sampler_steps,
            grid=Grid(visited.sqrt(), (1.0 - visited).sqrt(), None),
            timesteps=torch.tensor(timesteps, dtype=torch.long),
            clean=torch.stack(clean_coefficients(visited[:-1], config.prediction)),
            train=train,
            evaluate=evaluate,
        )
        self.config = config
        self.kind = config.kind
        self.noising: Tensor
        noising = torch.stack([abar.sqrt(), (1.0 - abar).sqrt()]).to(torch.get_default_dtype())
        self.register_buffer("noising", noising, persistent=False)  # [2, K]

    def draw_levels(self, count: int, generator: torch.Generator | None) -> Tensor:
        """Uniform in 0..K-1."""
        K = self.config.num_train_steps
        return torch.randint(K, (count,), generator=generator, device=self.timesteps.device)

    def add_noise(self, clean: Tensor, noise: Tensor, level: Tensor) -> Tensor:
        """sqrt(abar_t) clean + sqrt(1 - abar_t) noise; clean and noise [B, H, A], level [B] long in 0..K-1."""
        scale_clean, scale_noise = self.noising[:, level].view(2, -1, 1, 1).unbind(0)
        return torch.addcmul(clean * scale_clean, noise, scale_noise)

    def target(self, clean: Tensor, noise: Tensor) -> Tensor:
        """The noise, or the clean chunk."""
        return noise if self.config.prediction is Prediction.NOISE else clean


def denoising_loss(predicted: Tensor, target: Tensor, pad_mask: Tensor | None = None) -> Tensor:
    """Mean squared error over the numbers of real rows (Ho et al. 2020, arXiv 2006.11239, eq. 14) -> scalar.

    predicted, target: [B, H, A]. pad_mask [B, H] bool: True where a row only pads the window and must not count; a
    batch of nothing but padding gives 0.
    """
    return real_rows_mean((predicted - target).square().mean(-1), pad_mask)


def real_rows_mean(error: Tensor, pad_mask: Tensor | None = None) -> Tensor:
    """Mean of error [B, H] over the rows that pad_mask [B, H] doesn't mark as padding -> scalar; 0 without any."""
    if pad_mask is None:
        return error.mean()
    real = (~pad_mask).to(error.dtype)  # [B, H]
    return (error * real).sum() / real.sum().clamp(min=1.0)


def clean_coefficients(abar_t: Tensor, prediction: Prediction) -> tuple[Tensor, Tensor]:
    """(c_x, c_out) of the clean estimate x0 = c_x x + c_out out (Ho et al. 2020, eq. 15), each like abar_t."""
    if prediction is Prediction.CLEAN:
        return torch.zeros_like(abar_t), torch.ones_like(abar_t)
    return (1.0 / abar_t).sqrt(), -(1.0 / abar_t - 1.0).sqrt()
