"""A three-joint arm with a gripper, its gate and a manual clock: everything a fault scenario needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import mujoco
import numpy as np

from hardware.clock import ManualClock
from hardware.estop import EStopLatch, Mode
from hardware.events import EventLog
from hardware.gate import SafetyGate, TickReport
from hardware.gate_config import GateConfig
from hardware.interlocks import Rule
from hardware.types import ActionChunk, ArmSpec, GripperSpec, JointSpec
from sims.sim_arm import MEASURES, SimArm, SimArmConfig

XML = """
<mujoco>
  <compiler angle="radian" autolimits="true"/>
  <option timestep="0.002" gravity="0 0 0"/>
  <worldbody>
    <body><inertial mass="1" pos="0.1 0 0" diaginertia="0.01 0.01 0.01"/>
      <joint name="joint1" axis="0 0 1" range="-2 2" armature="0.1" damping="0.5"/>
      <body pos="0.2 0 0"><inertial mass="0.5" pos="0.1 0 0" diaginertia="0.005 0.005 0.005"/>
        <joint name="joint2" axis="0 1 0" range="-1.5 1.5" armature="0.1" damping="0.5"/>
        <body pos="0.2 0 0"><inertial mass="0.3" pos="0.05 0 0" diaginertia="0.002 0.002 0.002"/>
          <joint name="joint3" axis="0 1 0" range="-1 2.5" armature="0.1" damping="0.5"/>
          <body><inertial mass="0.02" pos="0 0 0" diaginertia="1e-5 1e-5 1e-5"/>
            <joint name="finger_joint1" type="slide" axis="0 1 0" range="0 0.04" armature="0.1" damping="5"/></body>
          <body><inertial mass="0.02" pos="0 0 0" diaginertia="1e-5 1e-5 1e-5"/>
            <joint name="finger_joint2" type="slide" axis="0 -1 0" range="0 0.04" armature="0.1" damping="5"/></body>
        </body>
      </body>
    </body>
  </worldbody>
  <tendon>
    <fixed name="opening"><joint joint="finger_joint1" coef="1"/><joint joint="finger_joint2" coef="1"/></fixed>
  </tendon>
  <actuator>
    <position name="actuator1" joint="joint1" kp="400" kv="20" forcerange="-60 60"/>
    <position name="actuator2" joint="joint2" kp="400" kv="20" forcerange="-60 60"/>
    <position name="actuator3" joint="joint3" kp="400" kv="20" forcerange="-60 60"/>
    <position name="gripper" tendon="opening" ctrlrange="0 0.08" kp="200" kv="20" forcerange="-20 20"/>
  </actuator>
</mujoco>
"""
N = 3


def model() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(XML)


def spec(**changes: object) -> ArmSpec:
    ranges = ((-2.0, 2.0), (-1.5, 1.5), (-1.0, 2.5))
    joints = tuple(JointSpec(f"joint{i + 1}", low, high, 2.0, 10.0, 200.0) for i, (low, high) in enumerate(ranges))
    base = ArmSpec(
        name="tiny",
        joints=joints,
        gripper=GripperSpec(0.0, 0.08, velocity_max_m_s=0.2),
        measures=MEASURES,
        vendor_watchdog_s=0.1,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def fast_arm(clock: object) -> SimArm:
    """For processes: builds the arm where it runs."""
    return SimArm(model(), spec(vendor_watchdog_s=0.3), clock=clock)  # type: ignore[arg-type]


class Rig:
    """Arm, gate and clock; the gate is enabled and waits for a chunk unless told otherwise."""

    def __init__(
        self, folder: Path, config: GateConfig | None = None, *, enable: bool = True, **options: object
    ) -> None:
        self.clock = ManualClock()
        self.config = config or GateConfig()
        self.arm_spec = spec(**options.pop("spec", {}))  # type: ignore[arg-type]
        self.pressed = False
        sim: SimArmConfig = options.pop("sim", SimArmConfig())  # type: ignore[assignment]
        self.arm = SimArm(model(), self.arm_spec, clock=self.clock, config=sim)
        self.latch = EStopLatch(folder / "estop.json")
        self.gate = self.new_gate()
        self.seq = 0
        self.reports: list[TickReport] = []
        if enable:
            self.gate.connect()
            self.gate.enable()

    def new_gate(self) -> SafetyGate:
        return SafetyGate(
            self.arm,
            self.config,
            clock=self.clock,
            latch=self.latch,
            events=EventLog(),
            estop_pressed=lambda: self.pressed,
        )

    def tick(self, ticks: int = 1) -> TickReport:
        for _ in range(ticks):
            self.reports.append(self.gate.tick())
            self.clock.advance(self.config.tick_s)
        return self.reports[-1]

    def chunk(
        self, joints: np.ndarray, *, dt_s: float = 0.05, gripper_m: float = 0.02, **changes: object
    ) -> ActionChunk:
        """Rows [H, 3] from now on."""
        self.seq += 1
        now_s = self.clock.now_s()
        values = np.column_stack([joints, np.full(len(joints), gripper_m)])
        base = ActionChunk(self.seq, self.seq, now_s, now_s, dt_s, values)
        return replace(base, **changes)  # type: ignore[arg-type]

    def sweep(
        self, speed_rad_s: float = 0.5, rows: int = 12, dt_s: float = 0.05, joint: Sequence[int] = (0,)
    ) -> ActionChunk:
        """A chunk that moves joints at constant speed from the present target."""
        joints = np.tile(self.gate.shaper.target, (rows, 1))
        joints[:, list(joint)] += (speed_rad_s * dt_s * np.arange(rows))[:, None]
        return self.chunk(joints, dt_s=dt_s)

    def drive(self, seconds: float, speed_rad_s: float = 0.5, joint: Sequence[int] = (0,)) -> None:
        """Run a healthy policy: a new chunk every 0.2 s."""
        for index in range(round(seconds / self.config.tick_s)):
            if index % 20 == 0 and self.gate.mode is Mode.RUNNING:
                self.gate.submit(self.sweep(speed_rad_s, joint=joint))
            self.tick()

    def speed(self) -> float:
        """Largest measured joint speed."""
        return float(np.abs(self.arm.scene_state()[1][:N]).max())

    def settle(self, seconds: float = 1.0) -> None:
        self.tick(round(seconds / self.config.tick_s))

    def kinds(self, kind: str) -> list[dict]:
        return self.gate.ledger.events.of(kind)


def assert_stops(rig: Rig, mode: Mode, rule: Rule, ticks: int = 1) -> None:
    """The state is reached within ``ticks`` because of ``rule``; the arm comes to rest; nothing sent was unlimited."""
    rig.tick(ticks)
    assert rig.gate.mode is mode
    assert rig.gate.ledger.cause.rule is rule
    rig.settle(1.0)
    assert rig.gate.mode is mode
    assert rig.speed() < 0.01
    sent = rig.gate.ring.last()["sent_rad"]
    sent = sent[np.isfinite(sent).all(axis=1)]
    assert (np.abs(np.diff(sent, axis=0)) <= 1.5 * 0.01 + 1e-9).all()


def moving(tmp_path, **options) -> Rig:
    rig = Rig(tmp_path, **options)
    rig.drive(2.4)
    assert rig.gate.mode is Mode.RUNNING and rig.speed() > 0.3
    return rig
