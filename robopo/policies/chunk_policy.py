"""Diffusion policies over action chunks, and the likelihood of their denoising steps.

Ren et al. 2024 (DPPO), arXiv 2409.00588. Step k = 0 is the noisiest of the sampler's S steps. After
``begin_finetuning(K')`` the last K' steps (i = k - (S - K') = 0..K'-1) use the trained network, the others a frozen
copy of the pre-trained one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from robopo.errors import ConfigError, ShapeError, did_you_mean
from robopo.nn.denoiser import Denoiser
from robopo.policies.base import PolicySpec
from robopo.policies.config import ChunkPolicyConfig, Reduce
from robopo.policies.normalizer import MinMaxNormalizer
from robopo.processes.base import Process, denoising_loss
from robopo.processes.chain import Step, run_chain
from robopo.processes.kernels import StepTable, gaussian_log_prob, step_mean
from robopo.types import DenoisingChain, Observation

__all__ = ["ACTION", "ChunkPolicy", "ChunkPolicyConfig", "Reduce"]

ACTION = "action"
"""Key of the action's statistics in the normaliser."""

type Predict = Callable[[Tensor, int], Tensor]

# Bounds on elementwise log-probabilities in the published code (Ren et al. 2024, release v0.8).
PUBLISHED_LOG_PROB_RANGE = (-5.0, 2.0)


