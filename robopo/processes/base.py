"""A diffusion process: how noise is added in training, and the sampler that takes it out again."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor, nn

from robopo.errors import ConfigError
from robopo.processes.kernels import StepTable, cosine_alphas_cumprod


class ProcessKind(StrEnum):
    """Sampler."""

    DDPM = "ddpm"
    DDIM = "ddim"


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


class Process(nn.Module):
    """Noise schedule and the two samplers of one process: with exploration (``train``) and for acting (``evaluate``).

    timesteps: the network's time index of each sampler step, noisiest (k = 0) first. Holds tables only, no parameters.
    """

    def __init__(self, config: DiffusionConfig, *, timesteps: list[int], train: StepTable, evaluate: StepTable) -> None:
        super().__init__()
        self.config = config
        self.num_steps = config.sampler_steps
        self.train_steps, self.evaluate_steps = train, evaluate
        abar = cosine_alphas_cumprod(config.num_train_steps)
        self.timesteps: Tensor
        self.noising: Tensor
        self.register_buffer("timesteps", torch.tensor(timesteps, dtype=torch.long), persistent=False)  # [S]
        noising = torch.stack([abar.sqrt(), (1.0 - abar).sqrt()]).to(torch.get_default_dtype())
        self.register_buffer("noising", noising, persistent=False)  # [2, K]

    def add_noise(self, clean: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        """sqrt(abar_t) clean + sqrt(1 - abar_t) noise; clean and noise [B, H, A], t [B] long in 0..K-1."""
        scale_clean, scale_noise = self.noising[:, t].view(2, -1, 1, 1).unbind(0)
        return torch.addcmul(clean * scale_clean, noise, scale_noise)

    def target(self, clean: Tensor, noise: Tensor) -> Tensor:
        """What the network should return."""
        return noise if self.config.prediction is Prediction.NOISE else clean


def denoising_loss(predicted: Tensor, target: Tensor, pad_mask: Tensor | None = None) -> Tensor:
    """Mean squared error over the numbers of real rows (Ho et al. 2020, arXiv 2006.11239, eq. 14) -> scalar.

    predicted, target: [B, H, A]. pad_mask [B, H] bool: True where a row only pads the window and must not count; a
    batch of nothing but padding gives 0.
    """
    error = (predicted - target).square()
    if pad_mask is None:
        return error.mean()
    real = (~pad_mask).to(error.dtype)  # [B, H]
    return (error.mean(-1) * real).sum() / real.sum().clamp(min=1.0)


def clean_coefficients(abar_t: Tensor, prediction: Prediction) -> tuple[Tensor, Tensor]:
    """(c_x, c_out) of the clean estimate x0 = c_x x + c_out out (Ho et al. 2020, eq. 15), each like abar_t."""
    if prediction is Prediction.CLEAN:
        return torch.zeros_like(abar_t), torch.ones_like(abar_t)
    return (1.0 / abar_t).sqrt(), -(1.0 / abar_t - 1.0).sqrt()
