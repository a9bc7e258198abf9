"""JAGG: the gradient of a window of denoising steps from two backward passes instead of W. arXiv 2607.17572.

The loss depends on the weights only through the network's outputs v_j = v(z_j, t_j), so its gradient is
G = sum_j J_j^T s_j with J_j = dv_j / dtheta and s_j = dL / dv_j. The s_j are elementwise (kernel, ratio, trust region)
and cost no pass of the network. If J is nearly affine along the window, then with
alpha_j = (t_j - t_0) / (t_{W-1} - t_0)

    G~ = J_0^T sum_j (1 - alpha_j) s_j + J_{W-1}^T sum_j alpha_j s_j.

Exact for W = 2, and where J is affine in (z, t) and the window's path is straight. Noise bends the path: the error
grows with the kernel's noise. In passes (forward 1, backward 2) a window costs W + 6 instead of 3 W: it pays for large
networks (transformers) and W >= 4, not for perceptrons, whose K' steps fit into one call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor
from torch.nn import functional

from robopo.algos.choices import ChainPolicy, Ratio, Samples
from robopo.algos.dppo import PerStep
from robopo.algos.stepping import minibatches, permutation
from robopo.errors import ConfigError, ShapeError
from robopo.policies.config import Reduce
from robopo.processes.kernels import gaussian_log_prob
from robopo.types import Moments, Observation, pick_rows

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Jagg:
    """Settings of the accelerator."""

    window: int = 4
    """W, consecutive denoising steps that share two backward passes; divides the fine-tuned steps K'."""
    frac: float = 1.0
    """Share of a minibatch's windows that may be approximated, the straightest first; 0 < frac <= 1."""
    min_score: float = 0.95
    """Windows whose outputs leave their chord by more (a cosine, its worst step) get the exact gradient."""
    check_every: int = 50
    """Actor steps between comparisons with the exact gradient; each costs one more pass."""
    min_cosine: float = 0.97
    """Below this cosine to the exact gradient, the accelerator switches itself off for good."""
    index_weights: bool = False
    """alpha_j = j / (W - 1), as in the published code; the paper's text weights by time. Equal on uniform grids."""

    def __post_init__(self) -> None:
        if self.window < 2:
            raise ConfigError(f"window={self.window}: expected two denoising steps at least, four to save anything")
        if not 0.0 < self.frac <= 1.0:
            raise ConfigError(f"frac={self.frac}: expected 0 < frac <= 1; set accelerator to null for no windows")
        for name in ("min_score", "min_cosine"):
            if not -1.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"{name}={getattr(self, name)}: a cosine lies in [-1, 1]")
        if self.check_every < 1:
            raise ConfigError(f"check_every={self.check_every}: expected one actor step at least")

    def build(self, policy: ChainPolicy, ratio: Ratio) -> JaggBackward:
        """The accelerator for one run. Raises ConfigError, naming both, for a ratio or a policy that it can't take."""
        if not isinstance(ratio, PerStep):
            raise ConfigError(
                f"accelerator=Jagg with ratio={type(ratio).__name__}: windows are made of single denoising steps; use "
                "ratio=PerStep, or set accelerator to null"
            )
        if not hasattr(policy, "net_output"):
            raise ConfigError(
                f"accelerator=Jagg with a {type(policy).__name__}: it needs net_output and moments, as diffusion and "
                "flow policies have them; set accelerator to null"
            )
        return JaggBackward(self, cast("OutputPolicy", policy))


class StepTimes(Protocol):
    """Where the sampler's steps lie in time."""

    timesteps: Tensor
    """The network's time of each of the sampler's S steps, [S]; the last K' are fine-tuned."""


class OutputPolicy(ChainPolicy, Protocol):
    """A policy whose steps can be taken apart: the network's output, and the Gaussian made from it."""

    @property
    def process(self) -> StepTimes: ...

    def net_output(self, obs: Observation, x_in: Tensor, i: Tensor) -> Tensor:
        """Output [N, H, A] of the network at x_in [N, H, A] and the fine-tuned steps i [N], with a graph."""
        ...

    def moments(self, obs: Observation, x_in: Tensor, out: Tensor, i: Tensor) -> Moments:
        """Moments of the steps, given that output."""
        ...


