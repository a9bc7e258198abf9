"""Push: slide a 5 cm cube along the table onto a marked disc."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from sims.base import Feature
from sims.tasks.arrays import Array, concat, namespace, norm, quaternion_axes
from sims.tasks.base import (
    ONE_ARM,
    Mount,
    SceneView,
    Start,
    Workspace,
    box_feature,
    object_names,
    pose,
    sample_object,
)

HALF_SIZE_M = 0.025
TOLERANCE_M = 0.03


class Push:
    """Success: the cube's centre is within 3 cm of the disc's centre, on the table."""

    name: ClassVar[str] = "push"
    instruction: ClassVar[str] = "push the blue cube onto the green disc"
    max_episode_steps: ClassVar[int] = 120
    mounts: ClassVar[tuple[Mount, ...]] = ONE_ARM
    objects: ClassVar[tuple[str, ...]] = ("cube",)
    fixtures: ClassVar[tuple[str, ...]] = ("goal",)
    joints: ClassVar[tuple[str, ...]] = ()

    def features(self) -> Feature:
        names, units = object_names("cube")
        extra = ("goal_x", "goal_y", "goal_from_cube_x", "goal_from_cube_y")
        return box_feature(names + extra, units + ("m",) * 4)

    def sample(self, rng: np.random.Generator, workspace: Workspace) -> Start:
        x, y = workspace.x(0.46, 0.56), workspace.y(-0.12, 0.12)
        cube = sample_object(rng, x, y, HALF_SIZE_M, np.pi / 6)
        # The disc lies 8 to 16 cm away within ±70° of straight ahead, so the arm pushes and never has to pull.
        distance, angle = workspace.scale * rng.uniform(0.08, 0.16), rng.uniform(-1.2, 1.2)
        goal = cube[:2] + distance * np.array([np.cos(angle), np.sin(angle)])
        return Start({"cube": cube}, {"goal": pose(goal)})

    def observation(self, view: SceneView) -> Array:
        cube = view.objects["cube"][..., :3]
        axes = quaternion_axes(view.objects["cube"][..., 3:])
        goal = view.fixtures["goal"][..., :2]
        return concat([cube, axes, cube - view.tcp, goal, goal - cube[..., :2]])

    def reward(self, view: SceneView) -> Array:
        cube = view.objects["cube"][..., :3]
        xp = namespace(cube)
        near = 1 - xp.tanh(5 * norm(cube - view.tcp))
        placed = 1 - xp.tanh(8 * norm(view.fixtures["goal"][..., :2] - cube[..., :2]))
        return xp.where(self.success(view), 1.0, 0.2 * near + 0.7 * placed)

    def success(self, view: SceneView) -> Array:
        cube = view.objects["cube"][..., :3]
        return (norm(view.fixtures["goal"][..., :2] - cube[..., :2]) < TOLERANCE_M) & (cube[..., 2] < 2 * HALF_SIZE_M)
