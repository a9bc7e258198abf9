"""The policies without a denoising chain as JSON values, and back: what a checkpoint's config.json says of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from robopo.errors import CheckpointError
from robopo.nn.gaussian_mlp import GaussianMLP, GaussianMLPConfig, MixtureMLP
from robopo.nn.vision_build import VisionNetConfig
from robopo.policies.base import PolicySpec
from robopo.policies.config_json import plain, restore
from robopo.policies.gaussian import GaussianPolicy
from robopo.policies.gmm import GMMPolicy
from robopo.policies.normalizer import MinMaxNormalizer
from robopo.policies.obs_encoding import ACTION
from robopo.policies.one_step import OneStepConfig
from robopo.policies.tanh_gaussian import TanhGaussianConfig, TanhGaussianPolicy
from robopo.policies.vision import attached, condition_dim, describe_vision, restore_vision

type DirectPolicy = GaussianPolicy | GMMPolicy | TanhGaussianPolicy
"""A policy that draws its chunk at once."""

KINDS = ("gaussian", "gmm", "tanh_gaussian")
"""Values of ``kind`` in config.json that ``rebuild`` knows."""


def build_gaussian(
    spec: PolicySpec,
    net: GaussianMLPConfig,
    config: OneStepConfig,
    normalizer: MinMaxNormalizer,
    vision: VisionNetConfig | None = None,
) -> GaussianPolicy:
    """A GaussianPolicy on the CPU with fresh weights. Raises ConfigError when the parts contradict each other."""
    body = GaussianMLP(net, **_sizes(spec, vision))
    return GaussianPolicy(spec, attached(body, spec, vision), normalizer, config)


def build_gmm(
    spec: PolicySpec,
    net: GaussianMLPConfig,
    config: OneStepConfig,
    normalizer: MinMaxNormalizer,
    vision: VisionNetConfig | None = None,
) -> GMMPolicy:
    """A GMMPolicy on the CPU with fresh weights. Raises ConfigError when the parts contradict each other."""
    body = MixtureMLP(net, **_sizes(spec, vision))
    return GMMPolicy(spec, attached(body, spec, vision), normalizer, config)


def describe(policy: DirectPolicy) -> dict[str, Any]:
    """JSON values that ``rebuild`` understands: kind, spec, net and policy."""
    common: dict[str, Any] = {
        "spec": plain(policy.spec),
        "net": plain(policy.net.config),
        **describe_vision(policy.net),
    }
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
        case "gaussian" | "gmm" as kind:
            make = build_gaussian if kind == "gaussian" else build_gmm
            net, sampling = restore(GaussianMLPConfig, config["net"]), restore(OneStepConfig, config["policy"])
            return make(spec, net, sampling, normalizer, restore_vision(config))
        case "tanh_gaussian":
            return TanhGaussianPolicy(spec, normalizer, restore(TanhGaussianConfig, config["net"]))
        case unknown:
            raise CheckpointError(f"a policy of kind {unknown!r} is unknown; expected one of {', '.join(KINDS)}")


def _sizes(spec: PolicySpec, vision: VisionNetConfig | None) -> dict[str, int]:
    return {"horizon": spec.horizon, "action_dim": spec.action_dim, "cond_dim": condition_dim(spec, vision)}
