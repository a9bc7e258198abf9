"""Diffusion Policy Policy Optimization (DPPO): Ren et al. 2024, arXiv 2409.00588.

PPO over two nested decision processes. The outer one is the robot's: one decision per action chunk, its reward summed
over the chunk. The inner one is the denoising chain that draws the chunk: step i has the state (s, x_i), the action
x_{i+1} and the Gaussian policy N(mu_theta(x_i, i, s), sigma_i^2 I). Each of the N = T * E decisions of an iteration
gives K' pairs (decision, i), i = 0 the noisiest fine-tuned step, and PPO runs on all M = N * K' of them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor, nn

from robopo.algos.dppo_config import CriticBatches, DPPOConfig, DPPOMetrics
from robopo.algos.learning_rate import warmup_cosine
from robopo.algos.reward_scaling import RewardScaler
from robopo.algos.stepping import GuardedAdamW, first_nonfinite, minibatches, permutation
from robopo.errors import ConfigError, NonFiniteError, ShapeError
from robopo.losses.gae import gae
from robopo.losses.trust_region import (
    clip_schedule,
    clip_to_quantiles,
    denoising_discount,
    kl_k3,
    normalize_advantage,
    ppo_clip_loss,
    value_loss,
)
from robopo.policies.base import PolicySpec
from robopo.policies.config import ChunkPolicyConfig, Reduce
from robopo.types import DenoisingChain, Observation, RolloutBatch


class ChainPolicy(Protocol):
    """What DPPO needs of a policy: the fine-tuned network, a frozen copy, and the likelihood of denoising steps."""

    spec: PolicySpec
    config: ChunkPolicyConfig
    net: nn.Module
    frozen_net: nn.Module | None

    @property
    def ft_steps(self) -> int:
        """K', the denoising steps that learn."""
        ...

    def step_log_prob(self, obs: Observation, x_in: Tensor, x_out: Tensor, i: Tensor) -> Tensor:
        """Log-prob [N] of x_in -> x_out [N, H, A] at the steps i [N], differentiable in ``net``."""
        ...

    def sample_chain(self, obs: Observation, *, generator: torch.Generator) -> tuple[Tensor, DenoisingChain]:
        """Sample a chunk [B, H, A] in physical units, and its chain."""
        ...


@dataclass(frozen=True, slots=True)
class _Samples:
    """A RolloutBatch flattened to N = T * E decisions, with its targets."""

    obs: dict[str, Tensor]  # entries [N, To, D]
    latents: Tensor  # [N * (K'+1), H, A]
    base_latents: Tensor | None  # the same from the pre-trained policy, for the BC term
    log_probs: Tensor  # [N * K']
    value: Tensor  # [N]
    advantage: Tensor  # [N]
    returns: Tensor  # [N]
    discount: Tensor  # [K']
    clip: Tensor  # [K']
    deviation: Tensor  # [2, K']: sums of |ratio - 1| and counts, filled during the update


