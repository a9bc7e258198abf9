"""Reach: bring the tool to a point in the air."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from sims.base import Feature
from sims.tasks.arrays import Array, concat, namespace, norm
from sims.tasks.base import ONE_ARM, Mount, SceneView, Start, Workspace, box_feature, pose

TOLERANCE_M = 0.02
LOW_M, HIGH_M = np.array([0.35, -0.30, 0.08]), np.array([0.65, 0.30, 0.45])


class Reach:
    """Success: the tool is within 2 cm of the goal point."""

    name: ClassVar[str] = "reach"
    instruction: ClassVar[str] = "move the gripper to the red sphere"
    max_episode_steps: ClassVar[int] = 50
    mounts: ClassVar[tuple[Mount, ...]] = ONE_ARM
    objects: ClassVar[tuple[str, ...]] = ()
    fixtures: ClassVar[tuple[str, ...]] = ("goal",)
    joints: ClassVar[tuple[str, ...]] = ()

    def features(self) -> Feature:
        names = ("goal_x", "goal_y", "goal_z", "goal_from_tcp_x", "goal_from_tcp_y", "goal_from_tcp_z")
        return box_feature(names, ("m",) * 6)

    def sample(self, rng: np.random.Generator, workspace: Workspace) -> Start:
        goal = rng.uniform(LOW_M, HIGH_M) * workspace.scale
        goal[0] += workspace.shift_m
        return Start(fixtures={"goal": pose(goal)})

    def observation(self, view: SceneView) -> Array:
        return concat([view.fixtures["goal"][..., :3], view.fixtures["goal"][..., :3] - view.tcp])

    def reward(self, view: SceneView) -> Array:
        distance = norm(view.fixtures["goal"][..., :3] - view.tcp)
        return namespace(distance).where(
            distance < TOLERANCE_M, 1.0, 0.9 * (1 - namespace(distance).tanh(5 * distance))
        )

    def success(self, view: SceneView) -> Array:
        return norm(view.fixtures["goal"][..., :3] - view.tcp) < TOLERANCE_M
