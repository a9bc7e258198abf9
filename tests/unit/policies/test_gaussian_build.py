"""Policies without a chain survive JSON."""

from __future__ import annotations

import json

import pytest
import torch

from robopo.errors import CheckpointError
from robopo.policies.config import Reduce
from robopo.policies.gaussian_build import describe, rebuild
from robopo.policies.one_step import OneStepConfig
from tests.unit.algos.off_policy_toy import make_obs as soft_obs
from tests.unit.algos.off_policy_toy import soft_actor
from tests.unit.policies.toy_one_step import SCRATCH, gaussian, gmm, make_obs, rng

SCRATCH_POLICY = OneStepConfig(ft_steps=1, squash=False, reduce=Reduce.SUM, randn_clip=None, obs_clip=10.0)


@pytest.mark.parametrize(
    ("policy", "obs"),
    [
        (gaussian(), make_obs()),
        (gaussian(SCRATCH_POLICY, SCRATCH), make_obs()),
        (gmm(OneStepConfig()), make_obs()),
        (soft_actor(), soft_obs(5, rng())),
    ],
    ids=["gaussian", "scratch", "gmm", "tanh_gaussian"],
)
def test_round_trip(policy, obs) -> None:
    again = rebuild(json.loads(json.dumps(describe(policy))))
    again.load_state_dict(policy.state_dict(), strict=True)
    assert type(again) is type(policy)
    assert again.spec == policy.spec
    assert again.config == policy.config
    assert torch.equal(again.act(obs), policy.act(obs))
    assert torch.equal(again.sample_chain(obs, generator=rng())[0], policy.sample_chain(obs, generator=rng())[0])


def test_what_is_unknown_is_refused() -> None:
    config = describe(gaussian())
    with pytest.raises(CheckpointError, match="'diffusion' is unknown"):
        rebuild(config | {"kind": "diffusion"})
    with pytest.raises(TypeError, match="squash"):
        rebuild(config | {"policy": {k: v for k, v in config["policy"].items() if k != "squash"}})
