"""What a task is: a scene, where episodes start, what is seen, and when it is done.

``observation``, ``reward`` and ``success`` work on batched arrays of any engine (numpy or torch); ``sample`` draws one
environment's start from its own numpy generator.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from sims.base import Feature
from sims.tasks.arrays import Array, concat


class ArmView(NamedTuple):
    """One arm of E environments: joint [E, n] rad; tcp [E, 3] m and tcp_axes [E, 6] (first two rotation columns), both
    in the world's frame; opening [E] m.
    """

    joint: Array
    tcp: Array
    tcp_axes: Array
    opening: Array


class SceneView(NamedTuple):
    """The state of E environments as tasks see it.

    objects, fixtures: name -> pose [E, 7] (position, wxyz quaternion); joints: name -> [E] position of a door, a
    drawer (rad or m).
    """

    arms: tuple[ArmView, ...]
    objects: Mapping[str, Array]
    fixtures: Mapping[str, Array]
    joints: Mapping[str, Array]

    @property
    def tcp(self) -> Array:
        """[E, 3] tool position of the first arm."""
        return self.arms[0].tcp


class Start(NamedTuple):
    """Start of one episode: poses [7] of every object and fixture; positions of joints that don't start at zero."""

    objects: Mapping[str, NDArray[np.float64]] = {}
    fixtures: Mapping[str, NDArray[np.float64]] = {}
    joints: Mapping[str, float] = {}


class Mount(NamedTuple):
    """Where an arm stands: prefix of its names, base position (m) and turn about the vertical (rad)."""

    prefix: str = ""
    position: tuple[float, float, float] = (0.0, 0.0, 0.0)
    yaw_rad: float = 0.0


class Workspace(NamedTuple):
    """From positions written for a Panda at the origin to those an arm can reach: scale, then shift along x."""

    scale: float = 1.0
    shift_m: float = 0.0

    def x(self, low: float, high: float) -> tuple[float, float]:
        """Range along x, forward."""
        return self.scale * low + self.shift_m, self.scale * high + self.shift_m

    def y(self, low: float, high: float) -> tuple[float, float]:
        """Range along y, to the left."""
        return self.scale * low, self.scale * high


class Task(Protocol):
    """A tabletop task. Its scene is ``sims/assets/<name>.xml``; the table and the arms are added to it."""

    name: ClassVar[str]
    instruction: ClassVar[str]
    max_episode_steps: ClassVar[int]
    mounts: ClassVar[tuple[Mount, ...]]
    """One per arm."""
    objects: ClassVar[tuple[str, ...]]
    """Bodies that move freely; each has a free joint of its own name."""
    fixtures: ClassVar[tuple[str, ...]]
    """Mocap bodies: furniture or marks that stand where the episode puts them."""
    joints: ClassVar[tuple[str, ...]]
    """Hinges and slides of the furniture."""

    def features(self) -> Feature:
        """Describes ``environment_state``."""
        ...

    def sample(self, rng: np.random.Generator, workspace: Workspace) -> Start: ...

    def observation(self, view: SceneView) -> Array:
        """[E, D] the ``environment_state`` entry."""
        ...

    def reward(self, view: SceneView) -> Array:
        """[E] dense reward in [0, 1] per step, 1 only when the task is done."""
        ...

    def success(self, view: SceneView) -> Array:
        """[E] bool."""
        ...


ONE_ARM = (Mount(),)
AXES = ("axis_x_x", "axis_x_y", "axis_x_z", "axis_y_x", "axis_y_y", "axis_y_z")


def state_feature(num_joints: int, prefix: str = "") -> Feature:
    """Describes one arm's part of ``state``, the proprioception shared by all tasks."""
    names = ("tcp_x", "tcp_y", "tcp_z", *(f"tcp_{name}" for name in AXES), "gripper_opening")
    joints = tuple(f"joint{i + 1}" for i in range(num_joints))
    return Feature(
        shape=(10 + num_joints,),
        names=tuple(prefix + name for name in (*names, *joints)),
        units=("m",) * 3 + ("1",) * 6 + ("m",) + ("rad",) * num_joints,
        low=(-1.0,) * 3 + (-1.0,) * 6 + (0.0,) + (-3.2,) * num_joints,
        high=(1.0,) * 3 + (1.0,) * 6 + (0.08,) + (3.8,) * num_joints,
    )


def joined(parts: tuple[Feature, ...]) -> Feature:
    """One feature out of several, end to end."""
    return Feature(
        shape=(sum(part.shape[0] for part in parts),),
        names=tuple(name for part in parts for name in part.names),
        units=tuple(unit for part in parts for unit in part.units),
        low=tuple(bound for part in parts for bound in part.low),
        high=tuple(bound for part in parts for bound in part.high),
    )


def state_observation(view: SceneView) -> Array:
    """[E, Σ 10 + n] the ``state`` entry, arm after arm: tool pose, gripper opening, joint angles."""
    return concat([part for arm in view.arms for part in (arm.tcp, arm.tcp_axes, arm.opening[..., None], arm.joint)])


def pose(position: Any, yaw_rad: float = 0.0) -> NDArray[np.float64]:
    """Pose [7] at ``position`` (2 or 3 numbers; the table's height without a third), turned about the vertical."""
    x, y, *z = position
    turn = (np.cos(0.5 * yaw_rad), 0.0, 0.0, np.sin(0.5 * yaw_rad))
    return np.array([x, y, z[0] if z else 0.0, *turn])


def box_feature(names: tuple[str, ...], units: tuple[str, ...], bound: float = 1.5) -> Feature:
    """A feature whose elements all lie in ±bound."""
    return Feature((len(names),), names, units, (-bound,) * len(names), (bound,) * len(names))


def object_names(prefix: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names and units of an object's pose and its offset from the tool: position, two axes, offset (12 elements)."""
    names = tuple(f"{prefix}_{name}" for name in ("x", "y", "z", *AXES, "from_tcp_x", "from_tcp_y", "from_tcp_z"))
    return names, ("m",) * 3 + ("1",) * 6 + ("m",) * 3


def sample_object(rng: np.random.Generator, x: Any, y: Any, height_m: float, yaw_rad: float) -> NDArray[np.float64]:
    """Object pose [7] resting on the table, uniform in the rectangle x = (low, high), y = (low, high), yaw in
    ±yaw_rad.
    """
    position = [rng.uniform(*x), rng.uniform(*y), height_m]
    return pose(position, rng.uniform(-yaw_rad, yaw_rad))
