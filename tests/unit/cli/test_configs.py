from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass, field
from enum import StrEnum
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from robopo.algos.bc import BCConfig
from robopo.algos.policy_gradient_config import PolicyGradientConfig
from robopo.cli.configs import (
    SavedRun,
    build,
    choices,
    config_dir,
    groups,
    load_config,
    load_saved,
    to_object,
    writable,
)
from robopo.cli.policy_schema import ChunkPolicySettings
from robopo.cli.schema import TRAIN
from robopo.errors import ConfigError
from robopo.nn.dit import DiTConfig
from robopo.nn.unet1d import UNet1DConfig
from robopo.processes.base import ProcessKind
from robopo.processes.flow import FlowConfig


class Kind(StrEnum):
    ONE = "one"


@dataclass(frozen=True, slots=True)
class Inner:
    sizes: tuple[int, ...] = (1, 2)
    kind: Kind = Kind.ONE


@dataclass(frozen=True, slots=True)
class Outer:
    inner: Inner = field(default_factory=Inner)
    rate: float = 0.5

    def __post_init__(self) -> None:
        if self.rate < 0:
            raise ConfigError("rate is negative")


def test_writable_allows_overrides_and_gives_the_frozen_object_back() -> None:
    node = OmegaConf.merge(writable(Outer), OmegaConf.from_dotlist(["inner.sizes=[3]", "rate=1"]))
    found = to_object(node)
    assert found == Outer(Inner(sizes=(3,)), rate=1.0)
    with pytest.raises(FrozenInstanceError):
        found.rate = 2.0
    with pytest.raises(ConfigError, match="rate is negative"):
        to_object(OmegaConf.merge(writable(Outer), {"rate": -1}))


def test_groups_become_their_dataclasses() -> None:
    config = to_object(load_config("train", [], TRAIN))
    assert isinstance(config.algo, PolicyGradientConfig)
    assert isinstance(config.policy, ChunkPolicySettings)
    assert isinstance(config.policy.net.hidden, tuple)
    other = to_object(load_config("train", ["algo=bc", "policy=diffusion_unet"], TRAIN))
    assert isinstance(other.algo, BCConfig)
    assert isinstance(other.policy.net, UNet1DConfig)
    flow = to_object(load_config("train", ["policy=flow_dit", "policy.process.num_steps=8"], TRAIN)).policy
    assert flow.process == FlowConfig(num_steps=8)
    assert isinstance(flow.net, DiTConfig)


def test_enums_are_written_by_value() -> None:
    config = to_object(load_config("train", ["policy.process.kind=ddim", "policy.process.num_steps=5"], TRAIN))
    assert config.policy.process.kind is ProcessKind.DDIM


def test_choices_and_groups() -> None:
    assert groups()["sim"] == tuple(sorted(path.stem for path in (config_dir() / "sim").glob("*.yaml")))
    assert {"lift", "robosuite_lift", "isaaclab_lift", "gymnasium"} <= set(groups()["sim"])
    load_config("train", ["sim=push"], TRAIN)
    assert choices("train", ["sim=push", "seed=1"]) == {
        "sim": "push",
        "policy": "diffusion_mlp",
        "algo": "dppo",
        "logger": "default",
    }


def test_saved_runs_come_back_with_changes() -> None:
    values = OmegaConf.to_container(
        load_config("train", ["algo.advantage.gamma=0.9", "seed=4"], TRAIN), enum_to_str=True
    )
    saved = SavedRun({"algo": "dppo"}, values)
    config = to_object(load_saved("train", saved, ["loop.iterations=7"], TRAIN))
    assert (config.algo.advantage["gamma"], config.seed, config.loop.iterations) == (0.9, 4, 7)
    with pytest.raises(ConfigError, match="keeps its algo"):
        load_saved("train", saved, ["algo=bc"], TRAIN)
    with pytest.raises(ConfigError, match="could not be converted"):
        load_saved("train", saved, ["seed=x"], TRAIN)


def test_build_passes_our_errors_on() -> None:
    node = OmegaConf.create({"_target_": "robopo.train.loop.LoopConfig", "iterations": -1})
    with pytest.raises(ConfigError, match="iterations=-1"):
        build(node)
    with pytest.raises(ConfigError, match="unexpected keyword"):
        build(OmegaConf.create({"_target_": "robopo.train.loop.LoopConfig", "x": 1}))


def test_own_folders_add_options_and_never_replace_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "algo").mkdir()
    for name in ("mine", "dppo"):
        (tmp_path / "algo" / f"{name}.yaml").write_text("defaults: [policy_gradient_schema, _self_]\nepochs: 77\n")
    monkeypatch.setenv("ROBOPO_CONFIG_DIR", str(tmp_path))
    assert "mine" in groups()["algo"]
    assert to_object(load_config("train", ["algo=mine"], TRAIN)).algo.epochs == 77
    assert to_object(load_config("train", ["algo=dppo"], TRAIN)).algo.epochs == 5
    assert choices("train", ["algo=mine"])["algo"] == "mine"
    monkeypatch.setenv("ROBOPO_CONFIG_DIR", str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match="missing is no folder"):
        load_config("train", [], TRAIN)


def test_a_setting_of_another_choice_is_answered_with_those_of_this_one() -> None:
    with pytest.raises(ConfigError, match=r"kernel\.eta': LearnedNoise has .*high, hold, low"):
        load_config("train", ["algo=flow_dppo_learned", "algo.exploration.kernel.eta=0.3"], TRAIN)
    with pytest.raises(ConfigError, match=r"did you mean 'algo\.trust_region\.delta_chain'\?"):
        load_config("train", ["algo=flow_dppo", "algo.trust_region.delta_chian=0.1"], TRAIN)
