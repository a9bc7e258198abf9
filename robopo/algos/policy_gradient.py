"""The on-policy update that the whole family shares: one rollout, several epochs, a critic beside the actor.

An algorithm is a choice on each axis (``choices.py``): what new and old policy are compared on (ratio), the credit of a
decision (advantage), what keeps the new policy near (trust region). This file does the rest: targets, minibatches of
the ratio's units, guarded optimiser steps, early stops, metrics, exact resume. ``dppo.py`` is the row to read first.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, Protocol, cast

import torch
from torch import Tensor, nn

from robopo.algos.choices import AdvantageEstimator, ChainPolicy, Ratio, RatioBatch, Samples, TrustRegion
from robopo.algos.gaussian_steps import check_kl, joint_factor
from robopo.algos.learning_rate import warmup_cosine
from robopo.algos.optimizers import AdamW, OptimizerChoice
from robopo.algos.policy_gradient_config import CriticBatches, NormAdv, PolicyGradientConfig, PolicyGradientMetrics
from robopo.algos.regularisers import Demonstrations, Regulariser, Units, configured
from robopo.algos.reward_scaling import RewardScaler, followed
from robopo.algos.stepping import first_nonfinite, minibatches, permutation
from robopo.algos.update_log import APPROX_KL, CHAIN_KL, ROW, UpdateLog
from robopo.errors import ConfigError, NonFiniteError, ShapeError
from robopo.losses.trust_region import clip_to_quantiles, normalize_advantage, value_loss
from robopo.types import RolloutBatch


class Accelerator(Protocol):
    """A cheaper estimate of the actor's gradient."""

    def minibatches(self, units: Tensor, size: int, generator: torch.Generator) -> Sequence[Tensor]:
        """Units [M] in random minibatches of about ``size``."""
        ...

    def backward(self, policy: Any, data: Samples, unit: Tensor, loss_of: Callable[[ChainPolicy], Tensor]) -> float:
        """Add the gradient of ``loss_of(policy)`` on the units [B]."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


@dataclasses.dataclass(slots=True)
class _Run:
    """One update: its data, and its log."""

    data: Samples
    units: Tensor  # [M] long
    decisions: Tensor | None  # [N'] long: what the critic learns from; None: all
    num_steps: int  # active denoising steps of a decision
    generator: torch.Generator
    log: UpdateLog


class PolicyGradient:
    """config -> update -> state_dict. Owns the optimisers and the reward statistics."""

    def __init__(
        self,
        policy: ChainPolicy,
        critic: nn.Module,
        config: PolicyGradientConfig,
        *,
        ratio: Ratio,
        advantage: AdvantageEstimator,
        trust_region: TrustRegion,
        optimizer: OptimizerChoice | None = None,
        regularisers: Sequence[Regulariser] = (),
        demonstrations: Demonstrations | None = None,
        accelerator: Accelerator | None = None,
    ) -> None:
        """critic: observations with entries [B, To, D] -> value [B]. regularisers: besides those that config weighs.

        Raises ConfigError where two choices, or a choice and the policy, don't fit together.
        """
        self.policy, self.critic, self.config = policy, critic, config
        self._needs_kl = trust_region.needs_divergence or config.max_chain_kl is not None
        self.ratio = _with_divergence(ratio) if self._needs_kl else ratio
        check_kl(policy, trust_region, config.max_chain_kl)
        self.ratio.check(policy)
        self.advantage, self.trust_region, self.accelerator = advantage, trust_region, accelerator
        self.regularisers = (*configured(policy, config, demonstrations), *regularisers)
        self.actor_optimizer = (optimizer or AdamW()).build(policy.trainable(), config.actor_lr)
        self.critic_optimizer = AdamW().build(critic.parameters(), config.critic_lr)
        self.reward_scaler = RewardScaler()
        self.iteration = 0
        # The policy's log-prob is a mean or a sum over Ta * A elements: factors to (joint, per dimension, joint KL).
        joint, dims = joint_factor(policy), policy.spec.action_steps * policy.spec.action_dim
        self._log_prob_factors = (joint, joint / dims, self.ratio.joint_kl_factor(policy))

    def update(
        self,
        batch: RolloutBatch,
        *,
        generator: torch.Generator,
        on_nonfinite: Callable[[str, Tensor], None] | None = None,
    ) -> PolicyGradientMetrics:
        """Learn from one iteration; generator: of the policy's device.

        The device is synchronised once, at the end, and per epoch with target_kl or max_chain_kl; more often where some
        steps are inactive, some decisions unused, or the accelerator asks.

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
        data, summary = self._targets(batch)
        run = self._begin(data, generator, actor_learns=actor_learns)
        epochs = 0
        for _ in range(c.epochs):
            epochs += 1
            self._epoch(run, actor_learns=actor_learns)
            if self._far_enough(run.log.actor):
                break
        metrics = run.log.metrics(summary)._replace(
            actor_lr=rates[0], critic_lr=rates[1], epochs=epochs, iteration=self.iteration
        )
        m = metrics
        watched = (m.actor_loss, m.actor_grad_norm, m.value_loss, m.critic_grad_norm, *m.regularisers.values())
        if not all(map(math.isfinite, watched)):
            self._raise_nonfinite(batch, run, on_nonfinite)
        self.iteration += 1
        self.policy.end_iteration(self.iteration)
        return metrics

    @torch.no_grad()
    def _targets(self, batch: RolloutBatch) -> tuple[Samples, Tensor]:
        """Targets of the iteration, flattened to decisions, and five numbers for the log."""
        c, shape = self.config, batch.reward.shape  # [T, E]
        obs = {key: value.flatten(0, 1) for key, value in batch.obs.items()}
        value = self.critic(obs)  # [N]
        next_value = self.critic({key: entry.flatten(0, 1) for key, entry in batch.next_obs.items()})
        reward, divisor = batch.reward, torch.ones_like(value[0])
        if c.scale_rewards:
            reward = self.reward_scaler(reward, batch.first, followed(batch.extras))
            divisor = self.reward_scaler.std(value)
        out = self.advantage(batch, reward, value.view(shape), next_value.view(shape))
        use = batch.extras.get("use")
        if out.use is not None:
            use = out.use if use is None else use & out.use
        advantage, returns = out.advantage.flatten(), out.returns.flatten()
        rows = slice(None) if use is None or not use.any() else use.flatten()  # fillers say nothing
        learned, target, spread = advantage[rows], returns[rows], returns[rows].var(correction=0)
        explained = torch.where(spread > 0, 1.0 - (target - value[rows]).var(correction=0) / spread, 0.0)
        summary = torch.stack([explained, value[rows].mean(), target.mean(), learned.std(correction=0), divisor])
        if c.norm_adv is NormAdv.ROLLOUT:
            advantage = (advantage - learned.mean()) / (learned.std(correction=0) + 1e-8)
        flat = {name: getattr(batch, name) for name in ("means", "stds", "active")}
        data = Samples(
            obs=obs,
            latents=batch.latents.flatten(0, 1),
            log_probs=batch.log_probs.flatten(0, 1),
            **{name: None if tensor is None else tensor.flatten(0, 1) for name, tensor in flat.items()},
            use=None if use is None else use.flatten(),
            value=value,
            advantage=advantage,
            returns=returns,
            anchors={},
        )
        return data, summary

    @torch.no_grad()
    def _begin(self, data: Samples, generator: torch.Generator, *, actor_learns: bool) -> _Run:
        """Freeze what has to be the old policy's, before any update."""
        if actor_learns:
            data = dataclasses.replace(data, anchors=self.ratio.anchor(self.policy, data, generator))
            for term in self.regularisers:
                term.begin(self.policy, data, generator)
        num_steps = data.log_probs.shape[1] if data.active is None else int(data.active.sum(1).max())
        names = [term.name for term in self.regularisers]
        return _Run(
            data=data,
            units=self.ratio.units(data),
            decisions=None if data.use is None else data.use.nonzero()[:, 0],
            num_steps=num_steps,
            generator=generator,
            log=UpdateLog(data, num_steps=num_steps, factors=self._log_prob_factors, terms=names),
        )

    def _epoch(self, run: _Run, *, actor_learns: bool) -> None:
        """One pass of the actor over the units, and of the critic over the decisions."""
        c, device, generator = self.config, run.data.value.device, run.generator
        order = run.units[permutation(len(run.units), generator, device)]  # [M]
        if actor_learns:
            parts = minibatches(order, c.batch_size)
            if self.accelerator is not None:
                parts = self.accelerator.minibatches(run.units, c.batch_size, generator)
            run.log.actor.extend(self._actor_step(run, unit) for unit in parts)
        if c.vf_coef == 0.0:
            return
        if c.critic_batches is CriticBatches.PAIRS and len(order):
            decisions, size = self.ratio.decision(run.data, order), c.batch_size
        else:
            count = len(run.data.value) if run.decisions is None else len(run.decisions)
            decisions = permutation(count, generator, device)
            decisions = decisions if run.decisions is None else run.decisions[decisions]
            size = max(1, c.batch_size // max(1, len(order) // max(1, count)))  # as many steps as the actor's
        run.log.critic.extend(self._critic_step(run.data, decision) for decision in minibatches(decisions, size))

    def _far_enough(self, actor_log: list[Tensor]) -> bool:
        """Whether the epoch's last minibatch was beyond a limit."""
        limits = {APPROX_KL: self.config.target_kl, CHAIN_KL: self.config.max_chain_kl}
        if not actor_log or all(limit is None for limit in limits.values()):
            return False
        last = actor_log[-1].tolist()
        return any(limit is not None and last[column] > limit for column, limit in limits.items())

    def _actor_step(self, run: _Run, unit: Tensor) -> Tensor:
        """One optimiser step on the units [B]; returns its log, on the device."""
        c = self.config
        advantage = run.data.advantage.index_select(0, self.ratio.decision(run.data, unit))
        # DPPO's published order: standardise over the minibatch, clip to quantiles, then weigh (discount).
        if c.norm_adv is NormAdv.MINIBATCH:
            advantage = normalize_advantage(advantage)
        advantage = clip_to_quantiles(advantage, low=c.adv_quantile_low, high=c.adv_quantile_high)
        self.actor_optimizer.zero_grad()
        log = run.data.value.new_zeros(ROW + len(self.regularisers))
        for part, adv in zip(unit.chunk(c.accumulate), advantage.chunk(c.accumulate), strict=True):
            share = len(part) / len(unit)
            log += share * self._backward(run, part, adv, share)
        norm = self.actor_optimizer.guarded_step(max_grad_norm=c.max_grad_norm)
        return torch.cat([log, norm[None]])

    def _backward(self, run: _Run, unit: Tensor, advantage: Tensor, share: float) -> Tensor:
        """Add the gradient of ``share`` times the loss of the units [B]; returns the loss's log."""
        logs: list[Tensor] = []
        steps: list[Tensor | None] = []

        def surrogate(policy: ChainPolicy) -> Tensor:
            out = self.ratio.evaluate(policy, run.data, unit)
            loss, log = self._surrogate(run, out, advantage)
            logs.append(log)
            steps.append(out.step)
            return share * loss

        if self.accelerator is None:
            loss = surrogate(self.policy)
        else:
            self.accelerator.backward(self.policy, run.data, unit, surrogate)
            loss = None
        if self.regularisers:
            at = Units(self.ratio.decision(run.data, unit), steps[0], run.generator)
            for term in self.regularisers:
                value = term.loss(self.policy, run.data, at)
                logs.append(value.detach()[None])
                weighted = share * term.coef * value
                loss = weighted if loss is None else loss + weighted
        if loss is not None:
            loss.backward()
        return torch.cat(logs)

    def _surrogate(self, run: _Run, out: RatioBatch, advantage: Tensor) -> tuple[Tensor, Tensor]:
        """Scalar loss of the units [B] with the advantages [B] of their decisions, and its log [7]."""
        if self._needs_kl and out.divergence is None:
            raise ConfigError(
                f"trust_region={type(self.trust_region).__name__} or max_chain_kl needs the KL of every unit, and "
                f"ratio={type(self.ratio).__name__} gives none; choose another of the two"
            )
        adv = advantage[:, None].expand_as(out.log_ratio)
        if out.weight is not None:
            adv = adv * out.weight
        region = self.trust_region.surrogate(out, adv, num_steps=run.num_steps)
        loss = (region.loss if out.loss_weight is None else region.loss * out.loss_weight).mean()
        return loss, run.log.row(out, adv, region, loss)

    def _critic_step(self, data: Samples, decision: Tensor) -> Tensor:
        """One optimiser step on the decisions [B]; returns [loss, gradient norm], on the device."""
        self.critic_optimizer.zero_grad()
        total = data.value.new_zeros(())
        for part in decision.chunk(self.config.accumulate):
            value, old_value = self.critic(data.rows(part)), data.value.index_select(0, part)
            returns, clip = data.returns.index_select(0, part), self.config.clip_vloss
            loss = len(part) / len(decision) * value_loss(value=value, returns=returns, old_value=old_value, clip=clip)
            (self.config.vf_coef * loss).backward()
            total += loss.detach()
        return torch.stack([total, self.critic_optimizer.guarded_step()])

    def _raise_nonfinite(
        self, batch: RolloutBatch, run: _Run, on_nonfinite: Callable[[str, Tensor], None] | None
    ) -> NoReturn:
        """Name the cause: first the batch, then the weights, the targets, and last the gradients."""
        parts: dict[str, Tensor | None] = {f"batch.obs.{key}": value for key, value in batch.obs.items()}
        parts |= {f"batch.next_obs.{key}": value for key, value in batch.next_obs.items()}
        parts |= {f"batch.{name}": getattr(batch, name) for name in ("latents", "log_probs", "reward", "means", "stds")}
        modules = {"actor": self.policy.net, "critic": self.critic}
        named = [(f"{who} {name}", p) for who, module in modules.items() for name, p in module.named_parameters()]
        known = {id(p) for _, p in named}
        extra = [p for p in self.policy.trainable() if id(p) not in known]
        named += [(f"actor's other parameter {n}", p) for n, p in enumerate(extra)]
        parts |= dict(named)
        parts |= {"value": run.data.value, "advantage": run.data.advantage}
        parts |= {f"anchor {name}": tensor for name, tensor in run.data.anchors.items()}
        parts |= {f"gradient of {name}": p.grad for name, p in named}
        name, tensor = first_nonfinite(parts) or ("a gradient of an earlier minibatch", run.data.advantage)
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
        } | ({} if self.accelerator is None else {"accelerator": self.accelerator.state_dict()})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly from ``state_dict()``, given the weights that were saved beside it."""
        self.iteration = int(state["iteration"])
        self.actor_optimizer.load_state_dict(state["actor_optimizer"])
        self.critic_optimizer.load_state_dict(state["critic_optimizer"])
        self.reward_scaler.load_state_dict(state["reward_scaler"])
        if self.accelerator is not None:
            self.accelerator.load_state_dict(state["accelerator"])


def _with_divergence(ratio: Ratio) -> Ratio:
    """The same ratio, giving its KL, where that is a setting of it."""
    if dataclasses.is_dataclass(ratio) and getattr(ratio, "divergence", None) is False:
        return cast("Ratio", dataclasses.replace(cast("Any", ratio), divergence=True))
    return ratio