class FixedOutput:
    """A policy whose network has already answered: its steps' Gaussians are made from the answers, the rest is its own.

    Stands in for the policy while a loss is computed, so that the loss can be differentiated in the answers alone.
    """

    def __init__(self, policy: OutputPolicy, out: Tensor) -> None:
        """out: [B, H, A], for the units of the loss in their order."""
        self._policy, self._out = policy, out

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def step_moments(self, obs: Observation, x_in: Tensor, i: Tensor) -> Moments:
        """Moments of the steps i [B] from x_in [B, H, A]; the graph ends at the stored output."""
        if len(i) != len(self._out):
            raise ShapeError(f"{len(i)} steps were asked for, {len(self._out)} outputs are known: ask for all units")
        return self._policy.moments(obs, x_in, self._out, i)

    def step_log_prob(self, obs: Observation, x_in: Tensor, x_out: Tensor, i: Tensor) -> Tensor:
        """Log-prob [B] of the steps x_in -> x_out [B, H, A], reduced over the executed rows as the policy says."""
        moments, rows = self.step_moments(obs, x_in, i), self._policy.spec.action_steps
        elements = gaussian_log_prob(x_out, *moments)[:, :rows]
        return elements.mean((1, 2)) if self._policy.config.reduce is Reduce.MEAN else elements.sum((1, 2))


def chord_weights(t: Tensor, *, index_weights: bool = False) -> Tensor:
    """alpha_j = (t_j - t_0) / (t_{W-1} - t_0) of windows with times t [..., W] -> [..., W], 0 first and 1 last."""
    W = t.shape[-1]
    if index_weights:
        return (torch.arange(W, dtype=t.dtype, device=t.device) / (W - 1)).expand_as(t)
    return (t - t[..., :1]) / (t[..., -1:] - t[..., :1])


def straightness(out: Tensor, alpha: Tensor) -> Tensor:
    """Worst cosine between outputs out [G, W, H, A] and their chord, alpha [G, W] -> [G]; 1 is straight."""
    weight = alpha[..., None]
    flat = out.flatten(2)  # [G, W, H * A]
    chord = (1.0 - weight) * flat[:, :1] + weight * flat[:, -1:]
    return functional.cosine_similarity(flat, chord, dim=-1).amin(1)


def to_ends(upstream: Tensor, alpha: Tensor) -> Tensor:
    """s_a = sum (1 - alpha_j) s_j and s_b = sum alpha_j s_j of upstream [G, W, H, A], alpha [G, W] -> [G, 2, H, A]."""
    weight = torch.stack([1.0 - alpha, alpha], dim=1)  # [G, 2, W]
    return (weight @ upstream.flatten(2)).view(-1, 2, *upstream.shape[2:])


class _Windows(NamedTuple):
    """The G windows that a minibatch touches, flattened to M = G * W steps."""

    obs: dict[str, Tensor]  # entries [M, To, D]
    x_in: Tensor  # [M, H, A]
    i: Tensor  # [M]
    position: Tensor  # [B], where each unit of the minibatch lies among the M
    present: Tensor  # [G, W] bool: steps that are units of the minibatch
    alpha: Tensor  # [G, W]


