"""How the commands join the parts."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from robopo.algos.dppo import Clip, PerStep
from robopo.algos.gae_advantage import GAE
from robopo.algos.optimizers import AdamW
from robopo.algos.policy_gradient_config import NormAdv, PolicyGradientConfig
from robopo.cli.configs import groups, load_config, to_object
from robopo.cli.finetuning import Choices, algorithm_choices, for_finetuning
from robopo.cli.schema import TRAIN, FinetuneConfig
from robopo.errors import ConfigError
from robopo.nn.mlp import DiffusionMLPConfig
from robopo.policies.base import PolicySpec
from robopo.policies.build import build_chunk_policy
from robopo.policies.chunk_policy import ChunkPolicy
from robopo.policies.config import ChunkPolicyConfig, Reduce
from robopo.policies.normalizer import MinMaxNormalizer
from robopo.processes.base import DiffusionConfig


def tiny_policy() -> ChunkPolicy:
    spec = PolicySpec(
        obs={"state": 2}, action_dim=1, action_names=("a",), obs_steps=1, horizon=2, action_steps=2, control_hz=20.0,
        action_mode="joint_delta", task="reach",
    )  # fmt: skip
    normalizer = MinMaxNormalizer({"state": (torch.zeros(2), torch.ones(2)), "action": (torch.zeros(1), torch.ones(1))})
    net, process = DiffusionMLPConfig(hidden=(8, 8, 8)), DiffusionConfig(num_train_steps=4)
    return build_chunk_policy(spec, net, process, ChunkPolicyConfig(), normalizer)


def test_finetuning_changes_what_it_is_asked_to_and_nothing_else() -> None:
    policy = tiny_policy()
    assert for_finetuning(policy, FinetuneConfig()) is policy
    summed = for_finetuning(policy, FinetuneConfig(reduce=Reduce.SUM, std_floor=0.05))
    assert summed.net is policy.net
    assert summed.config.reduce is Reduce.SUM
    assert summed.config.sampling_std_floor == summed.config.logprob_std_floor == 0.05
    published = for_finetuning(policy, FinetuneConfig(compat_published=True, std_floor=0.04, logprob_std_floor=0.1))
    assert published.config.compat_published
    assert (published.config.sampling_std_floor, published.config.logprob_std_floor) == (0.04, 0.1)
    with pytest.raises(ConfigError, match="compat_published"):
        FinetuneConfig(logprob_std_floor=0.1)


def test_an_enum_that_is_null_by_default_takes_its_value() -> None:
    assert to_object(load_config("train", ["finetune.reduce=sum"], TRAIN)).finetune.reduce is Reduce.SUM
    assert to_object(load_config("train", ["finetune.reduce=null"], TRAIN)).finetune.reduce is None
    with pytest.raises(ConfigError, match="did you mean 'sum'"):
        load_config("train", ["finetune.reduce=summ"], TRAIN)


def test_a_row_becomes_its_objects() -> None:
    config = to_object(load_config("train", ["algo.trust_region.coef=0.03", "algo.norm_adv=rollout"], TRAIN)).algo
    chosen = algorithm_choices(config)
    assert config.norm_adv is NormAdv.ROLLOUT
    assert chosen.ratio == PerStep()
    assert chosen.advantage == GAE(gamma=0.99)
    assert chosen.trust_region == Clip(base=0.02, coef=0.03)
    assert chosen.optimizer == AdamW()
    assert chosen.accelerator is None
    with pytest.raises(ConfigError, match=r"algo\.ratio is empty"):
        algorithm_choices(PolicyGradientConfig())


def test_rows_name_every_setting_of_their_choices() -> None:
    """Overrides are checked against what the row lists."""
    rows = [row for row in groups()["algo"] if row != "bc"]
    found = {row: to_object(load_config("train", [f"algo={row}"], TRAIN)).algo for row in rows}
    rows = [row for row, config in found.items() if isinstance(config, PolicyGradientConfig)]
    assert len(rows) > 15
    for row in rows:
        config = found[row]
        for axis, choice in zip(Choices._fields, algorithm_choices(config), strict=True):
            if choice is not None:
                assert set(getattr(config, axis)) - {"_target_"} == {f.name for f in dataclasses.fields(choice)}
