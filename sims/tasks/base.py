"""What a task is: a scene, where episodes start, what is seen, and when it is done.

``observation``, ``reward`` and ``success`` work on batched arrays of any engine (numpy or torch); ``sample`` draws one
environment's start from its own numpy generator.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from sims.base import Feature
from sims.tasks.arrays import Array, concat


class SceneView(NamedTuple):
    """The state of E environments as tasks see it.

    joint [E, 7] rad; tcp [E, 3] m and tcp_axes [E, 6] (first two rotation columns), both in the base frame;
    opening [E] m; object_pose [E, 7] (position, wxyz quaternion; zeros where a task has no object);
    goal [E, G] the task's own numbers.
    """

    joint: Array
    tcp: Array
    tcp_axes: Array
    opening: Array
    object_pose: Array
    goal: Array


class Start(NamedTuple):
    """Start of one episode: object_pose [7] (None where a task has no object) and goal [G]."""

    object_pose: NDArray[np.float64] | None
    goal: NDArray[np.float64]


class Task(Protocol):
    """A tabletop task for one arm."""

    name: ClassVar[str]
    instruction: ClassVar[str]
    max_episode_steps: ClassVar[int]
    has_object: ClassVar[bool]
    goal_dim: ClassVar[int]
    goal_body: ClassVar[str | None]
    """Mocap body drawn at the goal position (its first numbers), or None."""

    def features(self) -> Feature:
        """Describes ``environment_state``."""
        ...

    def sample(self, rng: np.random.Generator) -> Start: ...

    def observation(self, view: SceneView) -> Array:
        """[E, D] the ``environment_state`` entry."""
        ...

    def reward(self, view: SceneView) -> Array:
        """[E] dense reward in [0, 1] per step, 1 only when the task is done."""
        ...

    def success(self, view: SceneView) -> Array:
        """[E] bool."""
        ...


AXES = ("axis_x_x", "axis_x_y", "axis_x_z", "axis_y_x", "axis_y_y", "axis_y_z")
STATE_NAMES = (
    *("tcp_x", "tcp_y", "tcp_z"),
    *(f"tcp_{name}" for name in AXES),
    "gripper_opening",
    *(f"joint{i + 1}" for i in range(7)),
)


def state_feature() -> Feature:
    """Describes ``state``, the proprioception shared by all tasks of the 7-joint arm."""
    return Feature(
        shape=(17,),
        names=STATE_NAMES,
        units=("m",) * 3 + ("1",) * 6 + ("m",) + ("rad",) * 7,
        low=(-1.0,) * 3 + (-1.0,) * 6 + (0.0,) + (-3.2,) * 7,
        high=(1.0,) * 3 + (1.0,) * 6 + (0.08,) + (3.8,) * 7,
    )


def state_observation(view: SceneView) -> Array:
    """[E, 17] the ``state`` entry: tool pose, gripper opening, joint angles."""
    return concat([view.tcp, view.tcp_axes, view.opening[..., None], view.joint])


def yaw_quaternion(yaw_rad: float) -> NDArray[np.float64]:
    """Wxyz quaternion of a turn about the vertical."""
    return np.array([np.cos(0.5 * yaw_rad), 0.0, 0.0, np.sin(0.5 * yaw_rad)])


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
    return np.concatenate([position, yaw_quaternion(rng.uniform(-yaw_rad, yaw_rad))])
