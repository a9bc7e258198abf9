"""Every row of the policy-gradient family as ``robopo train`` builds it: two iterations, and an exact resume.

Rows are read from configs/algo, so a new one is tested from the day it exists.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from omegaconf import OmegaConf

from robopo.algos.policy_gradient_config import PolicyGradientConfig
from robopo.cli.configs import config_dir, load_config, to_object
from robopo.cli.finetuning import Seeds, policy_gradient_stage
from robopo.cli.pipeline import FinetunablePolicy, scratch_policy
from robopo.cli.schema import TRAIN, TrainConfig
from robopo.train.nan_guard import NanGuard
from robopo.train.seeding import SeedTree
from robopo.train.stages import OnPolicyStage
from robopo.train.tree import decode_tree, encode_tree
from tests.helpers.point_mass import PointMass
from tests.unit.train.trees import assert_trees_equal

CPU = torch.device("cpu")
SMALL = ["policy.net.hidden=[8,8,8]", "policy.horizon=2", "policy.action_steps=2"]
FLOW = ["policy=flow_mlp", "policy.process.num_steps=4", "policy.net.time_dim=4", *SMALL]
DIFFUSION = [
    "policy=diffusion_mlp",
    "policy.process.num_train_steps=8",
    "policy.process.num_steps=4",
    "policy.net.time_dim=4",
    *SMALL,
]
GAUSSIAN, GMM = ["policy=gaussian_mlp", *SMALL], ["policy=gmm_mlp", *SMALL]

# A vine of three continuations instead of sixteen; the point has two coordinates.
SMALL_VINE = ["states=1", "continuations=3", "sets=3", "set_size=2", "max_decisions=2", "signature.elements=[]"]


class Start(NamedTuple):
    """The policy that a row improves, and what fits the row to the test's simulator."""

    policy: list[str]
    overrides: tuple[str, ...] = ()
    from_scratch: bool = False


STARTS: dict[str, list[Start]] = {
    "adpo": [Start(DIFFUSION)],
    "dppo": [Start(DIFFUSION)],
    "dppo_mask": [Start(DIFFUSION)],
    "dppo_pixels": [Start(DIFFUSION)],
    "dppo_published": [Start(DIFFUSION)],
    "flow_clip": [Start(FLOW)],
    "flow_cps": [Start(FLOW)],
    "flow_divergence_gate": [Start(FLOW)],
    "flow_dppo": [Start(FLOW)],
    "flow_dppo_jagg": [Start(FLOW)],
    "flow_dppo_paper": [Start(FLOW)],
    "flow_dppo_learned": [Start(FLOW)],
    "flow_grpo": [Start(FLOW)],
    "flow_soft_gate": [Start(FLOW)],
    "flow_spo": [Start(FLOW)],
    "fpo": [Start(FLOW, from_scratch=True)],
    "fpo_finetune": [Start(FLOW)],
    "fpo_plus": [Start(FLOW, from_scratch=True)],
    "gaussian_ppo": [Start(GAUSSIAN), Start(GMM)],
    "grpo_guard": [Start(FLOW)],
    "polychromic": [Start(FLOW, tuple(f"algo.rollout.{setting}" for setting in SMALL_VINE))],
    "ppo_scratch": [Start(GAUSSIAN, from_scratch=True)],
    "reinflow": [Start(FLOW)],
}
SCHEMA = "policy_gradient_schema"
NUM_ENVS = 8  # one group of the rows' group_size
TINY = [
    "algo.epochs=2",
    "algo.batch_size=16",
    "algo.critic_warmup_iterations=0",
    "finetune.num_decisions=5",
    "finetune.critic_hidden=[8,8,8]",
]


def rows() -> list[str]:
    """Names of the rows of the family: those that are made from its schema, or from a row that is."""
    defaults = {path.stem: OmegaConf.load(path)["defaults"] for path in (config_dir() / "algo").glob("*.yaml")}

    def in_family(name: str) -> bool:
        return name == SCHEMA or any(in_family(parent) for parent in defaults.get(name, []))

    return [name for name in defaults if in_family(name)]


def cases() -> list[tuple[str, Start]]:
    return [(name, start) for name, starts in STARTS.items() for start in starts]


class Built(NamedTuple):
    stage: OnPolicyStage
    policy: FinetunablePolicy


def compose(row: str, start: Start) -> TrainConfig:
    return to_object(load_config("train", [f"algo={row}", *start.policy, *TINY, *start.overrides], TRAIN))


def build(config: TrainConfig, *, from_scratch: bool) -> Built:
    """The stage of ``robopo train``, on a point that earns for every step near its goal."""
    seeds = SeedTree(config.seed)
    seeds.seed_globals()
    # Goals are at .8 +- .2: with this radius some steps earn and some don't, so episodes and members of a group differ.
    sim = PointMass(NUM_ENVS, max_episode_steps=8, radius=0.8, terminate_on_success=False)
    stage, policy = policy_gradient_stage(
        scratch_policy(sim.spec, config.policy, CPU),
        sim,
        config.algo,
        config.finetune,
        seeds=Seeds(seeds, CPU),
        provenance={},
        learn_observations=from_scratch,
    )
    return Built(stage, policy)


def test_every_row_has_a_start() -> None:
    found = rows()
    new, gone = sorted({*found} - {*STARTS}), sorted({*STARTS} - {*found})
    assert not new, (
        f"rows {new} have no start: say in STARTS which policy they improve (FLOW, DIFFUSION, GAUSSIAN, GMM)"
    )
    assert not gone, f"STARTS names {gone}, which are no rows of the family any more"
    assert len(found) >= 22


@pytest.mark.parametrize(("row", "start"), cases(), ids=[f"{row}-{start.policy[0][7:]}" for row, start in cases()])
def test_a_row_learns_and_resumes_bit_for_bit(row: str, start: Start, tmp_path: Path) -> None:
    guard, config = NanGuard(tmp_path), compose(row, start)
    assert isinstance(config.algo, PolicyGradientConfig)
    first = build(config, from_scratch=start.from_scratch)
    before = [p.detach().clone() for p in first.policy.trainable()]
    metrics = first.stage.step(guard)
    saved = encode_tree(first.stage.state())
    for values in (metrics, first.stage.step(guard)):
        assert values["train/episodes"] == NUM_ENVS
        assert not (bad := {name: value for name, value in values.items() if not math.isfinite(value)}), bad
        assert values["actor_grad_norm"] > 0.0
    moved = [not now.equal(old) for now, old in zip(first.policy.trainable(), before, strict=True)]
    assert all(moved), f"{moved.count(False)} of {len(moved)} parameters stayed as they were"

    second = build(config, from_scratch=start.from_scratch)
    second.stage.restore(decode_tree(*saved))
    second.stage.step(guard)
    assert_trees_equal(second.stage.state(), first.stage.state())
