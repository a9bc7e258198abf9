"""A mixture of Gaussians over chunks: the baseline that can hold several ways of doing a task.

Ren et al. 2024, arXiv 2409.00588, baseline "GMM". The mixture is over the whole chunk: one mode is drawn per decision.
The published code clamps the joint log-density of a chunk, a sum over Ta * A numbers, at 2. With a std of .1 the joint
log-density of 28 numbers averages 23, so the clamp blocks every gradient. Nothing is clamped here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from robopo.errors import ConfigError
from robopo.nn.gaussian_mlp import Mixture, MixtureMLP
from robopo.policies.obs_encoding import ACTION
from robopo.policies.one_step import OneStepPolicy
from robopo.processes.kernels import gaussian_log_prob
from robopo.types import DenoisingChain, Moments, Observation


class GMMPolicy(OneStepPolicy[MixtureMLP]):
    """a ~ sum_m w_m(s) N(mean_m(s), diag(std_m^2)), M modes over the whole chunk.

    Cloning keeps every std at ``initial_std``; fine-tuning learns one per mode and action dimension. Acting
    deterministically gives the mean of the most probable mode. A mixture has no moments: KLs are not available.
    """

    @property
    def has_moments(self) -> bool:
        """Not a Gaussian."""
        return False

    def step_moments(self, obs: Observation, x_in: Tensor, i: Tensor) -> Moments:  # noqa: ARG002
        """A mixture has none: ConfigError; ask ``has_moments`` first."""
        raise ConfigError("a GMMPolicy has no Gaussian moments: use ratio=PerStep without a KL and trust_region=Clip")

    def bc_loss(
        self, obs: Observation, action: Tensor, generator: torch.Generator | None, pad_mask: Tensor | None = None
    ) -> Tensor:
        """Negative joint log-density of the chunk's real rows per number, at the std ``initial_std`` -> scalar.

        obs: entries [B, To, D]; action [B, H, A] physical; pad_mask [B, H] True where a row is padding: a row that is
        not there is integrated out. Draws only the shifts of pictures.
        """
        target = self.normalizer.apply(ACTION, action)
        B, H, A = target.shape
        real = target.new_ones(B, H) if pad_mask is None else (~pad_mask).to(target.dtype)
        std = target.new_tensor(self.net.config.initial_std)
        joint = self._joint(self.net(self.encode_for_cloning(obs, generator)), target, std, real)
        return -joint.sum() / (real.sum() * A).clamp(min=1.0)

    def draw(self, cond: Tensor, *, deterministic: bool, generator: torch.Generator | None) -> DenoisingChain:
        """One chunk per row of cond [B, C]."""
        mixture = self.net(cond)
        logits, out = mixture
        if deterministic:
            mode = logits.argmax(1)
        else:
            mode = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
        mean = self.squashed(out[torch.arange(len(mode), device=mode.device), mode])  # [B, H, A]
        action = mean
        if not deterministic:
            action = torch.addcmul(mean, self.clipped_noise(mean, generator), self.net.std()[mode][:, None])
        return DenoisingChain(
            latents=torch.stack([torch.zeros_like(action), action], dim=1),
            log_probs=self.reduced(self._executed(mixture, action))[:, None],
        )

    def joint_log_prob(self, cond: Tensor, action: Tensor) -> Tensor:
        """Log-density [B] of the executed rows of action [B, H, A] (normalised), with a graph."""
        return self._executed(self.net(cond), action)

    def _executed(self, mixture: Mixture, action: Tensor) -> Tensor:
        executed = torch.arange(self.spec.horizon, device=action.device) < self.spec.action_steps
        return self._joint(mixture, action, self.net.std()[:, None], executed.to(action.dtype).expand(len(action), -1))

    def _joint(self, mixture: Mixture, action: Tensor, std: Tensor, rows: Tensor) -> Tensor:
        """Log-density [B] of the rows [B, H] (1: counts) of action [B, H, A]; std broadcasts to [B, M, H, A].

        Given its mode a chunk's rows are independent, so leaving some out is the marginal density of the others.
        """
        logits, out = mixture
        log_prob = gaussian_log_prob(action[:, None], self.squashed(out), std).sum(-1)  # [B, M, H]
        return torch.logsumexp(logits.log_softmax(1) + (log_prob * rows[:, None]).sum(-1), dim=1)
