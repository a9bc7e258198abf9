"""An arm whose link is cut in the middle of a motion, and a measurement of how it comes to rest."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hardware.clock import RealClock
from hardware.types import ArmCommand, ArmSpec, ArmState, StopKind
from sims.sim_arm import SimArm

STILL_RAD, STILL_S = 0.005, 0.1
"""At rest: no joint has moved further than this for this long. Contact makes speeds chatter, positions don't."""
LONGEST_S = 3.0


class CutResult(NamedTuple):
    """How fast the fastest joint was when the link was cut, and how long until no joint moved any more."""

    speed_rad_s: float
    rest_s: float | None
    """None: not within LONGEST_S."""


class LinkCutArm:
    """``hardware.arm.Arm`` in front of a ``SimArm``; nothing passes once ``after_s`` of motion are over.

    The arm's own watchdog has to stop it: neither the gate nor the policy can reach it any more. From then on every
    call also looks at the scene, as a bystander would, until the arm rests; ``disconnect`` waits for that.
    """

    def __init__(self, arm: SimArm, *, after_s: float) -> None:
        self.spec: ArmSpec = arm.spec
        self._arm, self._after_s, self._clock = arm, after_s, RealClock()
        self._first_send_s: float | None = None
        self._cut_s: float | None = None
        self._speed = 0.0
        self._rest_s: float | None = None
        self._since: tuple[float, NDArray[np.float64]] | None = None  # when and where it last was on the move

    @property
    def result(self) -> CutResult | None:
        """None before the cut."""
        return None if self._cut_s is None else CutResult(self._speed, self._rest_s)

    def connect(self) -> ArmState:
        """Open the link."""
        return self._arm.connect()

    def enable(self) -> None:
        """Energise."""
        self._arm.enable()

    def read(self) -> ArmState:
        """The newest sample; cuts the link when its time has come."""
        now_s = self._clock.now_s()
        if self._cut_s is None and self._first_send_s is not None and now_s - self._first_send_s > self._after_s:
            self._speed, self._cut_s = self._fastest(), now_s
            self._arm.faults.link_cut = True
        self._watch()
        return self._arm.read()

    def send(self, command: ArmCommand) -> ArmCommand:
        """Pass a command on."""
        if self._first_send_s is None:
            self._first_send_s = self._clock.now_s()
        return self._arm.send(command)

    def stop(self, kind: StopKind) -> None:
        """Ask for a stop; after the cut nobody hears it."""
        self._arm.stop(kind)

    def disable(self) -> None:
        """Release."""
        self._arm.disable()

    def disconnect(self) -> None:
        """Wait until the arm rests, then let go of the scene and mend the link."""
        if self._cut_s is not None:
            while self._rest_s is None and self._clock.now_s() - self._cut_s < LONGEST_S:
                self._watch()
                self._clock.sleep_until(self._clock.now_s() + 0.005)
            self._arm.faults.link_cut = False
        self._arm.disconnect()

    def _watch(self) -> None:
        if self._cut_s is None or self._rest_s is not None:
            return
        now_s, joints = self._clock.now_s(), self._arm.scene_state()[0][: self.spec.num_joints]
        if self._since is None or np.abs(joints - self._since[1]).max() > STILL_RAD:
            self._since = (now_s, joints)
        elif now_s - self._since[0] >= STILL_S:
            self._rest_s = self._since[0] - self._cut_s

    def _fastest(self) -> float:
        return float(np.abs(self._arm.scene_state()[1][: self.spec.num_joints]).max())
