"""Tasks: a scene, its starts, its observation, reward and success, written once over batched arrays."""

from __future__ import annotations

import difflib

from sims.tasks.base import Task
from sims.tasks.door import Door
from sims.tasks.drawer import Drawer
from sims.tasks.lift import Lift
from sims.tasks.peg_insertion import PegInsertion
from sims.tasks.pick_place import PickPlace
from sims.tasks.push import Push
from sims.tasks.push_t import PushT
from sims.tasks.reach import Reach
from sims.tasks.stack import Stack
from sims.tasks.two_arm_transport import TwoArmTransport

TASKS: tuple[type[Task], ...] = (
    Reach,
    Push,
    Lift,
    Door,
    Drawer,
    PickPlace,
    PegInsertion,
    PushT,
    Stack,
    TwoArmTransport,
)


def make_task(name: str) -> Task:
    """Build the task called ``name``; an unknown name is a ValueError that lists the known ones, the nearest first."""
    for task in TASKS:
        if task.name == name:
            return task()
    known = sorted(task.name for task in TASKS)
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise ValueError(f"unknown task {name!r}: {hint}Known tasks: {', '.join(known)}")
