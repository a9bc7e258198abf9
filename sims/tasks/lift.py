"""Lift: grasp a 4 cm cube and raise it clear of the table."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from sims.base import Feature
from sims.tasks.arrays import Array, concat, namespace, norm, quaternion_axes
from sims.tasks.base import ONE_ARM, Mount, SceneView, Start, Workspace, box_feature, object_names, sample_object

HALF_SIZE_M = 0.02
LIFTED_M = 0.10
"""Height of the cube's centre that counts as lifted: 8 cm above where it rested."""
REACH_M = 0.06
"""A cube in the air counts only with the gripper round it, not when it was knocked upward."""


class Lift:
    """Success: the cube's centre is 10 cm above the table and within 6 cm of the tool."""

    name: ClassVar[str] = "lift"
    instruction: ClassVar[str] = "pick up the red cube"
    max_episode_steps: ClassVar[int] = 100
    mounts: ClassVar[tuple[Mount, ...]] = ONE_ARM
    objects: ClassVar[tuple[str, ...]] = ("cube",)
    fixtures: ClassVar[tuple[str, ...]] = ()
    joints: ClassVar[tuple[str, ...]] = ()

    def features(self) -> Feature:
        return box_feature(*object_names("cube"))

    def sample(self, rng: np.random.Generator, workspace: Workspace) -> Start:
        x, y = workspace.x(0.42, 0.62), workspace.y(-0.18, 0.18)
        return Start({"cube": sample_object(rng, x, y, HALF_SIZE_M, np.pi / 4)})

    def observation(self, view: SceneView) -> Array:
        cube = view.objects["cube"][..., :3]
        return concat([cube, quaternion_axes(view.objects["cube"][..., 3:]), cube - view.tcp])

    def reward(self, view: SceneView) -> Array:
        cube = view.objects["cube"][..., :3]
        xp = namespace(cube)
        near = 1 - xp.tanh(8 * norm(cube - view.tcp))
        raised = xp.clip((cube[..., 2] - HALF_SIZE_M) / (LIFTED_M - HALF_SIZE_M), 0.0, 1.0)
        return xp.where(self.success(view), 1.0, 0.4 * near + 0.5 * raised)

    def success(self, view: SceneView) -> Array:
        cube = view.objects["cube"][..., :3]
        return (cube[..., 2] > LIFTED_M) & (norm(cube - view.tcp) < REACH_M)
