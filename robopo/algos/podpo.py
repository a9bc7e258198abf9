"""Policy optimisation of a drifting model (PODPO): arXiv 2604.16519. Experimental.

A one-step generator x = f(e, s) has no likelihood, so there is no ratio and no clip: the chunks that did better than
the critic expected are the positives of a drifting model (``losses/drift.py``), weighted by their advantage; those that
did worse are ignored. Continuous states have one action each, so the positives of a state are those of the states near
it in the minibatch, weighted by a kernel over normalised observations; so are the generated samples that repel. The
paper's exact weighting, its bandwidths and its results were not available when this was written: the two kernels and
the advantage weight are ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, Protocol

import torch
from torch import Tensor, nn

from robopo.algos.reward_scaling import RewardScaler
from robopo.algos.stepping import GuardedAdamW, first_nonfinite, minibatches, permutation
from robopo.errors import ConfigError, NonFiniteError, ShapeError
from robopo.losses.drift import DriftKernel, drift_field, drift_loss, rms_distance
from robopo.losses.gae import gae
from robopo.losses.trust_region import value_loss
from robopo.policies.base import PolicySpec
from robopo.types import Observation, RolloutBatch


@dataclass(frozen=True, slots=True)
class PODPOConfig:
    """No published values: starting points, to be tuned for each task."""

    experimental: bool = False
    """Must be set to true: see the error that says why."""
    kernel: DriftKernel = DriftKernel.LAPLACIAN
    """How the pull between chunks falls with their distance."""
    bandwidth: float = 0.3
    """Of that kernel, in normalised action units per number (root mean square over the executed rows)."""
    state_bandwidth: float = 0.1
    """Of the Gaussian kernel between observations, in normalised units per number; larger mixes more states."""
    max_weight: float = 3.0
    """Advantages, in standard deviations of the iteration, count as at most this."""
    gamma: float = 0.99
    """Discount per decision (not per control step), in [0, 1]."""
    gae_lambda: float = 0.95
    """In [0, 1]; 0 is the TD error, 1 the Monte-Carlo return."""
    actor_lr: float = 1e-5
    """Learning rate of the generator; nothing but this and ``epochs`` bounds how far it moves."""
    critic_lr: float = 1e-3
    """Learning rate of the critic."""
    epochs: int = 5
    """Passes over the batch per iteration."""
    batch_size: int = 512
    """Decisions per optimiser step; all pairs of a minibatch are compared, and 64 positives in it are few."""
    critic_warmup_iterations: int = 5
    """First iterations in which the critic alone learns: what is positive depends on it."""
    max_grad_norm: float | None = 1.0
    """Clips the actor's gradient; null: off."""
    scale_rewards: bool = True
    """Divide rewards by the running spread of returns (RewardScaler)."""

    def __post_init__(self) -> None:
        for name in ("bandwidth", "state_bandwidth", "max_weight", "actor_lr", "critic_lr"):
            if not getattr(self, name) > 0.0:
                raise ConfigError(f"{name}={getattr(self, name)}: must be positive")
        for name in ("gamma", "gae_lambda"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"{name}={getattr(self, name)}: expected a number in [0, 1]")
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: expected 1 or more")
        if self.critic_warmup_iterations < 0:
            raise ConfigError(f"critic_warmup_iterations={self.critic_warmup_iterations}: expected 0 or more")
        if self.max_grad_norm is not None and self.max_grad_norm <= 0.0:
            raise ConfigError(f"max_grad_norm={self.max_grad_norm}: must be positive, or null")


class StepCount(Protocol):
    """The sampler."""

    num_steps: int


class OneStepGenerator(Protocol):
    """A policy that makes a chunk from noise in one pass: a flow with a single step, x = e - v(e, 1)."""

    spec: PolicySpec
    net: nn.Module
    frozen_net: nn.Module | None

    @property
    def ft_steps(self) -> int:
        """1 while its step learns; 0 also before fine-tuning has begun."""
        ...

    @property
    def process(self) -> StepCount: ...

    def encode(self, obs: Observation) -> Tensor:
        """Normalised observations [B, C]."""
        ...

    def sample_differentiable(self, obs: Observation, generator: torch.Generator | None = None) -> Tensor:
        """Normalised chunks [B, H, A] with a graph to ``net``."""
        ...


