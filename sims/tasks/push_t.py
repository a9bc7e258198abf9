"""Push-T: slide a T-shaped block along the table onto a mark of its shape; after the task of diffusion policy."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from sims.base import Feature
from sims.tasks.arrays import Array, concat, namespace, norm, quaternion_axes, stack
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

HALF_HEIGHT_M = 0.015
TOLERANCE_M = 0.02
TOLERANCE_RAD = 0.15


class PushT:
    """Success: the block's centre of mass within 2 cm of the mark's, its direction within 0.15 rad, on the table.

    The original asks for 90 % of the mark to be covered; a pose error needs no polygons and says the same.
    """

    name: ClassVar[str] = "push_t"
    instruction: ClassVar[str] = "push the blue T onto the green T"
    max_episode_steps: ClassVar[int] = 300
    mounts: ClassVar[tuple[Mount, ...]] = ONE_ARM
    objects: ClassVar[tuple[str, ...]] = ("block",)
    fixtures: ClassVar[tuple[str, ...]] = ("goal",)
    joints: ClassVar[tuple[str, ...]] = ()

    def features(self) -> Feature:
        names, units = object_names("block")
        extra = ("goal_x", "goal_y", "goal_cos", "goal_sin", "goal_from_block_x", "goal_from_block_y")
        turn = ("turn_to_goal_cos", "turn_to_goal_sin")
        return box_feature(names + extra + turn, (*units, "m", "m", "1", "1", "m", "m", "1", "1"))

    def sample(self, rng: np.random.Generator, workspace: Workspace) -> Start:
        x, y = workspace.x(0.46, 0.56), workspace.y(-0.10, 0.10)
        block = sample_object(rng, x, y, HALF_HEIGHT_M, np.pi)
        distance, angle = workspace.scale * rng.uniform(0.06, 0.14), rng.uniform(-np.pi, np.pi)
        low, high = workspace.x(0.42, 0.60)
        goal_x = np.clip(block[0] + distance * np.cos(angle), low, high)
        goal_y = np.clip(block[1] + distance * np.sin(angle), *workspace.y(-0.16, 0.16))
        # At least a third of a radian, so that sliding alone is never enough.
        turn = rng.choice((-1.0, 1.0)) * rng.uniform(0.35, 1.2)
        yaw = 2 * np.arctan2(block[6], block[3]) + turn
        return Start({"block": block}, {"goal": pose((goal_x, goal_y), yaw)})

    def observation(self, view: SceneView) -> Array:
        block, goal = view.objects["block"], view.fixtures["goal"]
        centre, axes = block[..., :3], quaternion_axes(block[..., 3:])
        mark = quaternion_axes(goal[..., 3:])
        place = concat([goal[..., :2], mark[..., :2], goal[..., :2] - centre[..., :2]])
        return concat([centre, axes, centre - view.tcp, place, stack(_turn(block, goal))])

    def reward(self, view: SceneView) -> Array:
        block, goal = view.objects["block"], view.fixtures["goal"]
        xp = namespace(block)
        near = 1 - xp.tanh(5 * norm(block[..., :3] - view.tcp))
        placed = 1 - xp.tanh(8 * norm((goal - block)[..., :2]))
        turned = 0.5 + 0.5 * _turn(block, goal)[0]
        return xp.where(self.success(view), 1.0, 0.1 * near + 0.3 * placed + 0.5 * placed * turned)

    def success(self, view: SceneView) -> Array:
        block, goal = view.objects["block"], view.fixtures["goal"]
        placed = norm((goal - block)[..., :2]) < TOLERANCE_M
        flat = quaternion_axes(block[..., 3:])[..., 2] ** 2 < 0.01
        return placed & flat & (_turn(block, goal)[0] > np.cos(TOLERANCE_RAD)) & (block[..., 2] < 2 * HALF_HEIGHT_M)


def _turn(block: Array, goal: Array) -> tuple[Array, Array]:
    """Cosine and sine [E] of the turn about the vertical that takes the block to the mark."""
    b, g = quaternion_axes(block[..., 3:]), quaternion_axes(goal[..., 3:])
    return b[..., 0] * g[..., 0] + b[..., 1] * g[..., 1], b[..., 0] * g[..., 1] - b[..., 1] * g[..., 0]
