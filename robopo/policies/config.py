"""How a diffusion policy samples and scores."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from robopo.errors import ConfigError


class Reduce(StrEnum):
    """How the log-probabilities of the Ta * A executed numbers become one per step."""

    MEAN = "mean"
    """Average: the ratio is the (Ta * A)-th root of the joint one. The published choice."""
    SUM = "sum"
    """Joint log-density."""


@dataclass(frozen=True, slots=True)
class ChunkPolicyConfig:
    """Sampling, likelihood and fine-tuning of a ChunkPolicy."""

    ft_steps: int | None = None
    """K', sampler steps that are fine-tuned, counted from the last; 0: none. None: no fine-tuning has begun."""
    sampling_std_floor: float = 0.1
    """Least std of every step while exploring (normalised units); acting deterministically ignores it."""
    logprob_std_floor: float = 0.1
    """Least std in log-probabilities; must equal the one of sampling unless ``compat_published``."""
    randn_clip: float = 3.0
    """Standard draws while denoising are clipped to this many standard deviations; the initial latent is not."""
    denoised_clip: float | None = 1.0
    """Bound on each step's clean estimate (normalised units); None: no bound."""
    final_action_clip: float | None = None
    """Bound on the last latent (normalised units), which is then stored and scored as clipped; None: no bound."""
    obs_clip: float | None = None
    """Bound on normalised observations; None: no bound."""
    reduce: Reduce = Reduce.MEAN
    """Over the executed rows and action dimensions."""
    compat_published: bool = False
    """Score as the published code does: floors may differ, elements are clamped to [-5, 2] before reducing."""

    def __post_init__(self) -> None:
        if self.ft_steps is not None and self.ft_steps < 0:
            raise ConfigError(f"ft_steps={self.ft_steps}: expected 0 or more, or null before fine-tuning")
        if self.sampling_std_floor <= 0.0 or self.logprob_std_floor <= 0.0:
            raise ConfigError(
                f"sampling_std_floor={self.sampling_std_floor}, logprob_std_floor={self.logprob_std_floor}: both must "
                "be positive, or the last step has no density"
            )
        if self.sampling_std_floor != self.logprob_std_floor and not self.compat_published:
            raise ConfigError(
                f"sampling_std_floor={self.sampling_std_floor}, logprob_std_floor={self.logprob_std_floor}: "
                "the likelihood would not be that of the samples; make them equal or set compat_published=true"
            )
        for name in ("randn_clip", "denoised_clip", "final_action_clip", "obs_clip"):
            value: float | None = getattr(self, name)
            if value is not None and value <= 0.0:
                raise ConfigError(f"{name}={value}: must be positive")
