"""What is said where Isaac Lab isn't installed, and what needs no Isaac Lab to be checked."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace

import numpy as np
import pytest

from sims.isaaclab_engine import asset_paths, check_assets
from sims.isaaclab_foreign import bounds, digest, override
from sims.isaaclab_vec import IsaacLabVec

missing = pytest.mark.skipif(importlib.util.find_spec("isaaclab") is not None, reason="Isaac Lab is installed here")


@missing
@pytest.mark.parametrize("task", ["lift", "Isaac-Cartpole-Direct", "anything"])
def test_the_missing_extra_is_named(task: str) -> None:
    with pytest.raises(ImportError, match=r"pip install 'robopo\[isaaclab\]'"):
        IsaacLabVec(task, 2)


@pytest.mark.parametrize("wrong", [{"num_envs": 0}, {"max_episode_steps": 0}])
def test_sizes_are_checked_before_anything_is_loaded(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least one"):
        IsaacLabVec("lift", **wrong)


def test_assets_that_cannot_be_had_are_named_at_once() -> None:
    scene = SimpleNamespace(
        robot=SimpleNamespace(spawn=SimpleNamespace(usd_path="/nowhere/robot.usd")), lights={"asset_path": ""}
    )
    assert asset_paths(scene) == ["/nowhere/robot.usd", ""]
    with pytest.raises(FileNotFoundError, match=r"/nowhere/robot.usd.*NEWTON_ASSET_DIR"):
        check_assets(scene)
    scene.robot.spawn.usd_path = "https://assets.invalid/robot.usd"
    with pytest.raises(FileNotFoundError, match=r"assets\.invalid"):
        check_assets(scene)
    scene.robot.spawn.usd_path = __file__
    check_assets(scene)


def test_overrides_reach_into_the_configuration_and_name_what_is_near() -> None:
    cfg = SimpleNamespace(scene=SimpleNamespace(ground=1))
    override(cfg, "scene.ground", None)
    assert cfg.scene.ground is None
    with pytest.raises(ValueError, match="near: ground"):
        override(cfg, "scene.grond", 2)


def test_unbounded_actions_get_unit_bounds() -> None:
    import gymnasium

    low, high = bounds(gymnasium.spaces.Box(np.array([-np.inf, -2.0]), np.array([np.inf, 3.0]), dtype=np.float64))
    assert (low.tolist(), high.tolist()) == ([-1.0, -2.0], [1.0, 3.0])


def test_an_array_of_seeds_has_one_hash_that_knows_the_order() -> None:
    assert digest(np.array([1, 2])) == digest(np.array([1, 2], np.int32)) != digest(np.array([2, 1]))
