"""The contract of every arm, real or simulated."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from hardware.types import ArmCommand, ArmSpec, ArmState, Array, StopKind


@runtime_checkable
class Arm(Protocol):
    """One link to one arm, owned by one thread of one process. Only ``SafetyGate`` calls ``send``.

    A lost link never resumes by itself: it takes an operator's ``enable``.
    """

    @property
    def spec(self) -> ArmSpec:
        """Known before connecting."""
        ...

    def connect(self) -> ArmState:
        """Open the link and check identity, firmware and calibration. Never energises, never prompts."""
        ...

    def enable(self) -> None:
        """Set the goal to the measured pose, then torque on; verify each joint. RefusedError while a fault stands."""
        ...

    def read(self) -> ArmState:
        """A fresh sample within 2/state_hz, else StaleStateError; never a cached one. CommunicationError: link gone."""
        ...

    def send(self, command: ArmCommand) -> ArmCommand:
        """Send one setpoint; returns what the drives will do after their own rounding and clamps."""
        ...

    def stop(self, kind: StopKind) -> None:
        """Best effort on every joint, from any state, any number of times; HardwareError if it may not have arrived."""
        ...

    def disable(self) -> None:
        """Torque off joint by joint past errors, then verify by reading; HardwareError lists joints still energised."""
        ...

    def disconnect(self) -> None:
        """Disable unless that is done, then close the link; callable twice."""
        ...


@runtime_checkable
class SceneArm(Arm, Protocol):
    """An arm inside a simulator, where the world can be read and set."""

    def scene_state(self) -> tuple[Array, Array]:
        """Generalised positions [nq] and velocities [nv] of the whole scene, without any latency."""
        ...

    def reset_scene(self, qpos: Array, qvel: Array | None = None) -> None:
        """Put the scene into a state; RefusedError while the arm is enabled. The arm's goal becomes its pose."""
        ...
