"""Two-arm transport: one arm picks up a bar, hands it over in the air, the other lays it into its bin."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from sims.base import Feature
from sims.tasks.arrays import Array, concat, namespace, norm, quaternion_axes
from sims.tasks.base import AXES, Mount, SceneView, Start, Workspace, box_feature, pose, sample_object

SIDE_M = 0.45
"""The arms' bases stand this far to the left and right of the middle: neither reaches across to the other's side."""
BIN_HALF_M = (0.16, 0.08)
LAID_M = 0.045
"""The bar's centre lies below this height when it is in the bin."""


class TwoArmTransport:
    """Success: the bar's centre is inside the right bin, low, and the right hand has let go."""

    name: ClassVar[str] = "two_arm_transport"
    instruction: ClassVar[str] = "pick up the red bar, hand it over and put it into the green bin"
    max_episode_steps: ClassVar[int] = 260
    mounts: ClassVar[tuple[Mount, ...]] = (Mount("left_", (0.0, SIDE_M, 0.0)), Mount("right_", (0.0, -SIDE_M, 0.0)))
    objects: ClassVar[tuple[str, ...]] = ("bar",)
    fixtures: ClassVar[tuple[str, ...]] = ("bin",)
    joints: ClassVar[tuple[str, ...]] = ()

    def features(self) -> Feature:
        names = [f"bar_{name}" for name in ("x", "y", "z", *AXES)]
        names += [f"bar_from_{side}_tcp_{axis}" for side in ("left", "right") for axis in ("x", "y", "z")]
        names += ["bin_x", "bin_y", "bin_from_bar_x", "bin_from_bar_y"]
        return box_feature(tuple(names), ("m",) * 3 + ("1",) * 6 + ("m",) * 10)

    def sample(self, rng: np.random.Generator, workspace: Workspace) -> Start:
        bar = sample_object(rng, workspace.x(0.44, 0.56), workspace.y(0.38, 0.52), 0.015, 0.35)
        place = (rng.uniform(*workspace.x(0.46, 0.54)), rng.uniform(*workspace.y(-0.48, -0.40)))
        return Start({"bar": bar}, {"bin": pose(place)})

    def observation(self, view: SceneView) -> Array:
        bar, goal = view.objects["bar"], view.fixtures["bin"][..., :2]
        centre = bar[..., :3]
        offsets = [centre - arm.tcp for arm in view.arms]
        return concat([centre, quaternion_axes(bar[..., 3:]), *offsets, goal, goal - centre[..., :2]])

    def reward(self, view: SceneView) -> Array:
        centre, goal = view.objects["bar"][..., :3], view.fixtures["bin"][..., :2]
        xp = namespace(centre)
        near = 1 - xp.tanh(4 * norm(centre - view.arms[0].tcp))
        near_right = 1 - xp.tanh(4 * norm(centre - view.arms[1].tcp))
        carried = 1 - xp.tanh(2 * norm(centre[..., :2] - goal))
        return xp.where(self.success(view), 1.0, 0.2 * near + 0.2 * near_right + 0.5 * carried)

    def success(self, view: SceneView) -> Array:
        centre, goal = view.objects["bar"][..., :3], view.fixtures["bin"][..., :2]
        away = abs(centre[..., :2] - goal)
        inside = (away[..., 0] < 0.06) & (away[..., 1] < BIN_HALF_M[1] - 0.015)
        return inside & (centre[..., 2] < LAID_M) & (view.arms[1].opening > 0.04)
