"""Flow Policy Optimization: FPO (arXiv 2507.21053) and FPO++ (arXiv 2602.02481).

No likelihood and no noise along the path. Each decision gets M pairs (t_j, e_j), drawn once per rollout; with the
flow-matching loss l_j of its executed action at each pair, before (l_old) and during the update,

    r = exp(mean_j l_old_j - mean_j l_j)  per action (FPO),      r_j = exp(l_old_j - l_j)  per sample (FPO++)

stand in for the likelihood ratio: biased, but for any sampler. FPO clips r as PPO does; FPO++ takes ASPO to learn from
scratch and the clip to fine-tune.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import cast

import torch
from torch import Tensor

from robopo.algos.choices import ChainPolicy, RatioBatch, Samples, Surrogate, VelocityPolicy
from robopo.algos.gaussian_steps import has_velocity
from robopo.errors import ConfigError
from robopo.losses.cfm import (
    CfmLoss,
    CfmReduction,
    cfm_elements,
    cfm_slope,
    flow_latent,
    proxy_divergence,
    reduce_numbers,
    straight_through_clamp,
)
from robopo.losses.divergence import proxy_kl_weight
from robopo.losses.surrogates import aspo_loss
from robopo.named_choice import named_choice
from robopo.policies.config import Reduce
from robopo.processes.flow import FlowConfig

_ANCHOR_ROWS = 65_536
"""Network rows per pass of ``anchor``, to bound its memory; a pass has no graph."""


class Granularity(StrEnum):
    """What has a ratio of its own."""

    PER_SAMPLE = "per_sample"
    """Every pair (FPO++)."""
    PER_ACTION = "per_action"
    """Every decision (FPO)."""


class PairTimes(StrEnum):
    """Density of the pairs' times."""

    UNIFORM = "uniform"
    """U(0, 1)."""
    GRID = "grid"
    """The starts 1, 1 - 1/K, ..., 1/K of ``grid_steps`` sampler steps."""
    INTERVAL = "interval"
    """0.005 + 0.99 U(0, 1)."""


