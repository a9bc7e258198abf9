"""The policies without a denoising chain as JSON values, and back: what a checkpoint's config.json says of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from robopo.errors import CheckpointError
from robopo.nn.gaussian_mlp import GaussianMLP, GaussianMLPConfig, MixtureMLP
from robopo.policies.base import PolicySpec
from robopo.policies.config_json import plain, restore
from robopo.policies.gaussian import GaussianPolicy
from robopo.policies.gmm import GMMPolicy
from robopo.policies.normalizer import MinMaxNormalizer
from robopo.policies.obs_encoding import ACTION
from robopo.policies.one_step import OneStepConfig
from robopo.policies.tanh_gaussian import TanhGaussianConfig, TanhGaussianPolicy

type DirectPolicy = GaussianPolicy | GMMPolicy | TanhGaussianPolicy
"""A policy that draws its chunk at once."""

KINDS = ("gaussian", "gmm", "tanh_gaussian")
"""Values of ``kind`` in config.json that ``rebuild`` knows."""


def build_gaussian(
    spec: PolicySpec, net: GaussianMLPConfig, config: OneStepConfig, normalizer: MinMaxNormalizer
) -> GaussianPolicy:
    """A GaussianPolicy on the CPU with fresh weights. Raises ConfigError when the parts contradict each other."""
    return GaussianPolicy(spec, GaussianMLP(net, **_sizes(spec)), normalizer, config)


def build_gmm(
    spec: PolicySpec, net: GaussianMLPConfig, config: OneStepConfig, normalizer: MinMaxNormalizer
) -> GMMPolicy:
    """A GMMPolicy on the CPU with fresh weights. Raises ConfigError when the parts contradict each other."""
    return GMMPolicy(spec, MixtureMLP(net, **_sizes(spec)), normalizer, config)


def describe(policy: DirectPolicy) -> dict[str, Any]:
    """JSON values that ``rebuild`` understands: kind, spec, net and policy."""
    common: dict[str, Any] = {"spec": plain(policy.spec), "net": plain(policy.net.config)}
    match policy:
        case GaussianPolicy():
            return {"kind": "gaussian", "policy": plain(policy.config), **common}
        case GMMPolicy():
            return {"kind": "gmm", "policy": plain(policy.config), **common}
        case TanhGaussianPolicy():
            return {"kind": "tanh_gaussian", **common}


def rebuild(config: Mapping[str, Any]) -> DirectPolicy:
    """The policy that ``config`` describes, with fresh weights and blank statistics: load the state into it.

    Entries beyond those of ``describe`` are ignored. Raises CheckpointError for an unknown kind, KeyError, TypeError or
    ValueError for settings that are missing, unknown or out of range.
    """
    spec = PolicySpec(**config["spec"])
    sizes = {**spec.obs, ACTION: spec.action_dim}
    normalizer = MinMaxNormalizer({key: (torch.zeros(n), torch.ones(n)) for key, n in sizes.items()})
    match config["kind"]:
        case "gaussian":
            return build_gaussian(
                spec, restore(GaussianMLPConfig, config["net"]), restore(OneStepConfig, config["policy"]), normalizer
            )
        case "gmm":
            return build_gmm(
                spec, restore(GaussianMLPConfig, config["net"]), restore(OneStepConfig, config["policy"]), normalizer
            )
        case "tanh_gaussian":
            return TanhGaussianPolicy(spec, normalizer, restore(TanhGaussianConfig, config["net"]))
        case unknown:
            raise CheckpointError(f"a policy of kind {unknown!r} is unknown; expected one of {', '.join(KINDS)}")


def _sizes(spec: PolicySpec) -> dict[str, int]:
    return {"horizon": spec.horizon, "action_dim": spec.action_dim, "cond_dim": spec.cond_dim}
