"""Q(s, a) over action chunks, several heads at once.

Twin heads: Fujimoto et al. 2018 (TD3), arXiv 1802.09477. Many heads with LayerNorm: Ball et al. 2023 (RLPD), arXiv
2302.02948. Sizes: Ren et al. 2024 (DPPO), arXiv 2409.00588, appendix: 3 x 256, Mish.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from robopo.critics.value import OBS_CLIP, Normalizer
from robopo.errors import ConfigError, ShapeError, did_you_mean
from robopo.nn.activation import Activation
from robopo.types import Observation


@dataclass(frozen=True, slots=True)
class QConfig:
    """Sizes of a QEnsemble."""

    heads: int = 2
    """Independent Q functions; 2 for clipped double Q."""
    hidden: tuple[int, ...] = (256, 256, 256)
    """Widths of each head's perceptron, one or more."""
    layer_norm: bool = False
    """LayerNorm after every hidden linear: bounds what unseen actions can be worth (RLPD)."""
    activation: Activation = Activation.MISH
    """Nonlinearity."""

    def __post_init__(self) -> None:
        if self.heads < 1:
            raise ConfigError(f"heads={self.heads}: at least 1 is needed")
        object.__setattr__(self, "hidden", tuple(int(width) for width in self.hidden))
        if not self.hidden or any(width < 1 for width in self.hidden):
            raise ConfigError(f"hidden={self.hidden}: expected one or more positive widths")


class QEnsemble(nn.Module):
    """Heads with separate weights, evaluated together by batched matrix products.

    Observations are normalised and bounded as in ``ValueNet``. Actions are normalised chunks, of which only the Ta
    executed rows are read: what follows in a chunk never runs and can't have a value.
    """

    def __init__(
        self,
        obs: Mapping[str, int],
        obs_steps: int,
        action_steps: int,
        action_dim: int,
        config: QConfig | None = None,
        normalizer: Normalizer | None = None,
    ) -> None:
        """obs: name -> D, read in sorted order. normalizer: the policy's; None takes observations as they are."""
        super().__init__()
        if not obs or min(obs_steps, action_steps, action_dim) < 1:
            raise ConfigError(
                f"obs={dict(obs)}, obs_steps={obs_steps}, action_steps={action_steps}, action_dim={action_dim}: "
                "expected at least one observation, and sizes of at least 1"
            )
        self.config = QConfig() if config is None else config
        self.obs, self.obs_steps = dict(sorted(obs.items())), obs_steps
        self.action_steps, self.action_dim = action_steps, action_dim
        self.normalizer = normalizer
        c = self.config
        sizes = (obs_steps * sum(self.obs.values()) + action_steps * action_dim, *c.hidden, 1)
        self.linears = nn.ModuleList(_Linears(c.heads, fan_in, fan_out) for fan_in, fan_out in pairwise(sizes))
        self.norms = nn.ModuleList(_Norms(c.heads, width) for width in c.hidden if c.layer_norm)
        self.activation = c.activation.build()

    def forward(self, obs: Observation, action: Tensor) -> Tensor:
        """Entries [B, To, D] in physical units and normalised chunks [B, H, A] -> [heads, B]."""
        return self.score(self.encode(obs), action)

    def each_of(self, obs: Observation, actions: Tensor) -> Tensor:
        """M chunks for each observation: entries [B, To, D], actions [M, B, H, A] -> [heads, M, B]."""
        M, B = actions.shape[:2]
        cond = self.encode(obs).expand(M, -1, -1).flatten(0, 1)
        return self.score(cond, actions.flatten(0, 1)).unflatten(1, (M, B))

    def encode(self, obs: Observation) -> Tensor:
        """Entries [B, To, D] -> condition [B, C], normalised; raises ShapeError naming a wrong entry."""
        return torch.cat([self._entry(obs, key, size).flatten(1) for key, size in self.obs.items()], dim=1)

    def score(self, cond: Tensor, action: Tensor) -> Tensor:
        """Q of encoded observations [B, C] and normalised chunks [B, H, A] -> [heads, B]."""
        if action.ndim != 3 or action.shape[1] < self.action_steps or action.shape[2] != self.action_dim:
            raise ShapeError(
                f"actions are {list(action.shape)}, expected [B, {self.action_steps} rows or more, {self.action_dim}]"
            )
        x = torch.cat([cond, action[:, : self.action_steps].flatten(1)], dim=1)
        x = x.expand(self.config.heads, -1, -1)  # [heads, B, in]
        last = len(self.linears) - 1
        for n, linear in enumerate(self.linears):
            x = linear(x)
            if n < last:
                x = self.activation(self.norms[n](x) if self.config.layer_norm else x)
        return x.squeeze(-1)

    def _entry(self, obs: Observation, key: str, size: int) -> Tensor:
        if key not in obs:
            raise ShapeError(f"observation {key!r} is missing{did_you_mean(key, obs)}")
        x = obs[key]
        if x.shape[1:] != (self.obs_steps, size):
            raise ShapeError(f"observation {key!r} is {tuple(x.shape)}, expected [B, {self.obs_steps}, {size}]")
        return x if self.normalizer is None else self.normalizer.apply(key, x).clamp(-OBS_CLIP, OBS_CLIP)


class _Linears(nn.Module):
    """One linear per head, with torch's own initialisation."""

    def __init__(self, heads: int, fan_in: int, fan_out: int) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(fan_in)
        self.weight = nn.Parameter(torch.empty(heads, fan_in, fan_out).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(heads, 1, fan_out).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """[heads, B, in] -> [heads, B, out]."""
        return torch.baddbmm(self.bias, x, self.weight)


class _Norms(nn.Module):
    """One LayerNorm per head."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.gain, self.bias = nn.Parameter(torch.ones(heads, 1, width)), nn.Parameter(torch.zeros(heads, 1, width))

    def forward(self, x: Tensor) -> Tensor:
        """[heads, B, width] -> the same."""
        return torch.addcmul(self.bias, functional.layer_norm(x, x.shape[-1:]), self.gain)