class PODPOMetrics(NamedTuple):
    """Means over the minibatches of an iteration, or over its decisions where marked (d)."""

    drift_loss: float
    drift_rms: float
    """How far samples are asked to move, in normalised action units per number."""
    drifting: float
    """Share of the generated samples with a positive in reach."""
    neighbours: float
    """Effective number of positives that a sample sees through the state kernel; near 1 is plain regression."""
    actor_grad_norm: float
    value_loss: float
    critic_grad_norm: float
    positives: float
    """(d) Share of the decisions with a positive advantage."""
    explained_variance: float
    """(d) Of the returns by the values before the update; 0 when the returns are constant."""
    value_mean: float
    """(d)"""
    return_mean: float
    """(d)"""
    advantage_std: float
    """(d)"""
    reward_divisor: float
    """What the reward scaler divided by; 1 when it is off."""
    iteration: int = 0


@dataclass(frozen=True, slots=True)
class _Samples:
    """A RolloutBatch flattened to N = T * E decisions."""

    obs: dict[str, Tensor]  # entries [N, To, D]
    state: Tensor  # [N, C], normalised
    action: Tensor  # [N, Ta * A], executed, normalised
    weight: Tensor  # [N], 0 where the advantage isn't positive
    value: Tensor  # [N], before the update
    returns: Tensor  # [N]

    def rows(self, decision: Tensor) -> dict[str, Tensor]:
        return {key: entry.index_select(0, decision) for key, entry in self.obs.items()}


