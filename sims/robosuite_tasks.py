"""What is known of robosuite's tasks before one is built: limits, arms, and the layout of the ``object`` entry.

Layouts, orders and signs of the published tasks are those of robosuite 1.4, which recorded robomimic's datasets.
robosuite 1.5.2 lists some in another order and turned the sign of Lift's ``gripper_to_cube_pos``.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from sims.base import Feature, SimSpec, image_feature

CONTROL_HZ = 20.0
ACTION_MODE = "osc_pose"
ARM_ACTIONS = 7
XYZ, XYZW = ("x", "y", "z"), ("x", "y", "z", "w")
Sensor = tuple[str, tuple[str, ...], str]
"""robosuite's name of a sensor, its elements' suffixes (() for a scalar), its unit; a leading ``-`` flips the sign."""


def _pos(name: str) -> Sensor:
    return (name, XYZ, "m")


def _quat(name: str) -> Sensor:
    return (name, XYZW, "1")


@dataclass(frozen=True, slots=True)
class RobosuiteTask:
    """One robosuite environment class as a task."""

    env_name: str
    max_episode_steps: int
    instruction: str
    object: tuple[Sensor, ...] = ()
    """Parts of the object entry in order; empty: robosuite's own list, in its own order."""
    num_arms: int = 1
    dense: bool = True
    """Whether robosuite has a shaped reward."""


def _placed(name: str) -> tuple[Sensor, ...]:
    relative = f"{name}_to_robot0_eef"
    return (_pos(f"{name}_pos"), _quat(f"{name}_quat"), _pos(f"{relative}_pos"), _quat(f"{relative}_quat"))


LIFT = (_pos("cube_pos"), _quat("cube_quat"), _pos("-gripper_to_cube_pos"))
STACK = (
    *(_pos("cubeA_pos"), _quat("cubeA_quat"), _pos("cubeB_pos"), _quat("cubeB_quat")),
    *(_pos("gripper_to_cubeA"), _pos("gripper_to_cubeB"), _pos("cubeA_to_cubeB")),
)
DOOR: tuple[Sensor, ...] = (
    *(_pos("door_pos"), _pos("handle_pos"), _pos("door_to_eef_pos"), _pos("handle_to_eef_pos")),
    *(("hinge_qpos", (), "rad"), ("handle_qpos", (), "rad")),
)
TRANSPORT: tuple[Sensor, ...] = (
    *(_pos("payload_pos"), _quat("payload_quat"), _pos("trash_pos"), _quat("trash_quat")),
    *(_pos("lid_handle_pos"), _quat("lid_handle_quat"), _pos("target_bin_pos"), _pos("trash_bin_pos")),
    *(_pos("gripper0_to_payload"), _pos("gripper0_to_lid_handle")),
    *(_pos("gripper1_to_payload"), _pos("gripper1_to_trash")),
    *(("payload_in_target_bin", (), ""), ("trash_in_trash_bin", (), "")),
)

TASKS: dict[str, RobosuiteTask] = {
    task.env_name: task
    for task in (
        # The first four limits are DPPO's (Ren et al. 2024, table of robomimic settings); 300 and 400 are ours.
        RobosuiteTask("Lift", 300, "lift the red cube", LIFT),
        RobosuiteTask("PickPlaceCan", 300, "put the can into its bin", _placed("Can")),
        RobosuiteTask("NutAssemblySquare", 400, "put the square nut over the square peg", _placed("SquareNut")),
        RobosuiteTask(
            "TwoArmTransport",
            800,
            "hand the hammer from the closed bin to the other arm's bin and clear the trash",
            TRANSPORT,
            num_arms=2,
            dense=False,
        ),
        RobosuiteTask("Stack", 300, "stack the red cube on the green cube", STACK),
        RobosuiteTask("Door", 400, "open the door", DOOR),
        RobosuiteTask("PickPlaceMilk", 300, "put the milk into its bin", _placed("Milk")),
        RobosuiteTask("PickPlaceBread", 300, "put the bread into its bin", _placed("Bread")),
        RobosuiteTask("PickPlaceCereal", 300, "put the cereal into its bin", _placed("Cereal")),
        RobosuiteTask("NutAssemblyRound", 400, "put the round nut over the round peg", _placed("RoundNut")),
        RobosuiteTask("ToolHang", 700, "build the frame and hang the tool on it", dense=False),
        RobosuiteTask("TwoArmLift", 400, "lift the pot with both arms", num_arms=2),
        RobosuiteTask("TwoArmHandover", 400, "hand the hammer to the other arm", num_arms=2),
    )
}
ALIASES = {
    "lift": "Lift",
    "can": "PickPlaceCan",
    "square": "NutAssemblySquare",
    "transport": "TwoArmTransport",
    "stack": "Stack",
    "door": "Door",
}


