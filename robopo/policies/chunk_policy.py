"""Diffusion and flow policies over action chunks, and the likelihood of their denoising steps.

Ren et al. 2024 (DPPO), arXiv 2409.00588. Step k = 0 is the noisiest of the sampler's S steps. After
``begin_finetuning(K')`` the last K' steps (i = k - (S - K') = 0..K'-1) use the trained network, the others a frozen
copy of the pre-trained one. While exploring, step k draws from N(mean, sd^2) of the tables of ``exploration``; the same
tables score it.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor, nn

from robopo.errors import ConfigError, ShapeError
from robopo.nn.noise_net import NoiseNet
from robopo.nn.vision import feature_dim, vision_of
from robopo.policies.base import PolicySpec
from robopo.policies.chain_recorder import ChainRecorder
from robopo.policies.config import ChunkPolicyConfig, Reduce
from robopo.policies.normalizer import MinMaxNormalizer
from robopo.policies.obs_encoding import ACTION, encode_obs, shifted
from robopo.policies.parts import check_parts
from robopo.policies.predictor import Predict, predictor
from robopo.processes.base import Process, real_rows_mean
from robopo.processes.chain import run_chain
from robopo.processes.exploration import Exploration, exploration_steps, own_steps
from robopo.processes.flow import Flow, shortcut_target
from robopo.processes.kernels import StepTable, gaussian_log_prob, step_mean
from robopo.processes.transitions import LearnedNoise
from robopo.types import DenoisingChain, Moments, Observation

__all__ = ["ACTION", "ChunkPolicy", "ChunkPolicyConfig", "Reduce"]

# Bounds on elementwise log-probabilities in the published code (Ren et al. 2024, release v0.8).
PUBLISHED_LOG_PROB_RANGE = (-5.0, 2.0)


class ChunkPolicy(nn.Module):
    """Denoises a chunk [B, H, A] given the last To observations, which are encoded once per chain.

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
        check_parts(spec, net, normalizer, process.extra_cond)
        self.spec = spec
        self.config = config
        self.net = net
        self.frozen_net: nn.Module | None = None
        self.noise_net: NoiseNet | None = None
        self.process = process
        self.normalizer = normalizer
        self.exploration: Exploration | None = None
        self._steps = own_steps(process, config.sampling_std_floor, config.logprob_std_floor)
        if config.ft_steps is not None:
            self.config = replace(config, ft_steps=None)
            self.begin_finetuning(config.ft_steps)

    @property
    def ft_steps(self) -> int:
        """K', 0 before ``begin_finetuning``."""
        return self.config.ft_steps or 0

    @property
    def has_moments(self) -> bool:
        """Every step is a Gaussian."""
        return True

    @property
    def learns_std(self) -> bool:
        """Whether a network says the noise of the fine-tuned steps."""
        return self.noise_net is not None

    @property
    def ft_active(self) -> tuple[bool, ...]:
        """Which fine-tuned steps have a likelihood."""
        return self._steps.active[self.process.num_steps - self.ft_steps :]

    def trainable(self) -> list[nn.Parameter]:
        """The parameters of ``net``, and of the noise network if there is one."""
        noise = [] if self.noise_net is None else list(self.noise_net.parameters())
        return [*self.net.parameters(), *noise]

    def begin_finetuning(self, ft_steps: int, exploration: Exploration | None = None) -> None:
        """Freeze a copy of ``net`` for the first S - K' steps; ``net`` keeps the last ``ft_steps`` (K').

        0: ``net`` is never used, the policy acts as it does now. Asking again for the same K' changes nothing but the
        exploration; None leaves that as it is: the process's own noise, with the config's floors.
        Raises ConfigError when K' is not in 0..S, or differs from the one in force, or the exploration doesn't suit.
        """
        S = self.process.num_steps
        if not 0 <= ft_steps <= S:
            raise ConfigError(f"ft_steps={ft_steps}: expected 0 to the sampler's {S} steps")
        if self.config.ft_steps is not None and self.config.ft_steps != ft_steps:
            raise ConfigError(
                f"ft_steps={ft_steps}, but this policy is already fine-tuned on its last {self.config.ft_steps} steps, "
                "and its base covers the others; use that number or start from the pre-trained policy"
            )
        if exploration is not None:
            self._explore_with(exploration, ft_steps)
        if self.config.ft_steps == ft_steps:
            return
        self.config = replace(self.config, ft_steps=ft_steps)
        self.frozen_net = copy.deepcopy(self.net).requires_grad_(False).eval()

    def _explore_with(self, exploration: Exploration, ft_steps: int) -> None:
        device = self.process.timesteps.device
        self._steps = exploration_steps(self.process, exploration, ft_steps).to(device)
        self.exploration = exploration
        kernel = exploration.kernel
        self.noise_net = None
        if isinstance(kernel, LearnedNoise):
            sizes = (self.spec.cond_dim + feature_dim(self.net), self.spec.horizon, self.spec.action_dim)
            self.noise_net = NoiseNet(*sizes, low=kernel.low, high=kernel.high, hidden=kernel.hidden).to(device)

    def end_iteration(self, done: int) -> None:
        """After ``done`` iterations of fine-tuning: move the bounds of a learned noise as its schedule says."""
        if self.noise_net is not None and self.exploration is not None:
            kernel = self.exploration.kernel
            if isinstance(kernel, LearnedNoise):
                self.noise_net.set_upper_bound(kernel.upper_bound(done))

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

        What ``net``'s encoder makes of pictures [B, To, height, width, 3] comes last. Raises ShapeError naming the
        entry that is missing or has another shape.
        """
        return encode_obs(self.spec, self.normalizer, obs, self.config.obs_clip, self.net)

    # ------------------------------------------------------------------ imitation

    def bc_loss(
        self, obs: Observation, action: Tensor, generator: torch.Generator | None, pad_mask: Tensor | None = None
    ) -> Tensor:
        """Denoising or flow-matching loss of ``net`` at random levels -> scalar, with a graph.

        obs: entries [B, To, D]; action [B, H, A] physical; pad_mask [B, H] True where a row is padding. generator: of
        the policy's device; None: torch's global one. Pictures are shifted at random as the encoder's config says.
        """
        obs = shifted(self.spec, obs, self.net, generator)
        error = self.denoising_error(obs, self.normalizer.apply(ACTION, action), generator)
        return real_rows_mean(error, pad_mask)

    def denoising_error(self, obs: Observation, clean: Tensor, generator: torch.Generator | None) -> Tensor:
        """Squared error of ``net`` at random levels of clean [B, H, A] (normalised), averaged over A -> [B, H]."""
        process, cond = self.process, self.encode(obs)
        level = process.draw_levels(clean.shape[0], generator)
        noise = torch.randn(clean.shape, generator=generator, device=clean.device, dtype=clean.dtype)
        x, time = process.add_noise(clean, noise, level), process.network_time(level)
        target = process.target(clean, noise)
        if isinstance(process, Flow) and process.extra_cond:
            # A shortcut model: the first rows of the batch train big steps, the others the velocity itself.
            big = round(process.config.shortcut_share * clean.shape[0])
            coarse = shortcut_target(process, self.net, cond[:big], clean[:big], noise[:big], generator)
            fine = (x[big:], time[big:], process.finest(cond[big:]), target[big:])
            x, time, cond, target = (torch.cat(pair) for pair in zip(coarse, fine, strict=True))
        return (self.net(x, time, cond) - target).square().mean(-1)

    def velocity(self, obs: Observation, x: Tensor, t: Tensor) -> Tensor:
        """v(x, t, s) [N, H, A] of a flow at x [N, H, A] and t [N] in [0, 1] (1 is noise), with a graph.

        Raises ConfigError for a diffusion policy.
        """
        if not isinstance(self.process, Flow):
            raise ConfigError(
                f"a {self.process.kind.value} policy has no velocity: use a flow policy (policy=flow_mlp)"
            )
        return self.net(x, self.process.network_time(t), self.process.finest(self.encode(obs)))

    # ------------------------------------------------------------------ acting

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

        deterministic: a flow and DDIM add no noise after the initial latent; DDPM keeps its own std (at least 1e-3) at
        every step but the last. Otherwise explores as ``sample_chain`` does. noise [B, H, A]: initial latent, drawn if
        None. generator: of the policy's device; None: torch's global one.
        """
        if not deterministic:
            return self.sample_chain(obs, generator=generator, noise=noise)[0]
        cond = self.encode(obs)
        x = self._initial(cond, generator) if noise is None else noise
        table = self.process.evaluate_steps
        x = run_chain(
            x,
            predict=self._predictor(obs, cond, exact_tail=False),
            table=table,
            clean_clip=self.config.denoised_clip,
            noise=self._draws(table, x, generator),
            final_clip=self.config.final_action_clip,
        )
        return self.normalizer.invert(ACTION, x)

    def sample_differentiable(
        self, obs: Observation, generator: torch.Generator | None = None, noise: Tensor | None = None
    ) -> Tensor:
        """As ``act``, but normalised and with a graph through every step of ``net`` -> [B, H, A]."""
        cond = self.encode(obs)
        x = self._initial(cond, generator) if noise is None else noise
        table, cond = self.process.evaluate_steps, self.process.condition(cond)
        first = self.process.num_steps - self.ft_steps
        old, old_cond = self.frozen_net, cond
        if old is not None and first > 0 and vision_of(old) is not None:
            old_cond = self._condition_of(old, obs, cond)

        def predict(x: Tensor, k: int) -> Tensor:
            if old is not None and k < first:
                return old(x, self._time(k, x), old_cond)
            return self.net(x, self._time(k, x), cond)

        draws = self._draws(table, x, generator)
        clip = self.config.denoised_clip
        return run_chain(x, predict=predict, table=table, clean_clip=clip, noise=draws)

    @torch.no_grad()
    def sample_chain(
        self, obs: Observation, *, generator: torch.Generator | None = None, noise: Tensor | None = None
    ) -> tuple[Tensor, DenoisingChain]:
        """Explore: chunk [B, H, A] physical, and its chain of K' steps.

        Log-probabilities come from the moments that were sampled from; without fine-tuned steps the chain holds the
        action alone. noise [B, H, A]: initial latent, drawn if None.
        """
        cond, steps = self.encode(obs), self._steps
        x = self._initial(cond, generator) if noise is None else noise
        places = steps.draw_places(x.shape[0], generator)
        recorder = ChainRecorder(steps, self.ft_steps, self._reduced)
        x = run_chain(
            x,
            predict=self._predictor(obs, cond, exact_tail=True),
            table=steps.sample,
            clean_clip=self.config.denoised_clip,
            noise=self._draws(steps.sample, x, generator),
            final_clip=self.config.final_action_clip,
            record=recorder,
            coefficients=lambda k: steps.at(k, places, self._learned_std(cond, k)),
        )
        return self.normalizer.invert(ACTION, x), recorder.chain(x, places)

    # ------------------------------------------------------------------ likelihood

    def replay(self, obs: Observation, latents: Tensor) -> Tensor:
        """Log-probabilities [B, K'] of the fine-tuned steps of latents [B, K'+1, H, A], with a graph; inactive ones 0.

        One pass of B rows per step, as in ``sample_chain``: an unchanged network gives the stored numbers bit for bit.
        """
        if latents.shape[1] != self.ft_steps + 1:
            raise ShapeError(
                f"latents are {list(latents.shape)}, expected [B, {self.ft_steps + 1}, H, A]: "
                f"ft_steps={self.ft_steps} and the first input"
            )
        scores = [latents.new_zeros(latents.shape[0], 0)]
        cond = self.encode(obs)
        for i, active in enumerate(self.ft_active):
            score = latents.new_zeros(latents.shape[0])
            if active:
                score = self._reduced(latents[:, i + 1], *self._chain_moments(cond, latents, i))
            scores.append(score[:, None])
        return torch.cat(scores, dim=1)

    def rescore(self, obs: Observation, latents: Tensor) -> DenoisingChain:
        """The chain of latents [B, K'+1, H, A] under the present weights at ``obs``, every step as if it had noise."""
        cond = self.encode(obs)
        steps = [self._chain_moments(cond, latents, i) for i in range(self.ft_steps)]
        scores = [self._reduced(latents[:, i + 1], *moments) for i, moments in enumerate(steps)]
        means, stds = (torch.stack([m[part].expand_as(latents[:, 0]) for m in steps], dim=1) for part in (0, 1))
        return DenoisingChain(latents, torch.stack(scores, dim=1), means, stds)

    def net_output(self, obs: Observation, x_in: Tensor, i: Tensor) -> Tensor:
        """The network's output [N, H, A] at the fine-tuned steps i [N] of latents x_in [N, H, A], with a graph."""
        return self._output(self.encode(obs), x_in, i)

    def moments(self, obs: Observation, x_in: Tensor, out: Tensor, i: Tensor) -> Moments:
        """Mean and standard deviation of the steps i [N], given the network's output there."""
        return self._moments(self.encode(obs) if self.noise_net is not None else None, x_in, out, i)

    def step_moments(self, obs: Observation, x_in: Tensor, i: Tensor) -> Moments:
        """Mean and standard deviation of N single fine-tuned steps in one pass of ``net``, with a graph."""
        cond = self.encode(obs)
        return self._moments(cond, x_in, self._output(cond, x_in, i), i)

    def step_log_prob(self, obs: Observation, x_in: Tensor, x_out: Tensor, i: Tensor) -> Tensor:
        """Log-probability [N] of N single fine-tuned steps in one pass of ``net``, with a graph.

        obs: entries [N, To, D]; x_in, x_out [N, H, A] normalised latents; i [N] long in 0..K'-1, in any mixture.
        """
        return self._reduced(x_out, *self.step_moments(obs, x_in, i))

    def _chain_moments(self, cond: Tensor, latents: Tensor, i: int) -> Moments:
        """Of step i of every row of latents [B, K'+1, H, A]."""
        index, x_in = torch.full((latents.shape[0],), i, device=latents.device), latents[:, i]
        return self._moments(cond, x_in, self._output(cond, x_in, index), index)

    def _output(self, cond: Tensor, x_in: Tensor, i: Tensor) -> Tensor:
        return self.net(x_in, self.process.timesteps[self._k(i)], self.process.condition(cond))

    def _moments(self, cond: Tensor | None, x_in: Tensor, out: Tensor, i: Tensor) -> Moments:
        step = self._steps.score.gather(self._k(i))
        std = step.std
        if self.noise_net is not None and cond is not None:
            std = self.noise_net(cond, self.process.timesteps[self._k(i)])
        return Moments(step_mean(x_in, out, step, self.config.denoised_clip), std)

    def _k(self, i: Tensor) -> Tensor:
        """Sampler step of the fine-tuned step i."""
        return i + (self.process.num_steps - self.ft_steps)

    def _reduced(self, x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        """Log N(x; mean, std^2) over the executed rows -> [N]."""
        rows = self.spec.action_steps
        log_prob = gaussian_log_prob(x[:, :rows], mean[:, :rows], std[:, :rows])  # [N, Ta, A]
        if self.config.compat_published:
            log_prob = log_prob.clamp(*PUBLISHED_LOG_PROB_RANGE)
        return log_prob.mean((1, 2)) if self.config.reduce is Reduce.MEAN else log_prob.sum((1, 2))

    # ------------------------------------------------------------------ pieces

    def _learned_std(self, cond: Tensor, k: int) -> Tensor | None:
        if self.noise_net is None or not self._steps.learned(k):
            return None
        return self.noise_net(cond, self._time(k, cond))

    def _condition_of(self, net: nn.Module, obs: Observation, cond: Tensor) -> Tensor:
        """The process's condition of ``net``; cond: ``encode(obs)``, which serves every network without an encoder."""
        if vision_of(net) is not None:
            cond = encode_obs(self.spec, self.normalizer, obs, self.config.obs_clip, net)
        return self.process.condition(cond)

    def _predictor(self, obs: Observation, cond: Tensor, *, exact_tail: bool) -> Predict:
        return predictor(
            self.net,
            self.frozen_net,
            cond=self.process.condition(cond),
            frozen_cond=lambda net: self._condition_of(net, obs, cond),
            timesteps=self.process.timesteps,
            ft_steps=self.ft_steps,
            exact_tail=exact_tail,
        )

    def _time(self, k: int, x: Tensor) -> Tensor:
        """Network time of step k for every row of x -> [B]."""
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
