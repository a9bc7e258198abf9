"""Stack: put a red cube on a green one and let go of it."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from sims.base import Feature
from sims.tasks.arrays import Array, concat, namespace, norm, quaternion_axes
from sims.tasks.base import ONE_ARM, Mount, SceneView, Start, Workspace, box_feature, object_names, sample_object

RED_HALF_M, GREEN_HALF_M = 0.02, 0.025
ON_TOP_M = RED_HALF_M + GREEN_HALF_M
"""Height of the red cube's centre above the green one's when it rests there."""
CONTACT_M = 0.004
"""Deviation from that height which still counts as touching."""
ASIDE_M = 0.022
"""Sideways offset of the centres: the red cube's centre is over the green cube, which carries it."""
LEVEL = 0.98
"""Cosine of the tilt (11°) of a cube that lies flat."""
RELEASED_M = 0.05
"""Opening that lets go of the 4 cm cube, wherever the fingers are."""
LIFT_M = 0.06
APART_M = 0.10
"""Least distance of the centres at the start."""


class Stack:
    """Success: the red cube lies flat on the green one, which stands on the table, and the gripper is open or away.

    Poses alone are judged: a cube that lies flat within 4 mm of the height of contact is at rest or nearly so.
    """

    name: ClassVar[str] = "stack"
    instruction: ClassVar[str] = "put the red cube on the green cube"
    max_episode_steps: ClassVar[int] = 150
    mounts: ClassVar[tuple[Mount, ...]] = ONE_ARM
    objects: ClassVar[tuple[str, ...]] = ("red_cube", "green_cube")
    fixtures: ClassVar[tuple[str, ...]] = ()
    joints: ClassVar[tuple[str, ...]] = ()

    def features(self) -> Feature:
        red, red_units = object_names("red")
        green, green_units = object_names("green")
        extra = tuple(f"green_from_red_{axis}" for axis in ("x", "y", "z"))
        return box_feature(red + green + extra, red_units + green_units + ("m",) * 3)

    def sample(self, rng: np.random.Generator, workspace: Workspace) -> Start:
        x, y = workspace.x(0.42, 0.60), workspace.y(-0.18, 0.18)
        red = sample_object(rng, x, y, RED_HALF_M, np.pi / 4)
        green = sample_object(rng, x, y, GREEN_HALF_M, np.pi / 4)
        while np.linalg.norm(red[:2] - green[:2]) < APART_M * min(workspace.scale, 1.0):
            green = sample_object(rng, x, y, GREEN_HALF_M, np.pi / 4)
        return Start({"red_cube": red, "green_cube": green})

    def observation(self, view: SceneView) -> Array:
        red, green = view.objects["red_cube"], view.objects["green_cube"]
        parts = [part for cube in (red, green) for part in _seen(cube, view.tcp)]
        return concat([*parts, green[..., :3] - red[..., :3]])

    def reward(self, view: SceneView) -> Array:
        red, green = view.objects["red_cube"][..., :3], view.objects["green_cube"][..., :3]
        xp = namespace(red)
        near = 1 - xp.tanh(8 * norm(red - view.tcp))
        raised = xp.clip((red[..., 2] - RED_HALF_M) / LIFT_M, 0.0, 1.0)
        # Over the green cube the way to its top counts; the red cube is in the air there, or already in place.
        aside = norm((red - green)[..., :2])
        over = raised * (1 - xp.tanh(6 * aside))
        fit = xp.where(aside < ASIDE_M, 1 - xp.tanh(20 * abs(red[..., 2] - green[..., 2] - ON_TOP_M)), 0.0)
        return xp.where(self.success(view), 1.0, 0.2 * near + 0.2 * raised + 0.3 * over + 0.2 * raised * fit)

    def success(self, view: SceneView) -> Array:
        red, green = view.objects["red_cube"], view.objects["green_cube"]
        apart = red[..., :3] - green[..., :3]
        placed = (abs(apart[..., 2] - ON_TOP_M) < CONTACT_M) & (norm(apart[..., :2]) < ASIDE_M)
        flat = (_level(red) > LEVEL) & (_level(green) > LEVEL) & (green[..., 2] < GREEN_HALF_M + CONTACT_M)
        away = norm(red[..., :3] - view.tcp) > RELEASED_M
        return placed & flat & ((view.arms[0].opening > RELEASED_M) | away)


def _seen(cube: Array, tcp: Array) -> tuple[Array, Array, Array]:
    return cube[..., :3], quaternion_axes(cube[..., 3:]), cube[..., :3] - tcp


def _level(cube: Array) -> Array:
    """Largest |vertical part| [E] of the cube's three axes: 1 when it lies flat on any of its faces."""
    axes = quaternion_axes(cube[..., 3:])
    xp = namespace(cube)
    # Rows of a rotation have length 1, so the third axis' vertical part follows from the other two.
    x, y = axes[..., 2] ** 2, axes[..., 5] ** 2
    return xp.maximum(xp.maximum(x, y), 1 - x - y) ** 0.5