class PODPO:
    """config -> update -> state_dict. Owns the optimisers and the reward statistics."""

    def __init__(self, policy: OneStepGenerator, critic: nn.Module, config: PODPOConfig) -> None:
        """critic: observations with entries [B, To, D] -> value [B]. Raises ConfigError for a policy of several steps,
        and unless ``experimental`` is set.
        """
        if not config.experimental:
            raise ConfigError(
                "algo=podpo is experimental: the paper's weights, bandwidths and benchmark tables were not available, "
                "nothing bounds how far an update moves the policy, and its results on robots are unknown. Set "
                "algo.experimental=true to run it all the same, or use algo=flow_dppo"
            )
        if policy.process.num_steps != 1:
            raise ConfigError(
                f"algo=podpo with policy.process.num_steps={policy.process.num_steps}: a drifting model makes its "
                "chunk in one step; pre-train and fine-tune a flow with num_steps=1"
            )
        if policy.frozen_net is not None and policy.ft_steps != 1:
            raise ConfigError("algo=podpo with finetune.ft_steps=0: the generator's one step must learn; set it to 1")
        self.policy, self.critic, self.config = policy, critic, config
        self.actor_optimizer = GuardedAdamW(policy.net.parameters(), lr=config.actor_lr)
        self.critic_optimizer = GuardedAdamW(critic.parameters(), lr=config.critic_lr)
        self.reward_scaler = RewardScaler()
        self.iteration = 0

    def update(
        self,
        batch: RolloutBatch,
        *,
        generator: torch.Generator,
        on_nonfinite: Callable[[str, Tensor], None] | None = None,
    ) -> PODPOMetrics:
        """Learn from one iteration; generator: of the policy's device. The device is synchronised once, at the end.

        A step whose gradient is not finite leaves weights and moments as they were; at the end ``on_nonfinite`` gets
        the name and the tensor, and NonFiniteError is raised. Raises ShapeError when the batch isn't the policy's.
        """
        spec, c = self.policy.spec, self.config
        if batch.latents.shape[3:] != (spec.horizon, spec.action_dim):
            raise ShapeError(
                f"the batch's latents are {tuple(batch.latents.shape)}, expected [T, E, K'+1, {spec.horizon}, "
                f"{spec.action_dim}]; collect the batch with the policy that learns"
            )
        data, summary = self._prepare(batch)
        actor_learns = self.iteration >= c.critic_warmup_iterations
        actor_log: list[Tensor] = []
        critic_log: list[Tensor] = []
        for _ in range(c.epochs):
            order = permutation(len(data.value), generator, data.value.device)  # [N]
            for decision in minibatches(order, c.batch_size):
                if actor_learns:
                    actor_log.append(self._actor_step(data, decision, generator))
                critic_log.append(self._critic_step(data, decision))
        actor = torch.stack(actor_log).mean(0) if actor_log else data.value.new_zeros(5)
        numbers = torch.cat([actor, torch.stack(critic_log).mean(0), summary]).tolist()
        metrics = PODPOMetrics(*numbers, iteration=self.iteration)
        watched = (metrics.drift_loss, metrics.actor_grad_norm, metrics.value_loss, metrics.critic_grad_norm)
        if not all(map(math.isfinite, watched)):
            self._raise_nonfinite(batch, data, on_nonfinite)
        self.iteration += 1
        return metrics

    @torch.no_grad()
    def _prepare(self, batch: RolloutBatch) -> tuple[_Samples, Tensor]:
        """The iteration, flattened, with its weights and targets, and six numbers for the log."""
        c, shape = self.config, batch.reward.shape  # [T, E]
        obs = {key: value.flatten(0, 1) for key, value in batch.obs.items()}
        value = self.critic(obs)  # [N]
        next_value = self.critic({key: entry.flatten(0, 1) for key, entry in batch.next_obs.items()})
        reward, divisor = batch.reward, torch.ones_like(value[0])
        if c.scale_rewards:
            reward = self.reward_scaler(reward, batch.first)
            divisor = self.reward_scaler.std(value)
        out = gae(
            reward=reward,
            value=value.view(shape),
            next_value=next_value.view(shape),
            terminated=batch.terminated,
            truncated=batch.truncated,
            gamma=c.gamma,
            lam=c.gae_lambda,
        )
        advantage, returns = out.advantage.flatten(), out.returns.flatten()
        spread = advantage.std(correction=0)
        # Not centred: good means better than the critic expected, not better than the batch.
        weight = (advantage / (spread + 1e-8)).clamp(0.0, c.max_weight)
        if (use := batch.extras.get("use")) is not None:
            weight = weight * use.flatten()
        executed = batch.latents[:, :, -1, : self.policy.spec.action_steps]  # [T, E, Ta, A]
        data = _Samples(obs, self.policy.encode(obs), executed.flatten(2).flatten(0, 1), weight, value, returns)
        variance = returns.var(correction=0)
        explained = torch.where(variance > 0, 1.0 - (returns - value).var(correction=0) / variance, 0.0)
        positives = (weight > 0).to(value.dtype).mean()
        return data, torch.stack([positives, explained, value.mean(), returns.mean(), spread, divisor])

    def _actor_step(self, data: _Samples, decision: Tensor, generator: torch.Generator) -> Tensor:
        """One optimiser step on the decisions [B]; returns its log [5], on the device."""
        c = self.config
        chunk = self.policy.sample_differentiable(data.rows(decision), generator)
        x = chunk[:, : self.policy.spec.action_steps].flatten(1)  # [B, Ta * A]
        state = data.state.index_select(0, decision)
        near = DriftKernel.GAUSSIAN.log(rms_distance(state, state), c.state_bandwidth).exp()  # [B, B]
        weight = near * data.weight.index_select(0, decision)
        field, some = drift_field(
            x=x.detach(),
            positive=data.action.index_select(0, decision),
            positive_weight=weight,
            negative_weight=near,
            kernel=c.kernel,
            bandwidth=c.bandwidth,
        )
        out = drift_loss(x=x, field=field, some=some)
        self.actor_optimizer.zero_grad()
        out.loss.backward()
        norm = self.actor_optimizer.guarded_step(max_grad_norm=c.max_grad_norm)
        # (sum w)^2 / sum w^2, the number of equal weights that would be as uneven.
        effective = weight.sum(1).square() / weight.square().sum(1).clamp(min=1e-12)
        log = [out.loss.detach(), out.field_rms, out.rows / len(x), effective.mean(), norm]
        return torch.stack(log)

    def _critic_step(self, data: _Samples, decision: Tensor) -> Tensor:
        """One optimiser step on the decisions [B]; returns [loss, gradient norm], on the device."""
        value = self.critic(data.rows(decision))
        loss = value_loss(value=value, returns=data.returns.index_select(0, decision))
        self.critic_optimizer.zero_grad()
        loss.backward()
        return torch.stack([loss.detach(), self.critic_optimizer.guarded_step()])

    def _raise_nonfinite(
        self, batch: RolloutBatch, data: _Samples, on_nonfinite: Callable[[str, Tensor], None] | None
    ) -> NoReturn:
        """Name the cause: first the batch, then the weights, the targets, and last the gradients."""
        parts: dict[str, Tensor | None] = {f"batch.obs.{key}": value for key, value in batch.obs.items()}
        parts |= {f"batch.next_obs.{key}": value for key, value in batch.next_obs.items()}
        parts |= {f"batch.{name}": getattr(batch, name) for name in ("latents", "reward")}
        modules = {"actor": self.policy.net, "critic": self.critic}
        named = [(f"{who} {name}", p) for who, module in modules.items() for name, p in module.named_parameters()]
        parts |= dict(named)
        parts |= {"value": data.value, "weight": data.weight, "returns": data.returns}
        parts |= {f"gradient of {name}": p.grad for name, p in named}
        name, tensor = first_nonfinite(parts) or ("a gradient of an earlier minibatch", data.weight)
        if on_nonfinite is not None:
            on_nonfinite(name, tensor)
        raise NonFiniteError(f"{name} is NaN or infinite at iteration {self.iteration}; such steps were skipped")

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
