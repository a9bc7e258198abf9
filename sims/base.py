"""The contract of every vectorised simulator.

One call advances every environment by one control step. Autoreset is SAME_STEP (gymnasium's word): the step that ends
an episode already returns the first observation of the next one in ``obs``, and the true last observation in
``final_obs``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.floating[Any]]
BoolArray = NDArray[np.bool_]
Seed = int | NDArray[np.integer[Any]] | None


@dataclass(frozen=True, slots=True)
class Feature:
    """One named array: its elements' names, SI units and bounds (all of the feature's length).

    A picture is uint8 [height, width, 3] and has one name, unit and bound per axis: see ``image_feature``.
    """

    shape: tuple[int, ...]
    names: tuple[str, ...]
    units: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    dtype: str = "float32"

    @property
    def is_image(self) -> bool:
        """Whether this is a picture [height, width, 3]."""
        return len(self.shape) == 3


def image_feature(height: int, width: int) -> Feature:
    """Describes one camera's entry, ``image_<camera>``: RGB, uint8."""
    names, units = ("height", "width", "channel"), ("px", "px", "")
    return Feature((height, width, 3), names, units, (0.0,) * 3, (255.0,) * 3, "uint8")


@dataclass(frozen=True, slots=True)
class SimSpec:
    """What a simulator is, known before the first reset."""

    name: str
    """Task name, for example ``lift``."""
    engine: str
    """Simulator name, for example ``mujoco``."""
    observation: Mapping[str, Feature]
    action: Feature
    action_mode: str
    """``joint_position``, ``joint_delta`` or ``ee_delta``, with the gripper opening as the last element; ``osc_pose``:
    robosuite's controller, fractions of 0.05 m and 0.5 rad; or ``native``: what a foreign environment takes."""
    control_hz: float
    max_episode_steps: int
    """Control steps after which an episode is truncated."""
    restorable: bool
    """``state()``/``restore()`` give back the exact future."""
    maskable: bool = True
    """``step(mask=...)`` leaves environments untouched. Where False, those outside the mask idle: they hold their pose
    (time passes for them), their reward is 0 and their flags are False; ``observe()`` tells where they are.
    """
    independent: bool = True
    """An environment's future depends on its own seed alone, never on E or on its neighbours."""
    instruction: str = ""
    """The task in one sentence, as a language-conditioned policy would be told it."""
    robot: str = ""
    """The arm, for example ``franka``; empty where it isn't known."""
    tasks: Mapping[str, str] = field(default_factory=dict[str, str])
    """Where each episode draws its task: name -> instruction, in the order of the entry ``task`` (one-hot [E, n])."""
    cameras: tuple[str, ...] = field(default_factory=tuple)
    has_success: bool = True
    """Whether the task can be fulfilled; where not (keep running), ``success`` is always False and returns count."""


class Step(NamedTuple):
    """Result of one control step over E environments.

    obs: entries [E, D] (pictures [E, height, width, 3] uint8), after autoreset where an episode ended. final_obs: the
    same entries before any autoreset, valid in every row. reward [E] float32; terminated, truncated [E] bool. info:
    ``success`` [E] bool (of the step, before autoreset), ``episode_return`` [E], ``episode_length`` [E], ``diverged``
    [E] bool (the engine gave up: physics exploded, a worker died or hung; the episode ended as terminated with
    reward 0). Where the simulator is randomised, ``parameters``: name -> [E] values of the episode that was stepped.
    """

    obs: dict[str, FloatArray]
    reward: FloatArray
    terminated: BoolArray
    truncated: BoolArray
    final_obs: dict[str, FloatArray]
    info: dict[str, Any]


class VecSim(Protocol):
    """A batched simulator. ``num_envs`` is E."""

    @property
    def num_envs(self) -> int: ...

    @property
    def spec(self) -> SimSpec: ...

    def reset(self, seed: Seed = None, mask: BoolArray | None = None) -> dict[str, FloatArray]:
        """Start new episodes where ``mask`` [E] (default: everywhere) and return observations of all environments.

        seed: an int seeds environment i by (seed, i), whatever E is; an array [E] gives each environment its own
        episode seed; None continues each environment's generator.
        """
        ...

    def step(self, action: FloatArray, mask: BoolArray | None = None) -> Step:
        """Advance by one control step. action [E, A] in the units of ``spec.action``, clipped to its bounds.

        mask [E]: environments outside it keep their state; their reward is 0 and their flags are False.
        """
        ...

    def observe(self) -> dict[str, FloatArray]:
        """The current observations, entries [E, D]: what the last ``reset`` or ``step`` returned as ``obs``, unless
        environments idled since (``spec.maskable``).
        """
        ...

    @property
    def success(self) -> BoolArray:
        """[E] whether each environment's current state fulfils the task."""
        ...

    def state(self) -> dict[str, NDArray[Any]]:
        """Everything that decides the future (physics, episode counters, generators) as named arrays."""
        ...

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue exactly from what ``state()`` returned."""
        ...

    def render(
        self, env: int = 0, *, camera: str | None = None, width: int = 320, height: int = 240
    ) -> NDArray[np.uint8]:
        """One RGB frame [height, width, 3] of environment ``env``."""
        ...

    def close(self) -> None:
        """Release threads, processes and GL contexts; callable twice."""
        ...