class ChunkPolicy(nn.Module):
    """Denoises a chunk [B, H, A] given the last To observations.

    net: the network that learns. frozen_net: its frozen copy, None before fine-tuning. A perceptron can't tell the rows
    that run (Ta) from the rest (H): fine-tuning it with Ta < H was unstable in the paper; use H = Ta, or a UNet1D.
    """

    def __init__(
        self,
        spec: PolicySpec,
        net: nn.Module,
        process: Process,
        normalizer: MinMaxNormalizer,
        config: ChunkPolicyConfig | None = None,
    ) -> None:
        """normalizer: statistics of every observation of ``spec`` and of ``action``.

        With ``config.ft_steps`` set, fine-tuning begins at once. Raises ConfigError when the parts don't fit together.
        """
        super().__init__()
        config = ChunkPolicyConfig() if config is None else config
        _check_parts(spec, net, normalizer)
        self.spec = spec
        self.config = config
        self.net = net
        self.frozen_net: nn.Module | None = None
        self.process = process
        self.normalizer = normalizer
        self._explore_steps = process.train_steps.with_std_floor(config.sampling_std_floor)
        self._score_steps = process.train_steps.with_std_floor(config.logprob_std_floor)
        if config.ft_steps is not None:
            self.config = replace(config, ft_steps=None)
            self.begin_finetuning(config.ft_steps)

    @property
    def ft_steps(self) -> int:
        """K', 0 before ``begin_finetuning``."""
        return self.config.ft_steps or 0

    def begin_finetuning(self, ft_steps: int) -> None:
        """Freeze a copy of ``net`` for the first S - K' steps; ``net`` keeps the last ``ft_steps`` (K').

        0: ``net`` is never used, the policy acts as it does now. Asking again for the same K' changes nothing.
        Raises ConfigError when K' is not in 0..S, or differs from the one in force.
        """
        S = self.process.num_steps
        if not 0 <= ft_steps <= S:
            raise ConfigError(f"ft_steps={ft_steps}: expected 0 to the sampler's {S} steps")
        if self.config.ft_steps is not None and self.config.ft_steps != ft_steps:
            raise ConfigError(
                f"ft_steps={ft_steps}, but this policy is already fine-tuned on its last {self.config.ft_steps} steps, "
                "and its base covers the others; use that number or start from the pre-trained policy"
            )
        if self.config.ft_steps == ft_steps:
            return
        self.config = replace(self.config, ft_steps=ft_steps)
        self.frozen_net = copy.deepcopy(self.net).requires_grad_(False).eval()

    def train(self, mode: bool = True) -> ChunkPolicy:
        """Set the training mode, but the frozen copy stays in evaluation mode."""
        super().train(mode)
        if self.frozen_net is not None:
            self.frozen_net.eval()
        return self

    def reset(self) -> None:
        """Nothing to forget: every decision depends on its observations alone."""

    def encode(self, obs: Observation) -> Tensor:
        """Observation entries [B, To, D] -> condition [B, C]: normalised, keys in sorted order, then flattened in time.

        Raises ShapeError naming the entry that is missing or has another shape.
        """
        rows: list[Tensor] = []
        for key, size in self.spec.obs.items():
            x = obs.get(key)
            if x is None:
                raise ShapeError(f"observation {key!r} is missing{did_you_mean(key, obs)}")
            if x.ndim != 3 or x.shape[1] != self.spec.obs_steps or x.shape[2] != size:
                raise ShapeError(
                    f"observation {key!r} is {list(x.shape)}, expected [B, {self.spec.obs_steps}, {size}] "
                    "(batch, obs_steps, size)"
                )
            rows.append(self.normalizer.apply(key, x))
        cond = rows[0] if len(rows) == 1 else torch.cat(rows, dim=-1)
        if self.config.obs_clip is not None:
            cond = cond.clamp(-self.config.obs_clip, self.config.obs_clip)
        return cond.flatten(1)

    def bc_loss(
        self, obs: Observation, action: Tensor, generator: torch.Generator | None, pad_mask: Tensor | None = None
    ) -> Tensor:
        """Denoising loss of ``net`` at random levels -> scalar, with a graph.

        obs: entries [B, To, D]; action [B, H, A] physical; pad_mask [B, H] True where a row is padding. generator: of
        the policy's device; None: torch's global one.
        """
        clean = self.normalizer.apply(ACTION, action)
        K = self.process.config.num_train_steps
        t = torch.randint(K, (clean.shape[0],), generator=generator, device=clean.device)
        noise = torch.randn(clean.shape, generator=generator, device=clean.device, dtype=clean.dtype)
        predicted = self.net(self.process.add_noise(clean, noise, t), t, self.encode(obs))
        return denoising_loss(predicted, self.process.target(clean, noise), pad_mask)

    @torch.no_grad()
    def act(
        self,
        obs: Observation,
        *,
        deterministic: bool = True,
        generator: torch.Generator | None = None,
        noise: Tensor | None = None,
    ) -> Tensor:
        """Observation entries [B, To, D] -> chunk [B, H, A], physical.

        deterministic: DDIM adds no noise after the initial latent; DDPM keeps its own std (at least 1e-3) at every step
        but the last. Otherwise explores as ``sample_chain`` does. noise [B, H, A]: initial latent, drawn if None.
        generator: of the policy's device; None: torch's global one.
        """
        table = self.process.evaluate_steps if deterministic else self._explore_steps
        cond = self.encode(obs)
        x = self._initial(cond, generator) if noise is None else noise
        draws = self._draws(table, x, generator)
        x = run_chain(
            x,
            predict=self._predictor(cond, exact_tail=False),
            table=table,
            clean_clip=self.config.denoised_clip,
            noise=draws,
            final_clip=self.config.final_action_clip,
        )
        return self.normalizer.invert(ACTION, x)

    @torch.no_grad()
    def sample_chain(
        self, obs: Observation, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, DenoisingChain]:
        """Explore: chunk [B, H, A] physical, and its chain (latents [B, K'+1, H, A], log_probs [B, K']).

        The std is at least ``sampling_std_floor`` at every step. Log-probabilities come from the moments that were
        sampled from; without fine-tuned steps the chain holds the action alone.
        """
        cond = self.encode(obs)
        x = self._initial(cond, generator)
        first = self.process.num_steps - self.ft_steps
        latents: list[Tensor] = []
        log_probs: list[Tensor] = []

        def record(step: Step) -> None:
            if step.k < first:
                return
            if not latents:
                latents.append(step.x_in)
            latents.append(step.x_out)
            log_probs.append(self._reduced(step.x_out, step.mean, self._score_steps.at(step.k).std))

        x = run_chain(
            x,
            predict=self._predictor(cond, exact_tail=True),
            table=self._explore_steps,
            clean_clip=self.config.denoised_clip,
            noise=self._draws(self._explore_steps, x, generator),
            final_clip=self.config.final_action_clip,
            record=record,
        )
        scores = torch.stack(log_probs, dim=1) if log_probs else x.new_zeros(x.shape[0], 0)
        chain = DenoisingChain(latents=torch.stack(latents or [x], dim=1), log_probs=scores)
        return self.normalizer.invert(ACTION, x), chain

    def replay(self, obs: Observation, latents: Tensor) -> Tensor:
        """Log-probabilities [B, K'] of the fine-tuned steps of latents [B, K'+1, H, A], with a graph.

        One pass of B rows per step, as in ``sample_chain``: an unchanged network gives the stored numbers bit for bit.
        """
        if latents.shape[1] != self.ft_steps + 1:
            raise ShapeError(
                f"latents are {list(latents.shape)}, expected [B, {self.ft_steps + 1}, H, A]: "
                f"ft_steps={self.ft_steps} and the first input"
            )
        if self.ft_steps == 0:
            return latents.new_zeros(latents.shape[0], 0)
        cond, first = self.encode(obs), self.process.num_steps - self.ft_steps
        scores: list[Tensor] = []
        for i in range(self.ft_steps):
            x, k = latents[:, i], first + i
            step = self._score_steps.at(k)
            mean = step_mean(x, self.net(x, self._time(k, x), cond), step, self.config.denoised_clip)
            scores.append(self._reduced(latents[:, i + 1], mean, step.std))
        return torch.stack(scores, dim=1)

    def step_log_prob(self, obs: Observation, x_in: Tensor, x_out: Tensor, i: Tensor) -> Tensor:
        """Log-probability [N] of N single fine-tuned steps in one pass of ``net``, with a graph.

        obs: entries [N, To, D]; x_in, x_out [N, H, A] normalised latents; i [N] long in 0..K'-1, in any mixture.
        """
        k = i + (self.process.num_steps - self.ft_steps)
        step = self._score_steps.gather(k)
        out = self.net(x_in, self.process.timesteps[k], self.encode(obs))
        return self._reduced(x_out, step_mean(x_in, out, step, self.config.denoised_clip), step.std)

    def _reduced(self, x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        """Log N(x; mean, std^2) over the executed rows -> [N]."""
        rows = self.spec.action_steps
        log_prob = gaussian_log_prob(x[:, :rows], mean[:, :rows], std)  # [N, Ta, A]
        if self.config.compat_published:
            log_prob = log_prob.clamp(*PUBLISHED_LOG_PROB_RANGE)
        return log_prob.mean((1, 2)) if self.config.reduce is Reduce.MEAN else log_prob.sum((1, 2))

    def _predictor(self, cond: Tensor, *, exact_tail: bool) -> Predict:
        """predict(x, k) that asks the network of step k alone.

        exact_tail: fine-tuned steps run ``forward``, so that scoring them again repeats the arithmetic bit for bit.
        """
        S, first = self.process.num_steps, self.process.num_steps - self.ft_steps
        if self.frozen_net is None:
            return self._prepared(self.net, cond, 0, S)
        if first == S:
            return self._prepared(self.frozen_net, cond, 0, S)
        tail = self._plain(self.net, cond) if exact_tail else self._prepared(self.net, cond, first, S)
        if first == 0:
            return tail
        head = self._prepared(self.frozen_net, cond, 0, first)
        return lambda x, k: head(x, k) if k < first else tail(x, k)

    def _prepared(self, net: nn.Module, cond: Tensor, start: int, stop: int) -> Predict:
        """``net`` for the steps start..stop-1, with all that doesn't depend on x computed once."""
        if not isinstance(net, Denoiser):
            return self._plain(net, cond)
        context = net.begin_chain(cond, self.process.timesteps[start:stop])
        return lambda x, k: net.chain_step(x, context, k - start)

    def _plain(self, net: nn.Module, cond: Tensor) -> Predict:
        return lambda x, k: net(x, self._time(k, x), cond)

    def _time(self, k: int, x: Tensor) -> Tensor:
        """Network time index of step k for every row of x -> [B] long."""
        return self.process.timesteps[k].expand(x.shape[0])

    def _initial(self, cond: Tensor, generator: torch.Generator | None) -> Tensor:
        shape = (cond.shape[0], self.spec.horizon, self.spec.action_dim)
        return torch.randn(shape, generator=generator, device=cond.device, dtype=cond.dtype)

    def _draws(self, table: StepTable, x: Tensor, generator: torch.Generator | None) -> Tensor | None:
        """Clipped standard draws of every step [S, B, H, A]; None where no step has noise."""
        if not table.noisy:
            return None
        z = torch.randn((len(table), *x.shape), generator=generator, device=x.device, dtype=x.dtype)
        return z.clamp_(-self.config.randn_clip, self.config.randn_clip)


def _check_parts(spec: PolicySpec, net: nn.Module, normalizer: MinMaxNormalizer) -> None:
    for key, size in (*spec.obs.items(), (ACTION, spec.action_dim)):
        found = normalizer.bounds(key)[0].shape[0]
        if found != size:
            raise ConfigError(f"the normaliser knows {found} numbers of {key!r}, the spec says {size}")
    if isinstance(net, Denoiser):
        found_sizes = (net.horizon, net.action_dim, net.cond_dim)
        expected = (spec.horizon, spec.action_dim, spec.cond_dim)
        if found_sizes != expected:
            raise ConfigError(
                f"the network is built for (horizon, action_dim, cond_dim) = {found_sizes}, the spec says {expected}"
            )
