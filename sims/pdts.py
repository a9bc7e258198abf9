"""Posterior and diversity synergised task sampling (PDTS, ICML 2025, 2504.19139): train where the policy is bad.

A small neural process predicts the risk of a setting from the last batch of finished episodes. One draw of its latent
scores many random candidates (posterior sampling), and a greedy pick takes risky ones that lie apart (diversity).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import ceil
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sims.task_samplers import Objective, check_finished, checked_dim

UCB_SAMPLES = 50


class Acquisition(StrEnum):
    """How candidates are scored."""

    POSTERIOR = "posterior"
    """The risk under one draw of the latent (PDTS)."""
    UCB = "ucb"
    """Mean + 5 standard deviations of the risk over 50 draws; half of the pick is random (MPTS, PDTS's ancestor)."""


@dataclass(frozen=True, slots=True)
class PDTSConfig:
    """Settings; the defaults are the paper's where it gives one."""

    batch_size: int = 64
    """B: settings proposed at once, and finished episodes per update."""
    candidate_multiplier: float = 2.5
    """Candidates per proposed setting."""
    diversity: float = 0.0
    """γ_div: weight of the distance to the nearest setting already picked; 0 takes the B riskiest."""
    objective: Objective = Objective.RETURN
    """Risk is minus this."""
    risk_scale: float = 1.0
    """Multiplies the risk before it is learned and scored: returns of hundreds want about 1 over their spread."""
    acquisition: Acquisition = Acquisition.POSTERIOR
    """How candidates are scored."""
    kl_weight: float = 1.0
    """λ_KL: how strongly the latent's posterior holds on to the previous one."""
    learning_rate: float = 5e-3
    """Adam's."""
    updates: int = 10
    """Gradient steps per batch of finished episodes."""
    hidden: int = 32
    """Width of encoder and decoder."""
    latent: int = 10
    """Elements of z."""
    seed: int = 0
    """Decides the networks' start and every draw."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "objective", Objective(self.objective))  # YAML says plain words
        object.__setattr__(self, "acquisition", Acquisition(self.acquisition))
        if min(self.batch_size, self.updates, self.hidden, self.latent) < 1:
            raise ValueError("batch_size, updates, hidden and latent must be at least 1")
        if self.candidate_multiplier < 1:
            raise ValueError(f"candidate_multiplier={self.candidate_multiplier}: at least one candidate per setting")
        if self.learning_rate <= 0 or self.risk_scale <= 0 or self.kl_weight < 0 or self.diversity < 0:
            raise ValueError("learning_rate and risk_scale must be positive, kl_weight and diversity not negative")


class RiskPredictor(nn.Module):
    """Encoder of (setting, risk) pairs, mean-pooled to q(z); decoder of (setting, z) to risk."""

    def __init__(self, dim: int, hidden: int, latent: int) -> None:
        super().__init__()
        self.encoder = _mlp(dim + 1, hidden, hidden, depth=2)
        self.pooled = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU())
        self.mean, self.spread = nn.Linear(hidden, latent), nn.Linear(hidden, latent)
        self.decoder = _mlp(dim + latent, hidden, 1, depth=3)

    def posterior(self, params: Tensor, risk: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation [Z] of q(z | params [B, P], risk [B])."""
        pairs = torch.cat([_centred(params), risk[:, None]], dim=1)
        pooled = self.pooled(self.encoder(pairs).mean(dim=0))
        return self.mean(pooled), 0.1 + 0.9 * torch.sigmoid(self.spread(pooled))

    def risk(self, params: Tensor, z: Tensor) -> Tensor:
        """Predicted risk [S, C] of params [C, P] under each latent [S, Z]."""
        pairs = torch.cat(
            [_centred(params)[None].expand(len(z), -1, -1), z[:, None].expand(-1, len(params), -1)], dim=2
        )  # [S, C, P + Z]
        return self.decoder(pairs)[..., 0]


class PDTSSampler:
    """``ParameterSampler`` that learns; the same seed and the same history give the same proposals."""

    def __init__(self, dim: int, config: PDTSConfig | None = None) -> None:
        self.dim, self.config = checked_dim(dim), config or PDTSConfig()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.config.seed)
            self.net = RiskPredictor(dim, self.config.hidden, self.config.latent)
        self._adam = torch.optim.Adam(self.net.parameters(), lr=self.config.learning_rate)
        self._prior = (torch.zeros(self.config.latent), torch.ones(self.config.latent))
        self.iteration = 0
        """Batches learned from."""

    @property
    def batch_size(self) -> int:
        """B."""
        return self.config.batch_size

    @property
    def objective(self) -> Objective:
        """What ``update`` takes as returns."""
        return self.config.objective

    def propose(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        """[n, P], all different: the pick of ceil(2.5 n) uniform candidates."""
        candidates = rng.random((ceil(self.config.candidate_multiplier * n), self.dim))
        scores = self.scores(candidates, rng)
        if self.config.acquisition is Acquisition.POSTERIOR:
            return candidates[diverse_pick(scores, candidates, n, self.config.diversity)]
        top = diverse_pick(scores, candidates, (n + 1) // 2, self.config.diversity)
        rest = np.setdiff1d(np.arange(len(candidates)), top)
        return candidates[np.concatenate([top, rng.choice(rest, n - len(top), replace=False)])]

    def scores(self, candidates: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
        """Acquisition [C] of candidates [C, P]."""
        count = 1 if self.config.acquisition is Acquisition.POSTERIOR else UCB_SAMPLES
        noise = torch.from_numpy(rng.standard_normal((count, self.config.latent)).astype(np.float32))
        mean, std = self._prior
        with torch.no_grad():
            risk = self.net.risk(torch.from_numpy(candidates.astype(np.float32)), mean + std * noise)  # [S, C]
        score = risk[0] if count == 1 else risk.mean(dim=0) + 5.0 * risk.std(dim=0)
        return score.numpy().astype(np.float64)

    def predict(self, params: NDArray[np.float64]) -> NDArray[np.float64]:
        """Risk [C] of params [C, P] under the posterior's mean."""
        with torch.no_grad():
            risk = self.net.risk(torch.from_numpy(params.astype(np.float32)), self._prior[0][None])
        return risk[0].numpy().astype(np.float64)

    def update(self, params: NDArray[np.float64], returns: NDArray[np.float64]) -> None:
        """``updates`` steps of MSE + λ_KL KL(q ‖ previous q) on params [B, P], returns [B]; q then is the previous one.

        As in the authors' code, "previous" moves along with every gradient step, not once per batch.
        """
        check_finished(params, returns, self.dim)
        rng = np.random.Generator(np.random.Philox(key=np.array([self.config.seed, self.iteration], dtype=np.uint64)))
        noise = rng.standard_normal((self.config.updates, 1, self.config.latent)).astype(np.float32)
        inputs = torch.from_numpy(params.astype(np.float32))
        risk = torch.from_numpy((-self.config.risk_scale * returns).astype(np.float32))
        for draw in torch.from_numpy(noise):  # [1, Z]
            mean, std = self.net.posterior(inputs, risk)
            error = (self.net.risk(inputs, mean + std * draw)[0] - risk).square().mean()
            loss = error + self.config.kl_weight * gaussian_kl(mean, std, *self._prior)
            self._adam.zero_grad()
            loss.backward()
            self._adam.step()
            self._prior = (mean.detach(), std.detach())
        with torch.no_grad():  # the networks have moved since: propose from what they say now
            self._prior = self.net.posterior(inputs, risk)
        self.iteration += 1

    def state(self) -> dict[str, NDArray[Any]]:
        """See ``ParameterSampler.state``: networks, Adam's moments, the posterior, the count."""
        found: dict[str, NDArray[Any]] = {"iteration": np.array(self.iteration)}
        for name, tensor in zip(("posterior.mean", "posterior.std"), self._prior, strict=True):
            found[name] = tensor.numpy().copy()
        for name, parameter in self.net.named_parameters():
            moments = self._adam.state.get(parameter, {})
            found[f"net.{name}"] = parameter.detach().numpy().copy()
            for moment in ("exp_avg", "exp_avg_sq"):
                found[f"{moment}.{name}"] = moments.get(moment, torch.zeros_like(parameter)).numpy().copy()
        return found

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """See ``ParameterSampler.restore``."""
        self.iteration = int(state["iteration"])
        self._prior = (_tensor(state["posterior.mean"]), _tensor(state["posterior.std"]))
        steps = torch.tensor(float(self.iteration * self.config.updates))
        for name, parameter in self.net.named_parameters():
            with torch.no_grad():
                parameter.copy_(_tensor(state[f"net.{name}"]))
            self._adam.state[parameter] = {
                "step": steps.clone(),
                "exp_avg": _tensor(state[f"exp_avg.{name}"]),
                "exp_avg_sq": _tensor(state[f"exp_avg_sq.{name}"]),
            }


def diverse_pick(
    scores: NDArray[np.float64], points: NDArray[np.float64], count: int, weight: float
) -> NDArray[np.int64]:
    """Indices [count], none twice: each next one maximises ½ score + weight · distance to the nearest one picked.

    scores [C], points [C, P]. weight 0 gives the ``count`` highest scores in falling order.
    """
    if count > len(scores):
        raise ValueError(f"count={count}: only {len(scores)} candidates")
    nearest = np.zeros(len(scores))
    free = np.ones(len(scores), dtype=np.bool_)
    picked: list[int] = []
    for turn in range(count):
        gain = 0.5 * scores + weight * nearest
        best = int(np.argmax(np.where(free, gain, -np.inf)))
        distance = np.linalg.norm(points - points[best], axis=1)
        nearest = distance if turn == 0 else np.minimum(nearest, distance)
        free[best] = False
        picked.append(best)
    return np.array(picked, dtype=np.int64)


def gaussian_kl(mean: Tensor, std: Tensor, other_mean: Tensor, other_std: Tensor) -> Tensor:
    """KL(N(mean, std²) ‖ N(other_mean, other_std²)), diagonal, summed over [Z]."""
    ratio = (std / other_std).square()
    return 0.5 * (ratio + ((mean - other_mean) / other_std).square() - 1 - ratio.log()).sum()


def _centred(params: Tensor) -> Tensor:
    """[0, 1] → [-1, 1]: with inputs of one sign the networks need many times the episodes to see a bowl."""
    return 2 * params - 1


def _mlp(inputs: int, hidden: int, outputs: int, depth: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for index in range(depth):
        layers += [nn.Linear(inputs if index == 0 else hidden, hidden), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(hidden, outputs))


def _tensor(array: NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.array(array, dtype=np.float32))
