"""Drawer: take the handle and pull the drawer out."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from sims.base import Feature
from sims.tasks.arrays import Array, concat, namespace, norm, stack
from sims.tasks.base import ONE_ARM, Mount, SceneView, Start, Workspace, box_feature, pose
from sims.tasks.furniture import yaw_of_pose

HANDLE_M = (-0.073, 0.0, 0.10)
"""Where the handle is taken, in the frame of the cabinet with its drawer shut: near its upper end."""
OPEN_M = 0.12


def handle_position(cabinet: Array, slide_m: Array) -> Array:
    """Where the handle is, [E, 3]; cabinet [E, 7], slide_m [E]."""
    xp = namespace(cabinet)
    angle, reach = yaw_of_pose(cabinet), HANDLE_M[0] - slide_m
    return stack(
        [
            cabinet[..., 0] + xp.cos(angle) * reach,
            cabinet[..., 1] + xp.sin(angle) * reach,
            cabinet[..., 2] + HANDLE_M[2],
        ]
    )


class Drawer:
    """Success: the drawer is out by 12 of its 18 cm."""

    name: ClassVar[str] = "drawer"
    instruction: ClassVar[str] = "pull the drawer open"
    max_episode_steps: ClassVar[int] = 100
    mounts: ClassVar[tuple[Mount, ...]] = ONE_ARM
    objects: ClassVar[tuple[str, ...]] = ()
    fixtures: ClassVar[tuple[str, ...]] = ("cabinet",)
    joints: ClassVar[tuple[str, ...]] = ("drawer_slide",)

    def features(self) -> Feature:
        axes = ("x", "y", "z")
        names = (*(f"handle_{a}" for a in axes), *(f"handle_from_tcp_{a}" for a in axes))
        return box_feature((*names, "cabinet_cos", "cabinet_sin", "slide"), ("m",) * 6 + ("1", "1", "m"))

    def sample(self, rng: np.random.Generator, workspace: Workspace) -> Start:
        x, y = rng.uniform(*workspace.x(0.62, 0.70)), rng.uniform(*workspace.y(-0.18, 0.18))
        return Start(fixtures={"cabinet": pose((x, y), rng.uniform(-0.35, 0.35))})

    def observation(self, view: SceneView) -> Array:
        cabinet, slide = view.fixtures["cabinet"], view.joints["drawer_slide"]
        handle, angle = handle_position(cabinet, slide), yaw_of_pose(cabinet)
        xp = namespace(cabinet)
        return concat([handle, handle - view.tcp, stack([xp.cos(angle), xp.sin(angle), slide])])

    def reward(self, view: SceneView) -> Array:
        slide = view.joints["drawer_slide"]
        xp = namespace(slide)
        near = 1 - xp.tanh(6 * norm(handle_position(view.fixtures["cabinet"], slide) - view.tcp))
        return xp.where(self.success(view), 1.0, 0.4 * near + 0.5 * xp.clip(slide / OPEN_M, 0.0, 1.0))

    def success(self, view: SceneView) -> Array:
        return view.joints["drawer_slide"] > OPEN_M
