"""What other packages' environments need under the MuJoCo we run."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import mujoco
import numpy as np


def repair_robotics() -> None:
    """Make gymnasium-robotics' Fetch and hand environments buildable under MuJoCo 3.12; does nothing elsewhere.

    Its helpers ask ``joint_type in (mjJNT_HINGE, mjJNT_SLIDE)`` with numpy's integers, and MuJoCo's enums call those
    unequal when they stand on the left, so every construction ends in an AssertionError without words. The helpers get
    plain integers to compare with; nothing outside that one module changes.
    """
    if np.int32(int(mujoco.mjtJoint.mjJNT_HINGE)) in (mujoco.mjtJoint.mjJNT_HINGE,):
        return
    helpers: Any = importlib.import_module("gymnasium_robotics.utils.mujoco_utils")
    if isinstance(helpers.mujoco, _PlainJoints):
        return
    helpers.mujoco = _PlainJoints()


class _PlainJoints:
    """The module ``mujoco`` with integers for the types of joints."""

    mjtJoint = SimpleNamespace(  # noqa: N815  MuJoCo's name
        mjJNT_FREE=int(mujoco.mjtJoint.mjJNT_FREE),
        mjJNT_BALL=int(mujoco.mjtJoint.mjJNT_BALL),
        mjJNT_SLIDE=int(mujoco.mjtJoint.mjJNT_SLIDE),
        mjJNT_HINGE=int(mujoco.mjtJoint.mjJNT_HINGE),
    )

    def __getattr__(self, name: str) -> Any:
        return getattr(mujoco, name)
