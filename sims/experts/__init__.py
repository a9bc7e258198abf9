"""Scripted experts for the native tasks, with a knob of human imperfection."""

from __future__ import annotations

from collections.abc import Callable

from sims.base import SimSpec
from sims.experts.base import Expert, ExpertConfig
from sims.experts.furniture import DoorExpert, DrawerExpert
from sims.experts.lift import LiftExpert
from sims.experts.multi_task import MultiTaskExpert
from sims.experts.peg_insertion import PegInsertionExpert
from sims.experts.pick_place import PickPlaceExpert
from sims.experts.push import PushExpert
from sims.experts.push_t import PushTExpert
from sims.experts.reach import ReachExpert
from sims.experts.stack import StackExpert
from sims.experts.two_arm_transport import TwoArmTransportExpert

__all__ = ["Expert", "ExpertConfig", "expert_for", "make_expert"]

EXPERTS: dict[str, Callable[..., Expert]] = {
    "reach": ReachExpert,
    "lift": LiftExpert,
    "push": PushExpert,
    "door": DoorExpert,
    "drawer": DrawerExpert,
    "pick_place": PickPlaceExpert,
    "peg_insertion": PegInsertionExpert,
    "push_t": PushTExpert,
    "stack": StackExpert,
    "two_arm_transport": TwoArmTransportExpert,
}


def make_expert(task: str, num_envs: int, config: ExpertConfig | None = None, *, seed: int = 0) -> Expert:
    """The expert of a native task; ValueError for a task that has none."""
    if task not in EXPERTS:
        raise ValueError(f"no scripted expert for task {task!r}: known are {', '.join(sorted(EXPERTS))}")
    return EXPERTS[task](num_envs, config, seed=seed)


def expert_for(spec: SimSpec, num_envs: int, config: ExpertConfig | None = None, *, seed: int = 0) -> Expert:
    """The expert of what a simulator plays: native tasks in any engine that takes ``ee_delta``, and robosuite's.

    Raises ValueError where there is none, or where it writes other actions than the simulator takes.
    """
    if spec.engine == "robosuite":
        from sims.robosuite_experts import make_robosuite_expert

        return make_robosuite_expert(spec.name, num_envs, config, seed=seed)
    if spec.action_mode != "ee_delta":
        raise ValueError(f"experts write ee_delta actions; this simulator takes {spec.action_mode!r}")
    if spec.tasks:
        return MultiTaskExpert([make_expert(task, num_envs, config, seed=seed) for task in spec.tasks])
    return make_expert(spec.name, num_envs, config, seed=seed)
