"""An arm in a process of its own: the driver can't be stalled by the control process, and outlives it.

The server owns the arm and visits it at a fixed rate; the client is an ``Arm`` that talks through shared memory. Kill
the client and the server's arm hears no more goals, so its own watchdog brings it to rest.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Protocol

import numpy as np

from hardware.arm import Arm, SceneArm
from hardware.clock import RealClock
from hardware.shm import ShmRing
from hardware.types import (
    ArmCommand,
    ArmFault,
    ArmSpec,
    ArmState,
    Array,
    Clock,
    CommunicationError,
    ControlMode,
    FaultReport,
    HardwareError,
    RefusedError,
    Source,
    StaleStateError,
    StopKind,
    frozen,
)

_MAX_FAULTS = 8
_CALL_S = 3.0
_ORPHAN_S = 2.0
_FAULTS, _SOURCES, _STOPS = tuple(ArmFault), tuple(Source), tuple(StopKind)
_ERRORS: Final[tuple[type[HardwareError], ...]] = (HardwareError, RefusedError, StaleStateError, CommunicationError)


class ArmFactory(Protocol):
    """A recipe that can be sent to another process and builds the arm there."""

    @property
    def spec(self) -> ArmSpec: ...

    @property
    def scene_size(self) -> tuple[int, int]:
        """(nq, nv) of a simulated scene; (0, 0) for a real arm."""
        ...

    def __call__(self, clock: Clock) -> Arm: ...


class _Op(IntEnum):
    CONNECT = 0
    ENABLE = 1
    STOP = 2
    DISABLE = 3
    DISCONNECT = 4
    RESET_SCENE = 5
    QUIT = 6


@dataclass(frozen=True, slots=True)
class ArmAddress:
    """Where a served arm is: names of its shared memory."""

    spec: ArmSpec
    scene_size: tuple[int, int]
    state: str
    command: str
    call: str
    reply: str
    server_pid: int = 0


class _Channels:
    """The four rings between server and client."""

    def __init__(self, spec: ArmSpec, scene_size: tuple[int, int], address: ArmAddress | None = None) -> None:
        n, (nq, nv) = spec.num_joints, scene_size
        vector = (np.float64, (n,))
        state = np.dtype([
            ("seq", np.int64), ("t_sample_s", np.float64), ("t_received_s", np.float64), ("position", *vector),
            ("velocity", *vector), ("gripper_m", np.float64), ("measures", np.uint8), ("effort", *vector),
            ("goal", *vector), ("enabled", np.bool_, (n,)), ("mode", "S24"), ("fault_count", np.int64),
            ("faults", np.int64, (_MAX_FAULTS, 3)), ("qpos", np.float64, (nq,)), ("qvel", np.float64, (nv,)),
        ])  # fmt: skip
        command = np.dtype([
            ("seq", np.int64), ("t_created_s", np.float64), ("t_valid_until_s", np.float64), ("values", *vector),
            ("gripper_m", np.float64), ("source", np.uint8),
        ])  # fmt: skip
        call = np.dtype([("op", np.int64), ("argument", np.int64), ("payload", np.float64, (nq + nv,))])
        reply = np.dtype([("call", np.int64), ("error", np.int64), ("message", "S256")])
        names = (address.state, address.command, address.call, address.reply) if address else (None,) * 4
        self.state = ShmRing(state, 4, name=names[0])
        self.command = ShmRing(command, 8, name=names[1])
        self.call = ShmRing(call, 8, name=names[2])
        self.reply = ShmRing(reply, 8, name=names[3])

    def close(self) -> None:
        for ring in (self.state, self.command, self.call, self.reply):
            ring.close()


class ArmProcess:
    """Starts the server and hands out clients. Close it in the process that started it."""

    def __init__(self, factory: ArmFactory, *, rate_hz: float = 500.0) -> None:
        """rate_hz: how often the server looks for goals and publishes a sample."""
        self._channels = _Channels(factory.spec, factory.scene_size)
        rings = self._channels
        names = (rings.state.name, rings.command.name, rings.call.name, rings.reply.name)
        address = ArmAddress(factory.spec, factory.scene_size, *names)
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=_serve, args=(factory, address, rate_hz), daemon=False)
        self._process.start()
        self._clients: list[RemoteArm] = []
        self.address = ArmAddress(factory.spec, factory.scene_size, *names, server_pid=self._process.pid or 0)

    def client(self, clock: Clock | None = None) -> RemoteArm:
        """An arm to hand to a gate, here; elsewhere build ``RemoteArm(address)``."""
        made = RemoteArm(self.address, clock)
        self._clients.append(made)
        return made

    def close(self, timeout_s: float = 5.0) -> None:
        """Ask the server to disconnect the arm and end, by force after ``timeout_s``. Callable twice."""
        if self._process.is_alive():
            self._channels.call.scratch["op"] = _Op.QUIT
            self._channels.call.publish()
            self._process.join(timeout_s)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()
        for made in self._clients:
            made.close()
        self._channels.close()


class RemoteArm:
    """``Arm`` (and ``SceneArm`` where the server's is one) at the other end of shared memory."""

    def __init__(self, address: ArmAddress, clock: Clock | None = None) -> None:
        self.address, self._clock = address, clock or RealClock()
        self._rings = _Channels(address.spec, address.scene_size, address)
        self._last_state = -1

    @property
    def spec(self) -> ArmSpec:
        """See ``Arm.spec``."""
        return self.address.spec

    def connect(self) -> ArmState:
        """See ``Arm.connect``."""
        self._call(_Op.CONNECT, timeout_s=30.0)
        deadline_s = self._clock.now_s() + 1.0
        while True:
            try:
                return self.read()
            except StaleStateError:
                if self._clock.now_s() > deadline_s:
                    raise

    def enable(self) -> None:
        """See ``Arm.enable``."""
        self._call(_Op.ENABLE)

    def read(self) -> ArmState:
        """See ``Arm.read``."""
        return _decode(self._newest())

    def send(self, command: ArmCommand) -> ArmCommand:
        """See ``Arm.send``; returns before the server has seen it, so without the arm's rounding."""
        scratch = self._rings.command.scratch
        scratch["seq"], scratch["t_created_s"], scratch["values"] = command.seq, command.t_created_s, command.values
        scratch["t_valid_until_s"], scratch["gripper_m"] = command.t_valid_until_s, command.gripper_m
        scratch["source"] = _SOURCES.index(command.source)
        self._rings.command.publish()
        return command

    def stop(self, kind: StopKind) -> None:
        """See ``Arm.stop``; CommunicationError when the server doesn't answer, which then sees no goals either."""
        self._call(_Op.STOP, _STOPS.index(kind), timeout_s=0.2)

    def disable(self) -> None:
        """See ``Arm.disable``."""
        self._call(_Op.DISABLE)

    def disconnect(self) -> None:
        """See ``Arm.disconnect``; the server lives on."""
        self._call(_Op.DISCONNECT)

    def scene_state(self) -> tuple[Array, Array]:
        """See ``SceneArm.scene_state``."""
        latest = self._rings.state.latest()
        if latest is None or not self.address.scene_size[0]:
            raise StaleStateError("no scene: the served arm is not simulated, or has not been connected yet")
        return latest[1]["qpos"].copy(), latest[1]["qvel"].copy()

    def reset_scene(self, qpos: Array, qvel: Array | None = None) -> None:
        """See ``SceneArm.reset_scene``."""
        payload = np.concatenate([qpos, np.zeros(self.address.scene_size[1]) if qvel is None else qvel])
        self._call(_Op.RESET_SCENE, payload=payload)

    def close(self) -> None:
        """Detach from the shared memory."""
        self._rings.close()

    def _newest(self) -> Any:
        """Wait for a sample that wasn't read before, at most two sample periods."""
        deadline_s = time.monotonic() + 2.0 / self.spec.state_hz
        while True:
            latest = self._rings.state.latest(self._last_state)
            if latest is not None:
                self._last_state = latest[0]
                return latest[1]
            if time.monotonic() > deadline_s:
                raise StaleStateError(f"the arm's process gave no sample for {2e3 / self.spec.state_hz:.0f} ms")
            time.sleep(2e-4)

    def _call(self, op: _Op, argument: int = 0, *, payload: Array | None = None, timeout_s: float = _CALL_S) -> None:
        scratch = self._rings.call.scratch
        scratch["op"], scratch["argument"] = op, argument
        if payload is not None:
            scratch["payload"] = payload
        call = self._rings.call.publish()
        deadline_s, seen = time.monotonic() + timeout_s, self._rings.reply.count - 1
        while time.monotonic() < deadline_s:
            for index in range(max(0, seen - 4), self._rings.reply.count):
                reply = self._rings.reply.read(index)
                if reply is not None and reply["call"] == call:
                    if reply["error"] >= 0:
                        raise _ERRORS[int(reply["error"])](reply["message"].decode(errors="replace"))
                    return
            time.sleep(5e-4)
        raise CommunicationError(f"the arm's process did not answer {op.name} within {timeout_s} s")


def _decode(record: Any) -> ArmState:
    measures = int(record["measures"])
    count = min(int(record["fault_count"]), _MAX_FAULTS)
    reports = tuple(FaultReport(_FAULTS[int(f)], int(j), int(r)) for f, j, r in record["faults"][:count])
    return ArmState(
        seq=int(record["seq"]),
        t_sample_s=float(record["t_sample_s"]),
        t_received_s=float(record["t_received_s"]),
        position_rad=frozen(record["position"]),
        velocity_rad_s=frozen(record["velocity"]),
        gripper_m=float(record["gripper_m"]),
        effort_n_m=frozen(record["effort"]) if measures & 1 else None,
        goal_echo_rad=frozen(record["goal"]) if measures & 2 else None,
        enabled=record["enabled"].copy() if measures & 4 else None,
        vendor_mode=record["mode"].decode(),
        faults=reports,
    )


class _Server:
    """The loop around one arm."""

    def __init__(self, arm: Arm, rings: _Channels) -> None:
        self._arm, self._rings = arm, rings
        self._connected = False
        self._last_call = self._last_command = -1
        self.quit = False

    def turn(self) -> None:
        """Calls, then the newest goal, then a sample."""
        while self._last_call < self._rings.call.count - 1:
            self._last_call += 1
            record = self._rings.call.read(self._last_call)
            if record is not None:
                self._answer(self._last_call, record)
        latest = self._rings.command.latest(self._last_command)
        if latest is not None:
            self._last_command = latest[0]
            self._send(latest[1])
        if self._connected:
            self._publish()

    def _send(self, record: Any) -> None:
        command = ArmCommand(
            seq=int(record["seq"]),
            t_created_s=float(record["t_created_s"]),
            t_valid_until_s=float(record["t_valid_until_s"]),
            mode=ControlMode.JOINT_POSITION,
            values=frozen(record["values"]),
            gripper_m=float(record["gripper_m"]),
            source=_SOURCES[int(record["source"])],
        )
        try:
            self._arm.send(command)
        except HardwareError:
            return  # the gate sees it in the samples: a lost write doesn't come back as an echo

    def _publish(self) -> None:
        try:
            state = self._arm.read()
        except HardwareError:
            return  # no sample: the client's read times out
        scratch = self._rings.state.scratch
        scratch["seq"], scratch["t_sample_s"], scratch["t_received_s"] = state.seq, state.t_sample_s, state.t_received_s
        scratch["position"], scratch["velocity"], scratch["gripper_m"] = (
            state.position_rad,
            state.velocity_rad_s,
            state.gripper_m,
        )
        measured = (("effort", state.effort_n_m), ("goal", state.goal_echo_rad), ("enabled", state.enabled))
        scratch["measures"] = sum((array is not None) << bit for bit, (_, array) in enumerate(measured))
        for name, array in measured:
            if array is not None:
                scratch[name] = array
        scratch["mode"], scratch["fault_count"] = state.vendor_mode.encode()[:24], len(state.faults)
        for row, report in enumerate(state.faults[:_MAX_FAULTS]):
            scratch["faults"][row] = (_FAULTS.index(report.fault), report.joint, report.raw)
        if isinstance(self._arm, SceneArm):
            scratch["qpos"], scratch["qvel"] = self._arm.scene_state()
        self._rings.state.publish()

    def _answer(self, call: int, record: Any) -> None:
        scratch = self._rings.reply.scratch
        scratch["call"], scratch["error"], scratch["message"] = call, -1, b""
        try:
            self._do(_Op(int(record["op"])), int(record["argument"]), record["payload"])
        except Exception as error:  # noqa: BLE001 - the server outlives every failed call
            kinds = [i for i, kind in enumerate(_ERRORS) if isinstance(error, kind)]
            scratch["error"], scratch["message"] = max(kinds, default=0), str(error).encode()[:256]
        self._rings.reply.publish()

    def _do(self, op: _Op, argument: int, payload: Array) -> None:
        if op is _Op.CONNECT:
            self._arm.connect()
            self._connected = True
        elif op is _Op.STOP:
            self._arm.stop(_STOPS[argument])
        elif op is _Op.DISCONNECT:
            self._connected = False
            self._arm.disconnect()
        elif op is _Op.RESET_SCENE and isinstance(self._arm, SceneArm):
            nq = len(self._arm.scene_state()[0])
            self._arm.reset_scene(payload[:nq].copy(), payload[nq:].copy())
        elif op is _Op.QUIT:
            self.quit = True
        else:
            actions: dict[_Op, Callable[[], None]] = {_Op.ENABLE: self._arm.enable, _Op.DISABLE: self._arm.disable}
            if op not in actions:
                raise RefusedError(f"{op.name} is not possible with this arm")
            actions[op]()


def _serve(factory: ArmFactory, address: ArmAddress, rate_hz: float) -> None:
    """Process entry: serve until told to quit, or until the parent is gone and the arm had time to come to rest."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the control process decides
    clock = RealClock()
    rings = _Channels(factory.spec, factory.scene_size, address)
    arm = factory(clock)
    server = _Server(arm, rings)
    parent, orphaned_s = os.getppid(), None
    due_s = clock.now_s()
    try:
        while not server.quit:
            server.turn()
            now_s = clock.now_s()
            if os.getppid() != parent:
                orphaned_s = orphaned_s or now_s
                if now_s - orphaned_s > _ORPHAN_S:
                    break
            due_s = max(due_s + 1.0 / rate_hz, now_s - 0.05)
            clock.sleep_until(due_s)
    finally:
        _release(arm)
        rings.close()


def _release(arm: Arm) -> None:
    """Each step even when the one before failed."""
    try:
        arm.stop(StopKind.CONTROLLED)
    finally:
        arm.disconnect()
