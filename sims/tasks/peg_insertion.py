"""Peg insertion: put a square nut over a square peg, holding it by its handle; after robosuite's NutAssemblySquare."""

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

HALF_THICKNESS_M = 0.011
HANDLE_M = 0.068
"""From the middle of the hole to where the handle is held, along the nut's x axis."""
HANDLE_YAW_RAD = np.pi / 3
"""The handle starts within 60° of pointing straight ahead: a few hundred demonstrations cover that."""
HOLE_HALF_M, PEG_HALF_M, PEG_HEIGHT_M = 0.022, 0.0175, 0.06
"""4.5 mm of play on each side."""
ROUND_M = 0.01
"""Offset of the hole from the peg's axis that the play allows, and a little more."""
DOWN_M = 0.025
"""Height of the nut's middle that counts as down: 1.4 cm above the table at most, below half of the peg."""
LIFT_M = 0.08


class PegInsertion:
    """Success: the peg is through the nut's hole and the nut is down; the gripper may still hold it.

    The hole has 4.5 mm of play on each side. The nut fits in all four directions.
    """

    name: ClassVar[str] = "peg_insertion"
    instruction: ClassVar[str] = "put the square nut over the peg"
    max_episode_steps: ClassVar[int] = 200
    mounts: ClassVar[tuple[Mount, ...]] = ONE_ARM
    objects: ClassVar[tuple[str, ...]] = ("nut",)
    fixtures: ClassVar[tuple[str, ...]] = ("peg",)
    joints: ClassVar[tuple[str, ...]] = ()

    def features(self) -> Feature:
        names, units = object_names("nut")
        axes = ("x", "y", "z")
        extra = (*(f"handle_from_tcp_{a}" for a in axes), "peg_x", "peg_y", *(f"nut_from_peg_{a}" for a in axes))
        return box_feature(names + extra, units + ("m",) * len(extra))

    def sample(self, rng: np.random.Generator, workspace: Workspace) -> Start:
        x, y = workspace.x(0.44, 0.58), workspace.y(-0.20, -0.06)
        nut = sample_object(rng, x, y, HALF_THICKNESS_M, HANDLE_YAW_RAD)
        peg = (rng.uniform(*workspace.x(0.49, 0.53)), rng.uniform(*workspace.y(0.13, 0.17)))
        return Start({"nut": nut}, {"peg": pose(peg)})

    def observation(self, view: SceneView) -> Array:
        nut, peg = view.objects["nut"], view.fixtures["peg"][..., :3]
        centre, axes = nut[..., :3], quaternion_axes(nut[..., 3:])
        handle = centre + HANDLE_M * axes[..., :3]
        return concat([centre, axes, centre - view.tcp, handle - view.tcp, peg[..., :2], centre - peg])

    def reward(self, view: SceneView) -> Array:
        nut = view.objects["nut"]
        xp = namespace(nut)
        handle = nut[..., :3] + HANDLE_M * quaternion_axes(nut[..., 3:])[..., :3]
        near = 1 - xp.tanh(6 * norm(handle - view.tcp))
        offset = norm((nut - view.fixtures["peg"])[..., :2])
        over = offset < ROUND_M
        raised = xp.clip((nut[..., 2] - HALF_THICKNESS_M) / LIFT_M, 0.0, 1.0)
        # Once over the peg, going down is what counts, and no height is lost by it.
        lowered = xp.where(over, 1 - xp.clip((nut[..., 2] - DOWN_M) / LIFT_M, 0.0, 1.0), 0.0)
        raised = xp.where(over, 1.0, raised)
        placed = raised * (1 - xp.tanh(5 * offset))
        return xp.where(self.success(view), 1.0, 0.2 * near + 0.2 * raised + 0.3 * placed + 0.2 * lowered)

    def success(self, view: SceneView) -> Array:
        nut = view.objects["nut"]
        offset = norm((nut - view.fixtures["peg"])[..., :2])
        return (offset < ROUND_M) & (nut[..., 2] < DOWN_M)