class DPPO:
    """config -> update -> state_dict. Owns the optimisers and the reward statistics."""

    def __init__(self, policy: ChainPolicy, critic: nn.Module, config: DPPOConfig) -> None:
        """critic: observations with entries [B, To, D] -> value [B]."""
        self.policy, self.critic, self.config = policy, critic, config
        self.actor_optimizer = GuardedAdamW(policy.net.parameters(), lr=config.actor_lr)
        self.critic_optimizer = GuardedAdamW(critic.parameters(), lr=config.critic_lr)
        self.reward_scaler = RewardScaler()
        self.iteration = 0
        dims = float(policy.spec.action_steps * policy.spec.action_dim)
        # The policy's log-prob is a mean or a sum over Ta * A elements: factors to (joint, per dimension).
        self._log_prob_factors = (dims, 1.0) if policy.config.reduce is Reduce.MEAN else (1.0, 1.0 / dims)
        self._base = _pretrained(policy) if config.bc_coef > 0.0 else None

    def update(
        self,
        batch: RolloutBatch,
        *,
        generator: torch.Generator,
        on_nonfinite: Callable[[str, Tensor], None] | None = None,
    ) -> DPPOMetrics:
        """Learn from one iteration; generator: of the policy's device.

        The device is synchronised once, at the end, and per epoch with target_kl.

        A step whose gradient is not finite leaves weights and moments as they were, on the device; at the end
        ``on_nonfinite`` gets the name and the tensor, and NonFiniteError is raised.
        """
        c, K = self.config, batch.latents.shape[2] - 1
        if self.policy.ft_steps != K or batch.log_probs.shape[-1] != K:
            raise ShapeError(
                f"the batch has {K} denoising steps and log_probs {tuple(batch.log_probs.shape)}, the policy "
                f"fine-tunes {self.policy.ft_steps}; collect the batch with the policy that learns"
            )
        actor_learns = self.iteration >= c.critic_warmup_iterations and K > 0
        rates = self._set_learning_rates()
        data, summary = self._prepare(batch, generator, with_base=actor_learns)
        actor_log: list[Tensor] = []
        critic_log: list[Tensor] = []
        epochs = 0
        for _ in range(c.epochs):
            epochs += 1
            pairs = permutation(len(data.log_probs), generator, data.value.device)  # [M]
            if actor_learns:
                actor_log.extend(self._actor_step(data, pair) for pair in minibatches(pairs, c.batch_size))
            if c.critic_batches is CriticBatches.PAIRS and K > 0:
                decisions, size = pairs // K, c.batch_size
            else:
                decisions = permutation(len(data.value), generator, data.value.device)  # [N]
                size = max(1, c.batch_size // max(1, K))
            critic_log.extend(self._critic_step(data, decision) for decision in minibatches(decisions, size))
            if c.target_kl is not None and actor_log and float(actor_log[-1][2]) > c.target_kl:  # approx_kl
                break
        metrics = self._fetch(data, summary, actor_log, critic_log)._replace(
            actor_lr=rates[0], critic_lr=rates[1], epochs=epochs, iteration=self.iteration
        )
        watched = (
            metrics.actor_loss,
            metrics.bc_loss,
            metrics.actor_grad_norm,
            metrics.value_loss,
            metrics.critic_grad_norm,
        )
        if not all(map(math.isfinite, watched)):
            self._raise_nonfinite(batch, data, on_nonfinite)
        self.iteration += 1
        return metrics

    @torch.no_grad()
    def _prepare(self, batch: RolloutBatch, generator: torch.Generator, *, with_base: bool) -> tuple[_Samples, Tensor]:
        """Targets of the iteration, flattened, and five numbers for the log."""
        c, shape = self.config, batch.reward.shape  # [T, E]
        obs = {key: value.flatten(0, 1) for key, value in batch.obs.items()}
        value = self.critic(obs)  # [N]
        next_value = self.critic({key: entry.flatten(0, 1) for key, entry in batch.next_obs.items()})
        reward, divisor = batch.reward, torch.ones_like(value[0])
        if c.scale_rewards:
            reward = self.reward_scaler(reward, batch.first)
            divisor = self.reward_scaler.std(value)
        # Advantages belong to decisions: no value function and no GAE inside the denoising chain (DPPO, section 4).
        advantage, returns = gae(
            reward=reward,
            value=value.view(shape),
            next_value=next_value.view(shape),
            terminated=batch.terminated,
            truncated=batch.truncated,
            gamma=c.gamma,
            lam=c.gae_lambda,
            legacy=c.legacy_gae,
        )
        base = None
        if self._base is not None and with_base:
            base = self._base.sample_chain(obs, generator=generator)[1].latents.flatten(0, 1)
        steps = self.policy.ft_steps
        clip = clip_schedule(ft_steps=steps, base=c.clip_base, coef=c.clip_coef, rate=c.clip_rate)
        data = _Samples(
            obs=obs,
            latents=batch.latents.flatten(0, 2),
            base_latents=base,
            log_probs=batch.log_probs.flatten(),
            value=value,
            advantage=advantage.flatten(),
            returns=returns.flatten(),
            discount=denoising_discount(ft_steps=steps, gamma=c.gamma_denoise).to(value),
            clip=clip.to(value),
            deviation=value.new_zeros(2, steps),
        )
        spread = returns.var(correction=0)
        explained = torch.where(spread > 0, 1.0 - (returns.flatten() - value).var(correction=0) / spread, 0.0)
        return data, torch.stack([explained, value.mean(), returns.mean(), advantage.std(correction=0), divisor])

    def _actor_step(self, data: _Samples, pair: Tensor) -> Tensor:
        """One optimiser step on the pairs [B]; returns its log [8], on the device."""
        c, steps = self.config, self.policy.ft_steps
        advantage = data.advantage.index_select(0, pair // steps)
        # The published order: standardise over the minibatch, clip to quantiles, then discount.
        if c.norm_adv:
            advantage = normalize_advantage(advantage)
        advantage = clip_to_quantiles(advantage, low=c.adv_quantile_low, high=c.adv_quantile_high)
        self.actor_optimizer.zero_grad()
        log = data.value.new_zeros(7)
        for part, adv in zip(pair.chunk(c.accumulate), advantage.chunk(c.accumulate), strict=True):
            share = len(part) / len(pair)
            loss, part_log = self._actor_loss(data, part, adv)
            (share * loss).backward()
            log += share * part_log
        norm = self.actor_optimizer.guarded_step(max_grad_norm=c.max_grad_norm)
        return torch.cat([log, norm[None]])

    def _actor_loss(self, data: _Samples, pair: Tensor, advantage: Tensor) -> tuple[Tensor, Tensor]:
        """Loss of the pairs [B] with the advantages [B] of their decisions, and its log [7]."""
        decision, i = pair // self.policy.ft_steps, pair % self.policy.ft_steps
        row = pair + decision  # of latents: decision * (K'+1) + i
        obs = {key: value.index_select(0, decision) for key, value in data.obs.items()}
        x_in, x_out = data.latents.index_select(0, row), data.latents.index_select(0, row + 1)
        logp = self.policy.step_log_prob(obs, x_in, x_out, i)
        # A(s, a, i) = gamma_denoise^(K'-1-i) A(s, a): early steps decide less about the chunk (denoising discount).
        out = ppo_clip_loss(
            logp=logp,
            logp_old=data.log_probs.index_select(0, pair),
            adv=advantage * data.discount.index_select(0, i),
            clip=data.clip.index_select(0, i),
        )
        loss, bc = out.loss, torch.zeros_like(out.loss)
        if data.base_latents is not None:
            # Keep likely what the pre-trained policy would have done here: the same steps i of its own chains.
            x_in, x_out = data.base_latents.index_select(0, row), data.base_latents.index_select(0, row + 1)
            bc = -self.policy.step_log_prob(obs, x_in, x_out, i).mean()
            loss = loss + self.config.bc_coef * bc
        deviation = (out.ratio - 1.0).abs()
        data.deviation.index_add_(1, i, torch.stack([deviation, torch.ones_like(deviation)]))
        joint, per_dim = (kl_k3(factor * out.log_ratio) for factor in self._log_prob_factors)
        log = [out.loss, bc, out.approx_kl, joint, per_dim, out.clip_frac, out.ratio.mean()]
        return loss, torch.stack(log).detach()

    def _critic_step(self, data: _Samples, decision: Tensor) -> Tensor:
        """One optimiser step on the decisions [B]; returns [loss, gradient norm], on the device."""
        value = self.critic({key: entry.index_select(0, decision) for key, entry in data.obs.items()})
        loss = value_loss(
            value=value,
            returns=data.returns.index_select(0, decision),
            old_value=data.value.index_select(0, decision),
            clip=self.config.clip_vloss,
        )
        self.critic_optimizer.zero_grad()
        (self.config.vf_coef * loss).backward()
        return torch.stack([loss.detach(), self.critic_optimizer.guarded_step()])

    @staticmethod
    def _fetch(data: _Samples, summary: Tensor, actor_log: list[Tensor], critic_log: list[Tensor]) -> DPPOMetrics:
        """The one transfer to the host, in the order of the metrics' fields."""
        actor = torch.stack(actor_log).mean(0) if actor_log else data.value.new_zeros(8)
        deviation = data.deviation[0] / data.deviation[1].clamp_min(1.0)
        log = torch.cat([actor, torch.stack(critic_log).mean(0), summary, deviation]).tolist()
        named = dict(zip(DPPOMetrics._fields[: len(log) - len(deviation)], log, strict=False))
        return DPPOMetrics(**named, ratio_deviation=tuple(log[len(named) :]))

    def _raise_nonfinite(
        self, batch: RolloutBatch, data: _Samples, on_nonfinite: Callable[[str, Tensor], None] | None
    ) -> NoReturn:
        """Name the cause: first the batch, then the weights, the targets, and last the gradients."""
        parts: dict[str, Tensor | None] = {f"batch.obs.{key}": value for key, value in batch.obs.items()}
        parts |= {f"batch.next_obs.{key}": value for key, value in batch.next_obs.items()}
        parts |= {f"batch.{name}": getattr(batch, name) for name in ("latents", "log_probs", "reward")}
        modules = {"actor": self.policy.net, "critic": self.critic}
        named = [(f"{who} {name}", p) for who, module in modules.items() for name, p in module.named_parameters()]
        parts |= dict(named)
        parts |= {"value": data.value, "advantage": data.advantage, "base latents": data.base_latents}
        parts |= {f"gradient of {name}": p.grad for name, p in named}
        name, tensor = first_nonfinite(parts) or ("a gradient of an earlier minibatch", data.advantage)
        if on_nonfinite is not None:
            on_nonfinite(name, tensor)
        raise NonFiniteError(f"{name} is NaN or infinite at iteration {self.iteration}; such steps were skipped")

    def _set_learning_rates(self) -> tuple[float, float]:
        """Rates (actor, critic) of this iteration; the actor's clock starts when its learning does."""
        c = self.config
        rates: list[float] = []
        for optimizer, high, low, start in (
            (self.actor_optimizer, c.actor_lr, c.actor_lr_min, c.critic_warmup_iterations),
            (self.critic_optimizer, c.critic_lr, c.critic_lr_min, 0),
        ):
            step, floor = max(0, self.iteration - start), high if low is None else low
            rate = warmup_cosine(step, low=floor, high=high, warmup=c.lr_warmup_iterations, cycle=c.lr_cycle_iterations)
            optimizer.set_lr(rate)
            rates.append(rate)
        return rates[0], rates[1]

    def state_dict(self) -> dict[str, Any]:
        """Everything but the weights of policy and critic."""
        return {
            "iteration": self.iteration,
            "actor_optimizer": self.actor_optimizer.state_dict(),
            "critic_optimizer": self.critic_optimizer.state_dict(),
            "reward_scaler": self.reward_scaler.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly from ``state_dict()``, given the weights that were saved beside it."""
        self.iteration = int(state["iteration"])
        self.actor_optimizer.load_state_dict(state["actor_optimizer"])
        self.critic_optimizer.load_state_dict(state["critic_optimizer"])
        self.reward_scaler.load_state_dict(state["reward_scaler"])


def _pretrained(policy: ChainPolicy) -> ChainPolicy:
    """A copy of the policy whose every step is the frozen network's."""
    base = copy.deepcopy(policy)
    if base.frozen_net is None:
        raise ConfigError("bc_coef > 0 needs the pre-trained network: call policy.begin_finetuning(...) first")
    base.net.load_state_dict(base.frozen_net.state_dict())
    return base
