"""Door: take the handle and pull the door open."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from sims.base import Feature
from sims.tasks.arrays import Array, concat, namespace, norm, stack
from sims.tasks.base import ONE_ARM, Mount, SceneView, Start, Workspace, box_feature, pose
from sims.tasks.furniture import yaw_of_pose

HANDLE_M = (-0.068, -0.205, 0.185)
"""Where the handle is taken, in the frame of the closed door: near its upper end."""
OPEN_RAD = 0.6
"""35°; a third of the way that the hinge can go."""


def handle_position(frame: Array, hinge_rad: Array) -> Array:
    """Where the handle is, [E, 3]; frame [E, 7], hinge_rad [E]."""
    xp = namespace(frame)
    angle = yaw_of_pose(frame) - hinge_rad  # the hinge turns clockwise
    cos, sin = xp.cos(angle), xp.sin(angle)
    x, y, z = HANDLE_M
    return stack([frame[..., 0] + cos * x - sin * y, frame[..., 1] + sin * x + cos * y, frame[..., 2] + z])


class Door:
    """Success: the hinge is open by 0.6 rad. There is no latch; hinge friction holds the door where it was left."""

    name: ClassVar[str] = "door"
    instruction: ClassVar[str] = "open the door by its handle"
    max_episode_steps: ClassVar[int] = 120
    mounts: ClassVar[tuple[Mount, ...]] = ONE_ARM
    objects: ClassVar[tuple[str, ...]] = ()
    fixtures: ClassVar[tuple[str, ...]] = ("frame",)
    joints: ClassVar[tuple[str, ...]] = ("door_hinge",)

    def features(self) -> Feature:
        axes = ("x", "y", "z")
        names = (*(f"handle_{a}" for a in axes), *(f"handle_from_tcp_{a}" for a in axes))
        more = ("hinge_x", "hinge_y", "door_cos", "door_sin", "hinge_angle")
        return box_feature((*names, *more), ("m",) * 8 + ("1", "1", "rad"), 2.0)

    def sample(self, rng: np.random.Generator, workspace: Workspace) -> Start:
        x, y = rng.uniform(*workspace.x(0.62, 0.72)), rng.uniform(*workspace.y(0.06, 0.26))
        return Start(fixtures={"frame": pose((x, y), rng.uniform(-0.35, 0.25))})

    def observation(self, view: SceneView) -> Array:
        frame, hinge = view.fixtures["frame"], view.joints["door_hinge"]
        handle, angle = handle_position(frame, hinge), yaw_of_pose(frame) - hinge
        xp = namespace(frame)
        rest = stack([frame[..., 0], frame[..., 1], xp.cos(angle), xp.sin(angle), hinge])
        return concat([handle, handle - view.tcp, rest])

    def reward(self, view: SceneView) -> Array:
        hinge = view.joints["door_hinge"]
        xp = namespace(hinge)
        near = 1 - xp.tanh(6 * norm(handle_position(view.fixtures["frame"], hinge) - view.tcp))
        return xp.where(self.success(view), 1.0, 0.4 * near + 0.5 * xp.clip(hinge / OPEN_RAD, 0.0, 1.0))

    def success(self, view: SceneView) -> Array:
        return view.joints["door_hinge"] > OPEN_RAD
