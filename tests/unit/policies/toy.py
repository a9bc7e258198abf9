"""A small diffusion policy for the tests beside."""

from __future__ import annotations

import torch
from torch import Tensor

from robopo.nn.mlp import DiffusionMLPConfig
from robopo.nn.unet1d import UNet1DConfig
from robopo.policies.base import PolicySpec
from robopo.policies.build import NetConfig, build_chunk_policy
from robopo.policies.chunk_policy import ChunkPolicy
from robopo.policies.config import ChunkPolicyConfig
from robopo.policies.normalizer import MinMaxNormalizer
from robopo.processes.base import DiffusionConfig, ProcessKind

SPEC = PolicySpec(
    obs={"state": 3, "environment_state": 2},
    action_dim=2,
    action_names=("x", "y"),
    obs_steps=2,
    horizon=4,
    action_steps=3,
    task="reach",
)
MLP = DiffusionMLPConfig(hidden=(32, 32, 32))
UNET = UNet1DConfig(dim=8, groups=4)
DDPM_20 = DiffusionConfig(num_train_steps=20)
DDIM_5 = DiffusionConfig(kind=ProcessKind.DDIM, num_train_steps=20, num_steps=5)


def make_policy(
    net: NetConfig = MLP,
    process: DiffusionConfig = DDIM_5,
    config: ChunkPolicyConfig | None = None,
    *,
    spec: PolicySpec = SPEC,
    seed: int = 0,
) -> ChunkPolicy:
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(7)
    data = {key: 3.0 * torch.randn(50, size, generator=generator) + 1.0 for key, size in spec.obs.items()}
    data["action"] = 0.2 * torch.randn(50, spec.action_dim, generator=generator)
    return build_chunk_policy(spec, net, process, config or ChunkPolicyConfig(), MinMaxNormalizer.fit(data)).eval()


def make_obs(batch: int = 5, seed: int = 1) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {k: torch.randn(batch, SPEC.obs_steps, size, generator=generator) for k, size in SPEC.obs.items()}


def rng(seed: int = 2) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