def find_task(name: str) -> RobosuiteTask:
    """The task of a robosuite class name or of robomimic's short name; ValueError with near names."""
    task = TASKS.get(ALIASES.get(name.lower(), name))
    if task is None:
        known = {known.lower(): known for known in (*TASKS, *ALIASES)}
        close = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)
        hint = f"near: {', '.join(known[match] for match in close)}" if close else f"known are {', '.join(TASKS)}"
        raise ValueError(f"unknown robosuite task {name!r}; {hint}")
    return task


def robot_parts(num_arms: int) -> tuple[tuple[str, int], ...]:
    """(robomimic's key, size) of what the robots tell, in the order in which datasets join them."""
    sizes = (("eef_pos", 3), ("eef_quat", 4), ("gripper_qpos", 2))
    return tuple((f"robot{i}_{key}", size) for i in range(num_arms) for key, size in sizes)


def _feature(names: list[str], units: list[str]) -> Feature:
    # A quaternion's elements lie in [-1, 1]; nothing else has a bound that robosuite would tell.
    low = tuple(-1.0 if unit == "1" else -float("inf") for unit in units)
    return Feature((len(names),), tuple(names), tuple(units), low, tuple(-bound for bound in low))


def robot_feature(keys: tuple[str, ...]) -> Feature:
    """The feature of some of ``robot_parts``: names such as ``robot0_eef_quat_w``."""
    names: list[str] = []
    units: list[str] = []
    for key in keys:
        suffixes, unit = (XYZW, "1") if key.endswith("quat") else (XYZ, "m") if key.endswith("pos") else ((), "")
        if key.endswith("gripper_qpos"):
            suffixes, unit = ("0", "1"), "m"
        names += [f"{key}_{suffix}" for suffix in suffixes]
        units += [unit] * len(suffixes)
    return _feature(names, units)


def object_feature(sensors: tuple[Sensor, ...]) -> Feature:
    """The feature of the object entry."""
    names: list[str] = []
    units: list[str] = []
    for name, suffixes, unit in sensors:
        plain = name.removeprefix("-")
        names += [f"{plain}_{suffix}" for suffix in suffixes] or [plain]
        units += [unit] * max(len(suffixes), 1)
    return _feature(names, units)


def action_feature(num_arms: int) -> Feature:
    """[7] per arm: the tool's translation and rotation, as fractions of 0.05 m and 0.5 rad, and the gripper."""
    parts = ("dx", "dy", "dz", "drx", "dry", "drz", "gripper")
    names = tuple(f"robot{i}_{part}" for i in range(num_arms) for part in parts)
    units = ("0.05 m", "0.05 m", "0.05 m", "0.5 rad", "0.5 rad", "0.5 rad", "-1 open, 1 closed") * num_arms
    count = len(names)
    return Feature((count,), names, units, (-1.0,) * count, (1.0,) * count)


def entry_parts(num_arms: int, *, separate: bool) -> dict[str, tuple[str, ...]]:
    """Entry -> the keys it joins: ``state`` and ``environment_state``, or each of robomimic's keys for itself."""
    keys = tuple(key for key, _ in robot_parts(num_arms))
    if separate:
        return {**{key: (key,) for key in keys}, "object": ("object",)}
    return {"state": keys, "environment_state": ("object",)}


def describe(
    task: RobosuiteTask,
    sensors: tuple[Sensor, ...],
    *,
    separate: bool,
    limit: int,
    pictures: tuple[str, ...],
    image_size: tuple[int, int],
    cameras: tuple[str, ...],
) -> SimSpec:
    """The spec. sensors: the object entry's parts as built; pictures: cameras that are observed."""
    observation: dict[str, Feature] = {
        entry: object_feature(sensors) if keys == ("object",) else robot_feature(keys)
        for entry, keys in entry_parts(task.num_arms, separate=separate).items()
    }
    observation |= {f"image_{camera}": image_feature(*image_size) for camera in pictures}
    return SimSpec(
        name=task.env_name,
        engine="robosuite",
        observation=observation,
        action=action_feature(task.num_arms),
        action_mode=ACTION_MODE,
        control_hz=CONTROL_HZ,
        max_episode_steps=limit,
        restorable=True,
        instruction=task.instruction,
        robot="panda",
        cameras=cameras,
    )
