"""What can be said of robosuite's tasks where robosuite isn't installed."""

from __future__ import annotations

import importlib.util

import pytest

from sims.robosuite_experts import make_robosuite_expert
from sims.robosuite_tasks import TASKS, action_feature, find_task, object_feature, robot_feature
from sims.robosuite_vec import RobosuiteVec


@pytest.mark.skipif(importlib.util.find_spec("robosuite") is not None, reason="robosuite is installed here")
def test_the_missing_extra_is_named() -> None:
    with pytest.raises(ImportError, match=r"pip install 'robopo\[robosuite\]'"):
        RobosuiteVec("Lift", 2)


@pytest.mark.parametrize(("typo", "near"), [("PickPlaceCann", "PickPlaceCan"), ("sqare", "square"), ("lfit", "lift")])
def test_a_typo_in_the_task_names_near_ones(typo: str, near: str) -> None:
    with pytest.raises(ValueError, match=f"{typo}.*near: .*{near}"):
        RobosuiteVec(typo, 2)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"num_envs": 0}, "num_envs"),
        ({"num_workers": 0}, "num_workers"),
        ({"max_episode_steps": 0}, "max_episode_steps"),
        ({"step_timeout_s": 0.0}, "step_timeout_s"),
        ({"image_size": (0, 4)}, "image_size"),
    ],
)
def test_settings_out_of_range(settings: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        RobosuiteVec("Lift", **settings)


def test_published_sizes() -> None:
    """robomimic's low-dimensional keys (Mandlekar et al. 2021): 19 of lift, 23 of can and square, 59 of transport."""
    for name, size in (("Lift", 10), ("PickPlaceCan", 14), ("NutAssemblySquare", 14), ("TwoArmTransport", 41)):
        assert object_feature(TASKS[name].object).shape == (size,)
    assert robot_feature(("robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos")).shape == (9,)
    assert robot_feature(("robot0_eef_quat",)).names == tuple(f"robot0_eef_quat_{axis}" for axis in "xyzw")
    assert action_feature(2).shape == (14,)
    assert [find_task(name).max_episode_steps for name in ("lift", "can", "square", "transport")] == [
        300,
        300,
        400,
        800,
    ]


def test_tasks_without_an_expert_say_so() -> None:
    with pytest.raises(ValueError, match=r"no scripted expert.*Door.*known are"):
        make_robosuite_expert("Door", 2)
