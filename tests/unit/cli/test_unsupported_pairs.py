"""Choices of the policy-gradient family that don't fit together are refused at once, in words that name both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from robopo.algos.policy_gradient_config import PolicyGradientConfig
from robopo.cli.finetuning import Seeds, policy_gradient_stage
from robopo.cli.pipeline import scratch_policy
from robopo.cli.policy_schema import ChunkPolicySettings, DirectKind, DirectPolicySettings, PolicySettings
from robopo.cli.schema import FinetuneConfig
from robopo.errors import ConfigError
from robopo.nn.gaussian_mlp import GaussianMLPConfig
from robopo.nn.mlp import DiffusionMLPConfig
from robopo.policies.config import ChunkPolicyConfig
from robopo.processes.base import DiffusionConfig, ProcessKind
from robopo.processes.flow import FlowConfig
from robopo.train.seeding import SeedTree
from tests.helpers.point_mass import PointMass
from tests.unit.cli.test_rows import CPU

NET = DiffusionMLPConfig(hidden=(8, 8, 8), time_dim=4)
UNBOUNDED = ChunkPolicyConfig(denoised_clip=None)
DDIM = DiffusionConfig(kind=ProcessKind.DDIM, num_train_steps=8, num_steps=4)
POLICIES: dict[str, PolicySettings] = {
    "flow": ChunkPolicySettings(process=FlowConfig(num_steps=4), sampling=UNBOUNDED, net=NET),
    "flow of one step": ChunkPolicySettings(process=FlowConfig(num_steps=1), sampling=UNBOUNDED, net=NET),
    "diffusion": ChunkPolicySettings(process=DDIM, net=NET),
    "gaussian": DirectPolicySettings(net=GaussianMLPConfig(hidden=(8, 8, 8))),
    "gmm": DirectPolicySettings(kind=DirectKind.GMM, net=GaussianMLPConfig(hidden=(8, 8, 8))),
}


def target(name: str, **settings: Any) -> dict[str, Any]:
    return {"_target_": f"robopo.{name}", **settings}


def noise(kernel: str, **settings: Any) -> dict[str, Any]:
    return target("processes.exploration.Exploration", kernel=target(f"processes.transitions.{kernel}", **settings))


PER_STEP, CHAIN = target("algos.dppo.PerStep"), target("algos.reinflow.Chain")
NORMALIZED, CFM = target("algos.grpo_guard.NormalizedRatio"), target("algos.fpo.CfmRatio")
CLIP, MASK = target("algos.dppo.Clip"), target("algos.flow_dppo.DivergenceMask")
GATE = target("algos.soft_gate.DivergenceGate")
GAE, GROUPS = target("algos.gae_advantage.GAE"), target("algos.group_relative.GroupRelative")
POLYCHROMIC = target("algos.polychromic.Polychromic")
GROUP_CONFIG, VINE_CONFIG = target("rollout.group_collector.GroupConfig"), target("rollout.vine.VineConfig")
SDE, LEARNED, ODE = noise("FlowSDE"), noise("LearnedNoise"), noise("ODE")

PAIRS: dict[str, list[tuple[str, dict[str, Any], str, str]]] = {
    # policy, what differs from PerStep + GAE + Clip, and the two words that the message must have
    "kernel x policy": [
        ("diffusion", {"exploration": SDE}, "FlowSDE", "diffusion"),
        ("diffusion", {"exploration": noise("DanceSDE")}, "DanceSDE", "diffusion"),
        ("flow", {"exploration": noise("DDPMNoise")}, "DDPMNoise", "flow"),
        ("flow", {"exploration": noise("DDIMNoise")}, "DDIMNoise", "flow"),
        ("gaussian", {"exploration": LEARNED}, "LearnedNoise", "GaussianPolicy"),
        ("gmm", {"exploration": ODE}, "ODE", "GMMPolicy"),
    ],
    "kernel x ratio": [
        ("flow", {}, "PerStep", "kernel=null"),
        ("flow", {"exploration": ODE}, "PerStep", "kernel=ODE"),
        ("flow", {"exploration": ODE, "ratio": CHAIN}, "Chain", "kernel=ODE"),
        ("flow", {"exploration": ODE, "ratio": NORMALIZED}, "NormalizedRatio", "kernel=ODE"),
        ("flow of one step", {"exploration": noise("CPS")}, "PerStep", "kernel=CPS"),
        ("flow", {"exploration": LEARNED, "ratio": NORMALIZED}, "NormalizedRatio", "LearnedNoise"),
    ],
    "ratio x policy": [
        ("gmm", {"ratio": CHAIN}, "Chain", "GMMPolicy"),
        ("gmm", {"ratio": NORMALIZED}, "NormalizedRatio", "GMMPolicy"),
        ("gmm", {"ratio": {**PER_STEP, "divergence": True}}, "PerStep", "GMMPolicy"),
        ("gmm", {"ratio": CFM}, "CfmRatio", "GMMPolicy"),
        ("gaussian", {"ratio": CFM}, "CfmRatio", "GaussianPolicy"),
        ("gaussian", {"ratio": NORMALIZED}, "NormalizedRatio", "GaussianPolicy"),
        ("diffusion", {"ratio": NORMALIZED}, "NormalizedRatio", "step_weight=false"),
        ("diffusion", {"ratio": CFM}, "CfmRatio", "flow policy"),
        ("diffusion", {"ratio": CHAIN, "compat_published": True}, "Chain", "compat_published"),
        ("flow", {"exploration": ODE, "ratio": CFM, "ft_steps": 2}, "CfmRatio", "ft_steps=2"),
    ],
    "trust region x policy": [
        ("gmm", {"trust_region": MASK}, "DivergenceMask", "GMMPolicy"),
        ("gmm", {"trust_region": GATE}, "DivergenceGate", "GMMPolicy"),
        ("gmm", {"max_chain_kl": 0.2}, "max_chain_kl=0.2", "GMMPolicy"),
        ("diffusion", {"trust_region": MASK, "compat_published": True}, "trust region", "compat_published"),
    ],
    "advantage x rollout": [
        ("diffusion", {"rollout": GROUP_CONFIG}, "GAE", "GroupConfig"),
        ("diffusion", {"rollout": VINE_CONFIG}, "GAE", "VineConfig"),
        ("diffusion", {"advantage": GROUPS, "rollout": VINE_CONFIG}, "GroupRelative", "VineConfig"),
        ("diffusion", {"advantage": POLYCHROMIC, "rollout": GROUP_CONFIG}, "Polychromic", "GroupConfig"),
    ],
    "regulariser x policy": [
        ("gmm", {"kl_coef": 0.1}, "kl_coef", "GMMPolicy"),
        ("flow", {"exploration": ODE, "ratio": CFM, "kl_coef": 0.1}, "kl_coef", "kernel=ODE"),
        ("flow", {"exploration": ODE, "ratio": CFM, "bc_coef": 0.1}, "bc_coef", "kernel=ODE"),
        ("flow", {"exploration": SDE, "entropy_coef": 0.1}, "entropy_coef", "kernel=FlowSDE"),
        ("gmm", {"entropy_coef": 0.1}, "entropy_coef", "GMMPolicy"),
        ("diffusion", {"knn_coef": 0.1}, "knn_coef", "flow policy"),
        ("gaussian", {"knn_coef": 0.1}, "knn_coef", "GaussianPolicy"),
        ("flow", {"exploration": SDE, "demo_coef": 0.1}, "demo_coef", "demos="),
    ],
    "accelerator x ratio or policy": [
        ("flow", {"exploration": SDE, "ratio": CHAIN, "accelerator": target("algos.jagg.Jagg")}, "Jagg", "Chain"),
        ("gaussian", {"accelerator": target("algos.jagg.Jagg")}, "Jagg(window=4)", "ft_steps=1"),
        ("flow", {"exploration": SDE, "accelerator": target("algos.jagg.Jagg", window=3)}, "window=3", "ft_steps=4"),
        (
            "diffusion",
            {"accelerator": target("algos.jagg.Jagg"), "compat_published": True},
            "Jagg",
            "compat_published",
        ),
    ],
}
CASES = [(axis, *case) for axis, cases in PAIRS.items() for case in cases]


def build(policy: str, changes: dict[str, Any], sim: PointMass) -> None:
    finetune = {name: changes.pop(name) for name in ("ft_steps", "compat_published") if name in changes}
    config = PolicyGradientConfig(ratio=PER_STEP, advantage=GAE, trust_region=CLIP)
    policy_gradient_stage(
        scratch_policy(sim.spec, POLICIES[policy], CPU),
        sim,
        replace(config, **changes),
        replace(FinetuneConfig(critic_hidden=(8, 8, 8)), **finetune),
        seeds=Seeds(SeedTree(0), CPU),
        provenance={},
    )


@pytest.mark.parametrize(
    ("axis", "policy", "changes", "first", "second"),
    CASES,
    ids=[f"{axis}: {first} - {second}" for axis, _, _, first, second in CASES],
)
def test_both_are_named(axis: str, policy: str, changes: dict[str, Any], first: str, second: str) -> None:
    with pytest.raises(ConfigError) as error:
        build(policy, dict(changes), PointMass(8))
    assert first in str(error.value), axis
    assert second in str(error.value), axis


@pytest.mark.parametrize(
    ("advantage", "lacking", "word"),
    [(GROUPS, "maskable", "mask environments"), (POLYCHROMIC, "restorable", "restore its state")],
)
def test_a_simulator_that_can_not_run_the_rollout_is_named(advantage: dict[str, Any], lacking: str, word: str) -> None:
    with pytest.raises(ConfigError, match=rf"point_mass.*{word}.*rollout 'plain'"):
        build("diffusion", {"advantage": advantage}, PointMass(8, **{lacking: False}))  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", list(POLICIES))
def test_what_differs_is_what_is_refused(policy: str) -> None:
    """The common ground of the table is fine wherever a step has noise."""
    flow = isinstance(POLICIES[policy], ChunkPolicySettings) and policy.startswith("flow")
    build(policy, {"exploration": LEARNED} if flow else {}, PointMass(8))