@dataclass(frozen=True, slots=True)
class CfmRatio:
    """Ratio of flow-matching losses, unit = decision, over the executed rows; M values per unit, or one."""

    granularity: Granularity = Granularity.PER_SAMPLE
    """``per_sample`` or ``per_action``."""
    num_samples: int = 8
    """M, pairs per decision; each costs a row of the network in every epoch."""
    loss: CfmLoss = CfmLoss.HUBER
    """Error that counts: velocity, noise, clean or huber."""
    reduction: CfmReduction = CfmReduction.ROWS
    """Over the executed numbers: mean, sum, sqrt or rows. The trust region's width is on the scale this makes."""
    huber_width: float = 1.0
    """Where ``huber`` turns from quadratic to linear."""
    scale: float = 1.0
    """Factor on every loss; 1 / (2 sigma^2) reads the clean error as the likelihood of a Gaussian."""
    times: PairTimes = PairTimes.UNIFORM
    """Where the pairs' times lie."""
    grid_steps: int = 10
    """K of ``times: grid``."""
    old_loss_clamp: float | None = None
    """Bound on old losses; null: none. Without one on new losses, ratios start below 1 where it binds."""
    new_loss_clamp: float | None = None
    """Bound on new losses, whose gradient stays that of the unbounded ones; null: none."""
    log_ratio_clamp: float | None = 5.0
    """Bound on the log-ratio's size, the gradient likewise; null: none. Losses grow without bound where a policy flees
    from an action."""
    divergence: bool = False
    """Also give w(t) |v_new - v_old|^2 in place of a KL, for divergence masks; its mean over pairs estimates the KL of
    a whole chain of small Flow-SDE steps. Switched on where a trust region needs it."""
    divergence_eta: float = 0.3
    """Noise level of the Flow-SDE that w is taken from."""

    def __post_init__(self) -> None:
        for name, kind in (
            ("granularity", Granularity),
            ("loss", CfmLoss),
            ("reduction", CfmReduction),
            ("times", PairTimes),
        ):
            object.__setattr__(self, name, named_choice(kind, name, getattr(self, name)))
        if self.num_samples < 1 or self.grid_steps < 1:
            raise ConfigError(f"num_samples={self.num_samples}, grid_steps={self.grid_steps}: expected 1 or more")
        for name in (
            "huber_width",
            "scale",
            "old_loss_clamp",
            "new_loss_clamp",
            "log_ratio_clamp",
            "divergence_eta",
        ):
            value: float | None = getattr(self, name)
            if value is not None and not value > 0.0:
                raise ConfigError(f"{name}={value}: must be positive")

    def check(self, policy: ChainPolicy) -> None:
        """Raise ConfigError for a policy that is no flow, or acts with more than the velocity that is trained."""
        if not has_velocity(policy):
            raise ConfigError(
                f"ratio=CfmRatio needs a velocity, and {type(policy).__name__} is no flow here; use a flow policy "
                "(policy=flow_mlp), or ratio=PerStep for diffusion and Gaussian policies"
            )
        steps = getattr(getattr(policy, "process", None), "num_steps", policy.ft_steps)
        if policy.ft_steps != steps:
            raise ConfigError(
                f"ratio=CfmRatio trains the velocity at all times, and ft_steps={policy.ft_steps} leaves the sampler's "
                f"first steps to the frozen network; set ft_steps={steps}, or use ratio=PerStep"
            )
        settings = getattr(getattr(policy, "process", None), "config", None)
        if isinstance(settings, FlowConfig) and settings.shortcut and steps != (finest := 2**settings.shortcut_levels):
            raise ConfigError(
                f"ratio=CfmRatio trains the velocity, which a shortcut model with num_steps={steps} doesn't act with: "
                f"its network is told the size of its steps; set num_steps={finest} (2^shortcut_levels), or use "
                "ratio=Chain or PerStep"
            )

    def units(self, data: Samples) -> Tensor:
        """Decisions in use [M]; the sampler's steps play no part, active or not."""
        if data.use is None:
            return torch.arange(len(data.value), device=data.value.device)
        return data.use.nonzero()[:, 0]

    def decision(self, data: Samples, unit: Tensor) -> Tensor:  # noqa: ARG002
        """The unit itself [B]."""
        return unit

    @torch.no_grad()
    def anchor(self, policy: ChainPolicy, data: Samples, generator: torch.Generator) -> dict[str, Tensor]:
        """Pairs cfm_t [N, M], cfm_noise [N, M, H, A], their losses cfm_loss [N, M], and velocities if asked for."""
        clean = data.latents[:, -1]
        N, M = len(clean), self.num_samples
        t = self._draw_times(N, generator, clean)
        shape = (N, M, *clean.shape[1:])
        noise = torch.randn(shape, generator=generator, device=generator.device, dtype=clean.dtype).to(clean.device)
        losses: list[Tensor] = []
        velocities: list[Tensor] = []
        for rows in torch.arange(N, device=clean.device).split(max(1, _ANCHOR_ROWS // M)):
            v = self._velocity(policy, data, rows, t[rows], noise[rows])
            losses.append(self._loss(policy, v, clean[rows], t[rows], noise[rows]))
            if self.divergence:
                velocities.append(v)
        found = {"cfm_t": t, "cfm_noise": noise, "cfm_loss": torch.cat(losses)}
        return found | ({"cfm_velocity": torch.cat(velocities)} if self.divergence else {})

    def joint_kl_factor(self, policy: ChainPolicy) -> float | None:  # noqa: ARG002
        """No likelihood, no KL."""
        return None

    def evaluate(self, policy: ChainPolicy, data: Samples, unit: Tensor) -> RatioBatch:
        """Log-ratio, and divergence if asked for: [B, M] per sample, [B, 1] per action."""
        a = data.anchors
        t, noise, old = (a[name].index_select(0, unit) for name in ("cfm_t", "cfm_noise", "cfm_loss"))
        clean = data.latents[:, -1].index_select(0, unit)
        v = self._velocity(policy, data, unit, t, noise)
        new = straight_through_clamp(self._loss(policy, v, clean, t, noise), high=self.new_loss_clamp)
        log_ratio = self._per_value(straight_through_clamp(old, high=self.old_loss_clamp) - new)
        if self.log_ratio_clamp is not None:
            log_ratio = straight_through_clamp(log_ratio, low=-self.log_ratio_clamp, high=self.log_ratio_clamp)
        if not self.divergence:
            return RatioBatch(log_ratio, None)
        old_v, Ta = a["cfm_velocity"].index_select(0, unit), policy.spec.action_steps
        elements = proxy_divergence(v[:, :, :Ta], old_v[:, :, :Ta], t, self.divergence_eta)
        mean = policy.config.reduce is Reduce.MEAN
        divergence = elements.mean((-2, -1)) if mean else elements.sum((-2, -1))
        pivot = log_ratio.detach() + self._alignment(policy, v.detach(), old_v, clean, t, noise)
        return RatioBatch(log_ratio, self._per_value(divergence), pivot=pivot)

    def _draw_times(self, N: int, generator: torch.Generator, like: Tensor) -> Tensor:
        """Times [N, M], on the device of ``like``."""
        draw = torch.rand((N, self.num_samples), generator=generator, device=generator.device, dtype=like.dtype)
        if self.times is PairTimes.GRID:
            draw = 1.0 - (draw * self.grid_steps).floor().clamp(max=self.grid_steps - 1) / self.grid_steps
        elif self.times is PairTimes.INTERVAL:
            draw = 0.005 + 0.99 * draw
        return draw.to(like.device)

    def _velocity(self, policy: ChainPolicy, data: Samples, decision: Tensor, t: Tensor, noise: Tensor) -> Tensor:
        """Velocity [B, M, H, A] at the pairs t [B, M], noise [B, M, H, A] of the decisions [B]."""
        clean = data.latents[:, -1].index_select(0, decision)[:, None].expand_as(noise)
        x = flow_latent(clean, noise, t).flatten(0, 1)  # [B * M, H, A]
        obs = data.rows(decision.repeat_interleave(noise.shape[1]))
        return cast("VelocityPolicy", policy).velocity(obs, x, t.flatten()).view_as(noise)

    def _loss(self, policy: ChainPolicy, v: Tensor, clean: Tensor, t: Tensor, noise: Tensor) -> Tensor:
        """Losses [B, M] over the executed rows."""
        Ta = policy.spec.action_steps
        elements = cfm_elements(
            v[:, :, :Ta],
            clean=clean[:, None, :Ta],
            noise=noise[:, :, :Ta],
            t=t,
            kind=self.loss,
            width=self.huber_width,
        )
        return self.scale * reduce_numbers(elements, self.reduction)

    def _alignment(
        self, policy: ChainPolicy, v: Tensor, old_v: Tensor, clean: Tensor, t: Tensor, noise: Tensor
    ) -> Tensor:
        """How fast the log-ratio falls as the velocity goes further from the old one: w <dl/dv, v - v_old>, per value.

        <grad log r, grad |v - v_old|^2> is -2 times this. For the plain squared error it is |v - v_old|^2 - log r, in
        perfect analogy to a Gaussian's KL - log r.
        """
        Ta = policy.spec.action_steps
        slope = cfm_slope(
            v[:, :, :Ta],
            clean=clean[:, None, :Ta],
            noise=noise[:, :, :Ta],
            t=t,
            kind=self.loss,
            width=self.huber_width,
        )
        along = (slope * (v - old_v)[:, :, :Ta]).sum((-2, -1))
        return self._per_value(proxy_kl_weight(t, self.divergence_eta) * along)

    def _per_value(self, pairs: Tensor) -> Tensor:
        """[B, M], or their means [B, 1]."""
        return pairs if self.granularity is Granularity.PER_SAMPLE else pairs.mean(1, keepdim=True)


@dataclass(frozen=True, slots=True)
class ASPO:
    """PPO's clip where the advantage is positive, SPO's pull-back elsewhere, each value by itself (FPO++)."""

    eps: float = 0.05
    """Half-width of both, on the scale of the ratio."""

    needs_divergence = False

    def __post_init__(self) -> None:
        if not 0.0 < self.eps < 1.0:
            raise ConfigError(f"eps={self.eps}: expected a number in (0, 1)")

    def surrogate(self, ratio: RatioBatch, adv: Tensor, *, num_steps: int) -> Surrogate:  # noqa: ARG002
        """Loss [B, V]. blocked: clipped (A > 0) or pulled back (A < 0)."""
        loss = aspo_loss(log_ratio=ratio.log_ratio, adv=adv, eps=self.eps)
        moved = ratio.log_ratio.detach().exp() - 1.0
        return Surrogate(loss, adv.sign() * moved >= self.eps, outside=moved.abs() > self.eps)
