"""Pick and place: carry a can from one side of the table into a bin on the other; after robosuite's PickPlaceCan."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from sims.base import Feature
from sims.tasks.arrays import Array, concat, namespace, norm, quaternion_axes
from sims.tasks.base import ONE_ARM, Mount, SceneView, Start, Workspace, box_feature, object_names, pose, sample_object

HALF_HEIGHT_M = 0.045
RADIUS_M = 0.025
BIN_HALF_M = 0.08
"""Half the inner side of the square bin."""
RIM_M = 0.06
LIFT_M = 0.12
"""How far the can is raised to clear the rim, for the dense reward."""
RELEASED_M = 0.042
"""Distance of the tool from the can's centre that counts as let go; robosuite asks for the same."""


class PickPlace:
    """Success: the can's centre is over the bin's floor and below its rim, and the tool is 4.2 cm away from it.

    As in robosuite, being in the bin counts, whether the can stands, lies or still rolls there.
    """

    name: ClassVar[str] = "pick_place"
    instruction: ClassVar[str] = "put the red can into the blue bin"
    max_episode_steps: ClassVar[int] = 150
    mounts: ClassVar[tuple[Mount, ...]] = ONE_ARM
    objects: ClassVar[tuple[str, ...]] = ("can",)
    fixtures: ClassVar[tuple[str, ...]] = ("bin",)
    joints: ClassVar[tuple[str, ...]] = ()

    def features(self) -> Feature:
        names, units = object_names("can")
        extra = ("bin_x", "bin_y", "bin_from_can_x", "bin_from_can_y")
        return box_feature(names + extra, units + ("m",) * 4)

    def sample(self, rng: np.random.Generator, workspace: Workspace) -> Start:
        can = sample_object(rng, workspace.x(0.42, 0.60), workspace.y(-0.22, -0.04), HALF_HEIGHT_M, np.pi)
        place = (rng.uniform(*workspace.x(0.48, 0.56)), rng.uniform(*workspace.y(0.16, 0.20)))
        return Start({"can": can}, {"bin": pose(place)})

    def observation(self, view: SceneView) -> Array:
        can, place = view.objects["can"], view.fixtures["bin"][..., :2]
        centre = can[..., :3]
        return concat([centre, quaternion_axes(can[..., 3:]), centre - view.tcp, place, place - centre[..., :2]])

    def reward(self, view: SceneView) -> Array:
        can = view.objects["can"][..., :3]
        xp = namespace(can)
        near = 1 - xp.tanh(6 * norm(can - view.tcp))
        raised = xp.clip((can[..., 2] - HALF_HEIGHT_M) / LIFT_M, 0.0, 1.0)
        raised = xp.where(self._inside(view), 1.0, raised)
        way = norm(view.fixtures["bin"][..., :2] - can[..., :2])
        # Carrying counts only in the air: a can pushed against the bin's wall is no nearer to being in it.
        return xp.where(self.success(view), 1.0, 0.2 * near + 0.3 * raised + 0.4 * raised * (1 - xp.tanh(4 * way)))

    def success(self, view: SceneView) -> Array:
        return self._inside(view) & (norm(view.objects["can"][..., :3] - view.tcp) > RELEASED_M)

    def _inside(self, view: SceneView) -> Array:
        can = view.objects["can"][..., :3]
        away = abs(can[..., :2] - view.fixtures["bin"][..., :2])
        return (away[..., 0] < BIN_HALF_M) & (away[..., 1] < BIN_HALF_M) & (can[..., 2] < RIM_M)
