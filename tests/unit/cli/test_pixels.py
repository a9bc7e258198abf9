"""Policies of pictures as ``robopo train`` builds them: cloning, fine-tuning, exact resume, and clear refusals."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from robopo.algos.bc import BCConfig
from robopo.algos.drwr import DRWRConfig
from robopo.cli.configs import load_config, to_object
from robopo.cli.evaluate import pictures
from robopo.cli.finetuning import Seeds, policy_gradient_stage
from robopo.cli.off_policy import regression_stage
from robopo.cli.pipeline import FinetunablePolicy, cloning_stage, new_policy, policy_spec, scratch_policy
from robopo.cli.schema import TRAIN, TrainConfig
from robopo.critics.value import ValueNet
from robopo.data.demo import DemoData, Episode
from robopo.deploy.checkpoint_spec import read_policy_spec
from robopo.errors import CheckpointError, ConfigError
from robopo.eval.evaluate import evaluate
from robopo.nn.vision import vision_of
from robopo.policies.io import load_policy, save_policy
from robopo.train.nan_guard import NanGuard
from robopo.train.seeding import SeedTree
from robopo.train.stages import OnPolicyStage
from robopo.train.tree import decode_tree, encode_tree
from tests.helpers.picture_point import PicturePoint
from tests.unit.train.trees import assert_trees_equal

CPU = torch.device("cpu")
NUM_ENVS = 8
SMALL = ["policy.net.hidden=[16,16,16]", "policy.horizon=2", "policy.action_steps=2", "policy.vision.features=8"]
TINY = [
    "algo.epochs=2", "algo.batch_size=16", "algo.accumulate=2", "algo.critic_warmup_iterations=0",
    "finetune.num_decisions=4", "finetune.critic_hidden=[8,8,8]",
]  # fmt: skip


class Built(NamedTuple):
    stage: OnPolicyStage
    policy: FinetunablePolicy
    critic: ValueNet


def compose(row: str, policy: str, *more: str) -> TrainConfig:
    width = "policy.vision.width=16"
    return to_object(load_config("train", [f"algo={row}", f"policy={policy}", *SMALL, width, *TINY, *more], TRAIN))


def built(config: TrainConfig, *, from_scratch: bool = False) -> Built:
    seeds = SeedTree(config.seed)
    seeds.seed_globals()
    sim = PicturePoint(
        NUM_ENVS, max_episode_steps=8, radius=0.8, terminate_on_success=False, cameras=("front", "wrist")
    )
    stage, policy = policy_gradient_stage(
        scratch_policy(sim.spec, config.policy, CPU), sim, config.algo, config.finetune, seeds=Seeds(seeds, CPU),
        provenance={}, learn_observations=from_scratch,
    )  # fmt: skip
    return Built(stage, policy, stage._modules["critic"])


@pytest.mark.parametrize(
    ("row", "policy", "more"),
    [
        ("dppo_pixels", "diffusion_vit", []),
        ("dppo_pixels", "diffusion_vit", ["finetune.critic_inputs=policy", "finetune.ft_steps=2"]),
        ("dppo", "diffusion_resnet", ["finetune.augment=false"]),
        ("reinflow", "flow_vit", []),
        ("gaussian_ppo", "gaussian_vit", []),
    ],
)
def test_a_row_learns_on_pictures_and_resumes_bit_for_bit(
    row: str, policy: str, more: list[str], tmp_path: Path
) -> None:
    guard, config = NanGuard(tmp_path), compose(row, policy, *more)
    first = built(config)
    assert set(first.policy.spec.images) == {"image_front", "image_wrist"}
    assert set(first.policy.spec.obs) == {"state"}
    vision = vision_of(first.policy.net)
    assert vision is not None
    before = [p.detach().clone() for p in vision.parameters()]
    metrics = first.stage.step(guard)
    saved = encode_tree(first.stage.state())
    for values in (metrics, first.stage.step(guard)):
        assert not (bad := {name: value for name, value in values.items() if not math.isfinite(value)}), bad
    assert all(not now.equal(old) for now, old in zip(vision.parameters(), before, strict=True))
    second = built(config)
    second.stage.restore(decode_tree(*saved))
    second.stage.step(guard)
    assert_trees_equal(second.stage.state(), first.stage.state())


def test_the_critic_sees_the_state_where_there_is_one() -> None:
    given = built(compose("dppo", "diffusion_vit"))
    assert list(given.critic.obs) == ["environment_state", "state"] and given.critic.vision is None
    assert given.critic.normalizer is not given.policy.normalizer
    own = built(compose("dppo", "diffusion_vit", "finetune.critic_inputs=policy"))
    assert list(own.critic.obs) == ["state"] and own.critic.vision is not None
    assert own.critic.vision is not vision_of(own.policy.net)


def test_the_critics_statistics_follow_what_is_seen(tmp_path: Path) -> None:
    given = built(compose("dppo", "diffusion_vit"), from_scratch=True)
    before = given.critic.normalizer.bounds("environment_state")[0].clone()
    given.stage.step(NanGuard(tmp_path))
    after = given.critic.normalizer.bounds("environment_state")
    assert not after[0].equal(before)
    assert set(given.stage.state()["observation_stats"]) == {"0", "1"}  # the policy's, and the critic's


def test_without_shifts_the_first_ratio_is_exactly_one(tmp_path: Path) -> None:
    rate = ["algo.actor_lr=1e-30", "algo.epochs=1", "algo.accumulate=1", "algo.batch_size=100000"]
    config = compose("dppo", "diffusion_vit", "finetune.augment=false", "finetune.ft_steps=1", *rate)
    metrics = built(config).stage.step(NanGuard(tmp_path))
    assert metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-6)
    assert metrics["approx_kl"] == pytest.approx(0.0, abs=1e-9)
    shifted = built(compose("dppo", "diffusion_vit", "finetune.ft_steps=1", *rate)).stage.step(NanGuard(tmp_path))
    assert shifted["ratio_mean"] == pytest.approx(1.0, abs=1e-6)  # scored again on what the update sees


def demonstrations(episodes: int) -> DemoData:
    """An expert that goes straight to the goal, which only pictures show to the policy."""
    sim = PicturePoint(episodes, max_episode_steps=12, terminate_on_success=False)
    obs = sim.reset(5)
    rows: list[dict[str, np.ndarray]] = []
    actions: list[np.ndarray] = []
    for _ in range(10):
        rows.append({key: value.copy() for key, value in obs.items()})
        gap = obs["environment_state"] - obs["state"]
        actions.append(gap / np.maximum(np.linalg.norm(gap, axis=1, keepdims=True), 0.1))
        obs = sim.step(actions[-1]).obs
    found = [
        Episode(
            {key: np.stack([row[key][env] for row in rows]) for key in rows[0]}, np.stack([a[env] for a in actions])
        )
        for env in range(episodes)
    ]
    return DemoData.from_episodes(found, control_hz=10.0, action_mode="velocity")


def test_cloning_learns_where_the_goal_is_from_pictures(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sim, settings = PicturePoint(20, radius=0.3), ["policy.net.hidden=[64,64,64]", "policy.vision.width=32"]
    config = compose("dppo", "gaussian_vit", *settings, "policy.vision.features=32")
    policy = new_policy(demonstrations(60), sim.spec, config.policy, CPU)
    seeds = range(20)
    before = evaluate(policy, sim, seeds=seeds).success.point
    steps = BCConfig(lr=2e-3, steps=250, warmup_steps=10, batch_size=64, ema_decay=0.9)
    cloning = cloning_stage(
        policy, demonstrations(60), steps, updates_per_iteration=250, seeds=SeedTree(0), device=CPU, provenance={}
    )
    cloning.stage.step(NanGuard(tmp_path))
    cloning.refresh()
    after = evaluate(cloning.averaged, sim, seeds=seeds).success.point
    assert before <= 0.3
    assert after >= 0.7
    folder = tmp_path / "clone"
    folder.mkdir()
    cloning.stage.export(folder)
    assert evaluate(load_policy(folder), sim, seeds=seeds).success.point == after


def test_a_policy_chooses_what_it_sees() -> None:
    sim = PicturePoint(2, cameras=("front", "wrist")).spec
    chosen = policy_spec(sim, compose("dppo", "diffusion_vit", "policy.obs=[state,image_wrist]").policy)
    assert (dict(chosen.obs), dict(chosen.images)) == ({"state": 2}, {"image_wrist": (32, 32, 3)})
    states = to_object(load_config("train", ["policy=diffusion_mlp"], TRAIN)).policy
    assert set(policy_spec(sim, states).obs) == {"state", "environment_state"}
    assert policy_spec(sim, states).images == {}
    with pytest.raises(ConfigError, match="need an encoder: use policy=diffusion_vit"):
        policy_spec(sim, to_object(load_config("train", ["policy.obs=[image_front]"], TRAIN)).policy)
    with pytest.raises(ConfigError, match=r"shows no 'image_top'.*sim\.cameras"):
        policy_spec(sim, compose("dppo", "diffusion_vit", "policy.obs=[image_top]").policy)
    with pytest.raises(ConfigError, match=r"shows none: add sim\.cameras"):
        policy_spec(PicturePoint(2, cameras=()).spec, compose("dppo", "diffusion_vit").policy)


def test_what_can_not_take_pictures_says_so(tmp_path: Path) -> None:
    given = built(compose("dppo", "diffusion_vit"))
    sim = PicturePoint(2, cameras=("front", "wrist"))
    with pytest.raises(ConfigError, match="DRWR learns from numbers alone"):
        regression_stage(
            given.policy, sim, DRWRConfig(), compose("dppo", "diffusion_vit").finetune,
            seeds=Seeds(SeedTree(0), CPU), provenance={},
        )  # fmt: skip
    save_policy(tmp_path / "p", given.policy, {})
    with pytest.raises(CheckpointError, match="sees pictures"):
        read_policy_spec(tmp_path / "p")
    assert pictures(given.policy.spec) == {"cameras": ("front", "wrist"), "image_size": 32}
