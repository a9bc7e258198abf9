"""Whether a network and a normaliser are of the sizes that a policy's spec says."""

from __future__ import annotations

from torch import nn

from robopo.errors import ConfigError
from robopo.nn.vision import feature_dim, vision_of
from robopo.policies.base import PolicySpec
from robopo.policies.normalizer import MinMaxNormalizer
from robopo.policies.obs_encoding import ACTION


def check_parts(spec: PolicySpec, net: nn.Module, normalizer: MinMaxNormalizer, extra_cond: int = 0) -> None:
    """Raise ConfigError unless they are; a network that names no sizes is taken at its word.

    extra_cond: numbers that the process appends to the network's condition.
    """
    for key, size in (*spec.obs.items(), (ACTION, spec.action_dim)):
        found = normalizer.bounds(key)[0].shape[0]
        if found != size:
            raise ConfigError(f"the normaliser knows {found} numbers of {key!r}, the spec says {size}")
    vision = vision_of(net)
    seen = {} if vision is None else vision.images
    if seen != dict(spec.images):
        raise ConfigError(
            f"the network's encoder sees {seen or 'no pictures'}, the spec says {dict(spec.images) or 'none'}; "
            "policies with pictures are made with policy.vision, such as policy=diffusion_vit"
        )
    sizes = tuple(getattr(net, name, None) for name in ("horizon", "action_dim", "cond_dim"))
    expected = (spec.horizon, spec.action_dim, spec.cond_dim + feature_dim(net) + extra_cond)
    if sizes not in ((None, None, None), expected):
        raise ConfigError(
            f"the network is built for (horizon, action_dim, cond_dim) = {sizes}, the spec says {expected}"
        )
