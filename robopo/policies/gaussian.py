"""A Gaussian policy over chunks: the baseline that diffusion policies are compared with.

Ren et al. 2024, arXiv 2409.00588, baseline "Gaussian"; trained from scratch it is the policy of PPO (Schulman et al.
2017, arXiv 1707.06347) over chunks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from robopo.nn.gaussian_mlp import GaussianMLP
from robopo.policies.obs_encoding import ACTION
from robopo.policies.one_step import OneStepPolicy
from robopo.processes.base import real_rows_mean
from robopo.processes.kernels import gaussian_log_prob
from robopo.types import DenoisingChain, Moments, Observation


class GaussianPolicy(OneStepPolicy[GaussianMLP]):
    """a ~ N(mean(s), diag(std^2)), independent over the chunk; one std per action dimension, the same in every state.

    Cloning keeps the std at ``initial_std``; fine-tuning learns it. Acting deterministically gives the mean.
    """

    @property
    def has_moments(self) -> bool:
        """A Gaussian."""
        return True

    def bc_loss(
        self, obs: Observation, action: Tensor, generator: torch.Generator | None, pad_mask: Tensor | None = None
    ) -> Tensor:
        """Mean negative log-density per number at the std ``initial_std`` -> scalar, with a graph.

        obs: entries [B, To, D]; action [B, H, A] physical; pad_mask [B, H] True where a row is padding. Draws only
        the shifts of pictures.
        """
        target = self.normalizer.apply(ACTION, action)
        mean = self.squashed(self.net(self.encode_for_cloning(obs, generator)))
        error = -gaussian_log_prob(target, mean, mean.new_tensor(self.net.config.initial_std)).mean(-1)  # [B, H]
        return real_rows_mean(error, pad_mask)

    def draw(self, cond: Tensor, *, deterministic: bool, generator: torch.Generator | None) -> DenoisingChain:
        """One chunk per row of cond [B, C], with the moments it was drawn from."""
        mean = self.squashed(self.net(cond))
        std = self.net.std().expand(1, 1, -1)
        action = mean if deterministic else torch.addcmul(mean, self.clipped_noise(mean, generator), std)
        log_prob = self.reduced(self._joint(action, mean, std))
        return DenoisingChain(
            latents=torch.stack([torch.zeros_like(action), action], dim=1),
            log_probs=log_prob[:, None],
            means=mean[:, None],
            stds=std.expand(len(mean), 1, 1, -1),
        )

    def joint_log_prob(self, cond: Tensor, action: Tensor) -> Tensor:
        """Log-density [B] of the executed rows of action [B, H, A] (normalised), with a graph."""
        return self._joint(action, self.squashed(self.net(cond)), self.net.std())

    def net_output(self, obs: Observation, x_in: Tensor, i: Tensor) -> Tensor:
        """What the network says, before squashing, [N, H, A], with a graph; x_in and i say nothing."""
        del x_in, i
        return self.net(self.encode(obs))

    def moments(self, obs: Observation, x_in: Tensor, out: Tensor, i: Tensor) -> Moments:
        """Mean and std [N, H, A] that the network's output ``out`` [N, H, A] stands for."""
        del obs, x_in, i
        mean = self.squashed(out)
        return Moments(mean, self.net.std().expand_as(mean))

    def step_moments(self, obs: Observation, x_in: Tensor, i: Tensor) -> Moments:
        """Mean and std [N, H, A] of the chunk, with a graph."""
        return self.moments(obs, x_in, self.net_output(obs, x_in, i), i)

    def _joint(self, action: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        rows = self.spec.action_steps
        return gaussian_log_prob(action[:, :rows], mean[:, :rows], std).sum((1, 2))