class JaggBackward:
    """Runs the backward pass of an actor step. Units are pairs: decision * K' + i.

    Makes its choices on the host: the device is synchronised in every step.
    """

    def __init__(self, config: Jagg, policy: OutputPolicy) -> None:
        """Raises ConfigError when the policy's denoising steps don't divide into windows, or have no moments."""
        steps, W = policy.ft_steps, config.window
        if steps < 1 or steps % W:
            raise ConfigError(f"accelerator=Jagg(window={W}) with ft_steps={steps}: the window must divide the steps")
        if not policy.has_moments:
            raise ConfigError("accelerator=Jagg with a policy whose steps have no moments: set accelerator to null")
        if policy.config.compat_published:
            raise ConfigError("accelerator=Jagg with compat_published=true: likelihoods must not be clamped; unset one")
        self.config = config
        self.updates, self.enabled = 0, True
        self.cosine = float("nan")
        """The last comparison with the exact gradient; NaN before the first."""
        t = policy.process.timesteps[-steps:].double()
        self._alpha = chord_weights(t.view(-1, W), index_weights=config.index_weights)  # [K' / W, W]

    def minibatches(self, units: Tensor, size: int, generator: torch.Generator) -> list[Tensor]:
        """Units [M] in random minibatches of about ``size`` that keep windows whole and their steps in order."""
        W = self.config.window
        windows = torch.unique(units // W)
        order = windows[permutation(len(windows), generator, units.device)]
        kept = units.new_zeros(int(units.max()) // W * W + W if len(units) else 0, dtype=torch.bool)
        kept[units] = True
        steps = torch.arange(W, device=units.device)
        parts = minibatches(order, max(1, size // W))
        everything = [(part[:, None] * W + steps).flatten() for part in parts]
        return [part[kept[part]] for part in everything]

    def backward(
        self, policy: OutputPolicy, data: Samples, unit: Tensor, loss_of: Callable[[ChainPolicy], Tensor]
    ) -> float:
        """Add the loss's gradient to the ``grad`` of all parameters; returns the share of approximated windows.

        unit [B]: the minibatch. loss_of: the minibatch's scalar loss under the policy it is handed, which it may ask
        only for ``step_moments`` or ``step_log_prob`` of all the units, in their order. What the loss owes to other
        parameters, such as a learned noise, is exact.
        """
        if not self.enabled:
            loss_of(policy).backward()
            return 0.0
        windows = self._gather(policy, data, unit)
        with torch.no_grad():
            out = policy.net_output(windows.obs, windows.x_in, windows.i)  # [M, H, A]
        out.requires_grad_()
        loss_of(cast("ChainPolicy", FixedOutput(policy, out.index_select(0, windows.position)))).backward()
        shape = (*windows.alpha.shape, *out.shape[1:])  # [G, W, H, A]
        upstream = torch.zeros_like(out).view(shape) if out.grad is None else out.grad.view(shape)
        rows = policy.spec.action_steps
        chosen = self._route(straightness(out.detach().view(shape)[:, :, :rows], windows.alpha))
        chosen &= windows.present.sum(1) > 1  # one step costs less than two ends
        ends = to_ends(upstream, windows.alpha)
        if self.updates % self.config.check_every == 0 and not self._agrees(policy, windows, upstream, ends, chosen):
            chosen = torch.zeros_like(chosen)
        self.updates += 1
        self._through_network(policy, windows, upstream, ends, chosen)
        return float(chosen.float().mean())

    def _gather(self, policy: OutputPolicy, data: Samples, unit: Tensor) -> _Windows:
        W, K = self.config.window, policy.ft_steps
        window, inverse = torch.unique(unit // W, return_inverse=True)
        position = inverse * W + unit % W
        steps = (window[:, None] * W + torch.arange(W, device=unit.device)).flatten()  # [M]
        decision, i = steps // K, steps % K
        present = torch.zeros(len(steps), dtype=torch.bool, device=unit.device)
        present[position] = True
        x_in = data.latents[decision, i]
        alpha = self._alpha.to(x_in)[window % (K // W)]
        return _Windows(data.rows(decision), x_in, i, position, present.view(-1, W), alpha)

    def _route(self, score: Tensor) -> Tensor:
        """Which of the G windows are approximated [G] bool: the ``frac`` straightest, if straight enough."""
        chosen = torch.zeros_like(score, dtype=torch.bool)
        chosen[score.topk(int(self.config.frac * len(score))).indices] = True
        return chosen & (score >= self.config.min_score)

    def _agrees(self, policy: OutputPolicy, windows: _Windows, s: Tensor, ends: Tensor, chosen: Tensor) -> bool:
        """Compare G~ with G on the chosen windows; too far apart: switch off, and say so once."""
        if not bool(chosen.any()):
            return True
        parameters = [p for p in policy.net.parameters() if p.requires_grad]
        step = chosen.repeat_interleave(self.config.window).nonzero()[:, 0]
        out = _output(policy, windows, step)
        approximate = torch.zeros_like(s)
        approximate[:, [0, -1]] = ends
        grads = [
            torch.cat([g.flatten() for g in torch.autograd.grad(out, parameters, v, retain_graph=True)])
            for v in (approximate[chosen].flatten(0, 1), s[chosen].flatten(0, 1))
        ]
        # Without any gradient, and with one that isn't finite, there is nothing to compare.
        self.cosine = float(grads[0] @ grads[1] / (grads[0].norm() * grads[1].norm()))
        if self.cosine < self.config.min_cosine:
            self.enabled = False
            log.warning(
                "JAGG's gradient has cosine %.3f to the exact one after %d actor steps, below min_cosine=%g: the exact "
                "gradient is used from here on. Less noise in the kernel or a shorter window bring them closer.",
                self.cosine,
                self.updates,
                self.config.min_cosine,
            )
        return self.enabled

    @staticmethod
    def _through_network(policy: OutputPolicy, windows: _Windows, s: Tensor, ends: Tensor, chosen: Tensor) -> None:
        """One pass with a graph over the ends of the chosen windows and over all present steps of the others."""
        needed, gradient = windows.present.clone(), s.clone()
        needed[chosen] = False
        for column, end in ((0, 0), (-1, 1)):
            needed[:, column] |= chosen
            gradient[chosen, column] = ends[chosen, end]
        step = needed.flatten().nonzero()[:, 0]
        _output(policy, windows, step).backward(gradient.flatten(0, 1).index_select(0, step))

    def state_dict(self) -> dict[str, Any]:
        """The count of actor steps, the last comparison, and whether it still approximates."""
        return {"updates": self.updates, "enabled": self.enabled, "cosine": self.cosine}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state_dict()``."""
        self.updates, self.enabled = int(state["updates"]), bool(state["enabled"])
        self.cosine = float(state["cosine"])


def _output(policy: OutputPolicy, windows: _Windows, step: Tensor) -> Tensor:
    """Output of the network, with a graph, at some of the M steps."""
    obs = pick_rows(windows.obs, step)
    return policy.net_output(obs, windows.x_in.index_select(0, step), windows.i.index_select(0, step))
