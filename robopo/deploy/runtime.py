"""Run a policy on an arm: the control loop with the gate in this process, the policy in another one.

The loop keeps time by absolute deadlines. Once per control step of the policy it looks (``observe``); before the
executed rows run out it asks for the next chunk, and goes on ticking the gate while the policy thinks. Whatever the
policy's process does, the gate has the last word.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardware.arm import Arm
from hardware.clock import RealClock
from hardware.estop import EStopLatch, Mode
from hardware.events import EventLog
from hardware.gate import SafetyGate
from hardware.types import ArmState, Array
from robopo.deploy.checkpoint_spec import DeployedPolicy, read_policy_spec
from robopo.deploy.chunking import RequestMargin, Resolver, stack_history, timed_chunk
from robopo.deploy.config import DeployConfig, DeployReport
from robopo.deploy.policy_process import Answer, Loader, PolicyJob, PolicyProcess, Status, load_checkpoint
from robopo.deploy.realtime import Pacer, StopRequest, punctual, timing
from robopo.deploy.recorder import Frame, Recorder
from robopo.errors import RobopoError, ShapeError

log = logging.getLogger(__name__)

_STILL_RAD, _STILL_S = 0.003, 0.1

Observe = Callable[[ArmState], Mapping[str, NDArray[Any]]]
"""Newest sample → observation entries [D], named as the policy's."""
Observation = dict[str, NDArray[np.float32]]


def deploy(
    config: DeployConfig,
    *,
    arm: Arm,
    observe: Observe,
    resolver: Resolver,
    checkpoint: Path,
    recorder: Recorder | None = None,
    success: Callable[[], bool] | None = None,
    reset: Callable[[int], None] | None = None,
    load: Loader = load_checkpoint,
) -> DeployReport:
    """Run ``config.episodes`` episodes behind the gate and report.

    arm: not connected. resolver and load travel to the policy's process, so they must be picklable. success: asked once
    per control step; True ends the episode. reset: called with the episode's index while the arm is disconnected (a
    simulated scene is set here; with a real arm a person prepares the table). SIGINT and SIGTERM stop in control.
    """
    deployment = Deployment(
        config,
        arm=arm,
        observe=observe,
        resolver=resolver,
        checkpoint=checkpoint,
        recorder=recorder,
        success=success,
        reset=reset,
        load=load,
    )
    return deployment.run()


class Deployment:
    """One run. ``policy_process`` exists while it runs."""

    def __init__(
        self,
        config: DeployConfig,
        *,
        arm: Arm,
        observe: Observe,
        resolver: Resolver,
        checkpoint: Path,
        recorder: Recorder | None = None,
        success: Callable[[], bool] | None = None,
        reset: Callable[[int], None] | None = None,
        load: Loader = load_checkpoint,
    ) -> None:
        self.policy: DeployedPolicy = read_policy_spec(checkpoint)
        config.check_policy(self.policy)
        self.config, self._arm, self._observe = config, arm, observe
        self._recorder, self._success, self._reset = recorder, success, reset
        self._clock = RealClock()
        self.events = EventLog(config.run_dir / "events.jsonl")
        latch = EStopLatch(config.latch_path(arm.spec.name))
        self.gate = SafetyGate(arm, config.gate, clock=self._clock, latch=latch, events=self.events)
        self._job = PolicyJob(checkpoint, self.policy, arm.spec, resolver, load, config.seed)
        self.policy_process: PolicyProcess | None = None
        self._pacer = Pacer(config.gate.tick_s)
        self._stop = StopRequest()
        self._inference_s: list[float] = []
        self._delay_s: list[float] = []
        self._steps = self._begun = self._successes = self._own_holds = self._holds_passed = 0
        self._ended_by = ""

    def run(self) -> DeployReport:
        """All episodes; on the way out, whatever happened, the arm is stopped, released and disconnected.

        RobopoError: the recording could not be written.
        """
        config = self.config
        realtime = False
        process = self.policy_process = PolicyProcess(self._job)
        try:
            with self._stop:
                first_s = process.wait_ready(config.policy_start_s)
                most_s = 0.5 * self.policy.action_steps * self.policy.dt_s
                self._margin = RequestMargin(first_s, tick_s=config.gate.tick_s, most_s=most_s)
                with punctual(config.fifo_priority) as realtime:
                    self._episodes(process)
        except BaseException as error:
            lost = self._shut_down(process)
            if lost is not None:
                error.add_note(f"the recording could not be written either: {lost!r}")
            raise
        lost = self._shut_down(process)
        report = self._report(realtime)
        (config.run_dir / "report.json").write_text(json.dumps(report.as_dict(), indent=2))
        if lost is not None:
            raise RobopoError(f"the recording could not be written: {lost!r}; the run itself ended") from lost
        return report

    def _episodes(self, process: PolicyProcess) -> None:
        for episode in range(self.config.episodes):
            if self._reset is not None:
                self._reset(episode)
            self.gate.connect()
            self.gate.enable()
            self._begun += 1
            self._pacer.restart()
            succeeded = _Episode(self, process, episode).run()
            self._successes += bool(succeeded)
            if self._recorder is not None:
                self._recorder.end(succeeded)
            self.come_to_rest("end of the episode")
            self._ended_by = self._reason_to_end(process)
            if self._ended_by:
                break
            self.gate.disconnect()

    def _reason_to_end(self, process: PolicyProcess) -> str:
        """A signal, a fault, a hold that nobody asked for, or a policy that is gone; empty to go on."""
        if self._stop.received:
            return self._stop.received
        stopped = self.gate.mode in {Mode.FAULT, Mode.ESTOP}
        held = self.gate.ledger.counts["hold"] - self._own_holds - self._holds_passed
        self._holds_passed += held
        cause = self.gate.ledger.cause
        if stopped or (held and not self.config.continue_after_hold):
            return cause.rule.name if cause else self.gate.mode.name
        return "" if process.alive else "POLICY_PROCESS_ENDED"

    def come_to_rest(self, why: str) -> None:
        """Brake under the limits and tick until nothing moves."""
        if self.gate.mode is Mode.RUNNING:
            self.gate.hold(why)
            self._own_holds += 1
        deadline_s = self._clock.now_s() + self.config.settle_s
        since_s, place = self._clock.now_s(), self._place()
        while self._clock.now_s() < deadline_s and self.gate.mode not in {Mode.DISCONNECTED, Mode.IDLE}:
            self.turn()
            now_s, here = self._clock.now_s(), self._place()
            # By displacement: a gripped object makes joint speeds chatter while nothing goes anywhere.
            if float(np.abs(here - place).max()) > _STILL_RAD:
                since_s, place = now_s, here
            braked = self.gate.at_rest or self.gate.mode in {Mode.FAULT, Mode.ESTOP}
            if braked and now_s - since_s >= _STILL_S:
                return

    def _place(self) -> Array:
        state = self.gate.state
        return self.gate.shaper.output if state is None else state.position_rad

    def turn(self) -> None:
        """One tick, then sleep until the next is due."""
        due_s = self._pacer.woke(self._clock.now_s())
        self.gate.tick()
        self._clock.sleep_until(due_s)

    def _shut_down(self, process: PolicyProcess) -> Exception | None:
        """Stop, release, close; each step even when the one before failed. Returns why the recording is lost."""
        steps: list[Callable[[], object]] = [
            lambda: self.come_to_rest("shutting down"),
            self.gate.disconnect,
            process.close,
            lambda: self.gate.ring.save(self.config.run_dir / "ticks.npz"),
            self.events.close,
        ]
        save = None if self._recorder is None else self._recorder.close
        lost: Exception | None = None
        for step in [*steps, save] if save else steps:
            try:
                step()
            except Exception as error:
                log.exception("shutting down went on after an error")
                lost = error if step is save else lost
        return lost

    def take(self, answer: Answer) -> None:
        """Book an answer's time."""
        self._inference_s.append(answer.inference_s)

    def arrived(self, delay_s: float) -> None:
        """Book a chunk's delay since its observation."""
        self._delay_s.append(delay_s)
        self._margin.add(delay_s)

    @property
    def margin_s(self) -> float:
        """How early to ask."""
        return self._margin.seconds

    def observation(self) -> Observation:
        """Look; a wrong key or shape is a ShapeError, and the run ends in control."""
        state = self.gate.state
        if state is None:
            raise ShapeError("no sample of the arm yet; tick the gate before observing")
        entries = self._observe(state)
        obs = {key: np.asarray(entries[key], dtype=np.float32) for key in self.policy.obs if key in entries}
        found = {key: value.shape for key, value in obs.items()}
        expected = {key: (size,) for key, size in self.policy.obs.items()}
        if found != expected:
            raise ShapeError(f"observe gave {found} of {sorted(entries)}, the policy expects {expected}")
        return obs

    def reference(self) -> tuple[Array, float]:
        """Joints [n] and opening that actions are resolved from: the targets of now, close to the measured joints."""
        state, most = self.gate.state, self.config.reference_error_rad
        joints, gripper_m = self.gate.due()
        if state is None:
            return joints, gripper_m
        return np.clip(joints, state.position_rad - most, state.position_rad + most), gripper_m

    def finish_step(self, frame: Frame) -> bool:
        """Count and record one control step; whether the task is done."""
        self._steps += 1
        if self._recorder is not None:
            self._recorder.add(frame)
        return self._success is not None and bool(self._success())

    @property
    def judged(self) -> bool:
        """Whether anybody says if an episode succeeded."""
        return self._success is not None

    @property
    def stop_requested(self) -> bool:
        """A signal has arrived."""
        return self._stop.received is not None

    def _report(self, realtime: bool) -> DeployReport:
        counts = self.gate.ledger.counts
        periods = timing(self._pacer.periods_s)
        return DeployReport(
            episodes=self._begun,
            successes=self._successes,
            steps=self._steps,
            gate_interventions=counts["corrected_ticks"],
            gate_ticks=counts["ticks"],
            rejected_chunks=counts["rejected_chunks"],
            holds=counts["hold"] - self._own_holds,
            faults=counts["fault"],
            estops=counts["estop"],
            period_p50_ms=periods.p50_ms,
            period_p99_ms=periods.p99_ms,
            lateness=timing(self._pacer.lateness_s),
            inference=timing(self._inference_s),
            delay=timing(self._delay_s),
            realtime=realtime,
            stopped_by=self._ended_by,
            events_path=self.config.run_dir / "events.jsonl",
        )


class _Episode:
    """The loop of one episode: looks at control steps, asks ahead of time, hands chunks to the gate."""

    def __init__(self, owner: Deployment, process: PolicyProcess, index: int) -> None:
        self._owner, self._process, self._index = owner, process, index
        self._gate, self._policy = owner.gate, owner.policy
        self._clock = RealClock()
        self._history: deque[Observation] = deque(maxlen=self._policy.obs_steps)
        self._pending: tuple[int, float] | None = None  # request number and time of its observation
        self._request_s = -np.inf
        self._frame_s = np.inf
        self._open: tuple[float, Observation] | None = None  # the running control step: its start and observation
        self._actions: NDArray[np.float32] | None = None
        self._t0_s = 0.0
        self._rules = 0
        self._chunks = self._steps = 0

    def run(self) -> bool | None:
        """True or False as ``success`` says; None where nobody judges or the run was stopped."""
        self._gate.tick()
        while True:
            now_s = self._clock.now_s()
            self._accept(now_s)
            done = False
            if self._pending is None and now_s >= self._request_s:
                done = self._look(now_s)
                self._ask(now_s)
            elif now_s >= self._frame_s:
                done = self._look(now_s)
            if done:
                return True
            if self._steps >= self._owner.config.episode_steps or self._gate.mode is not Mode.RUNNING:
                return False if self._owner.judged else None
            if self._owner.stop_requested:
                return None
            self._owner.turn()
            self._rules |= self._gate.ledger.rules

    def _look(self, now_s: float) -> bool:
        """A control step ends and the next begins; whether the task is done."""
        obs = self._owner.observation()
        self._history.append(obs)
        done = self._close_step()
        self._open = (now_s, obs)
        self._frame_s = now_s + self._policy.dt_s
        return done

    def _close_step(self) -> bool:
        """Count the control step that ran since the last look; before the first chunk there is none."""
        if self._open is None or self._actions is None:
            return False
        start_s, obs = self._open
        row = round((start_s - self._t0_s) / self._policy.dt_s)
        shaper = self._gate.shaper
        gripper = self._gate.spec.gripper is not None
        frame = Frame(
            t_s=start_s,
            obs=obs,
            action=self._actions[min(max(row, 0), len(self._actions) - 1)],
            requested=np.append(shaper.target, shaper.gripper_target_m) if gripper else shaper.target.copy(),
            sent=np.append(shaper.output, shaper.gripper_m) if gripper else shaper.output.copy(),
            gate_rules=self._rules,
        )
        self._steps += 1
        self._rules = 0
        return self._owner.finish_step(frame)

    def _ask(self, now_s: float) -> None:
        flat = stack_history(self._history, list(self._policy.obs))
        if not np.isfinite(flat).all():
            self._gate.hold("the observation is not finite")
            return
        joints, gripper_m = self._owner.reference()
        request = self._process.ask(
            flat,
            q_ref=joints,
            gripper_m=gripper_m,
            episode=self._index,
            first=self._chunks == 0,
        )
        self._pending = (request, now_s)

    def _accept(self, now_s: float) -> None:
        """Hand an arrived chunk to the gate; a dropped one is asked for again."""
        answer = self._process.poll()
        if answer is None or self._pending is None or answer.request != self._pending[0]:
            return
        t_obs_s = self._pending[1]
        self._pending = None
        self._owner.take(answer)
        if answer.status is Status.ERROR:
            self._gate.ledger.write("policy_error", detail=answer.message)
        # The arm stood still while the first decision was made: its rows start on arrival.
        first = self._chunks == 0
        t0_s = now_s if first else t_obs_s
        chunk = timed_chunk(
            answer.rows,
            seq=self._chunks,
            obs_seq=answer.request,
            t_obs_s=t_obs_s,
            t0_s=t0_s,
            dt_s=self._policy.dt_s,
            hold_rows=self._owner.config.hold_rows,
        )
        self._owner.arrived(now_s - t_obs_s)
        self._request_s = now_s
        if self._gate.submit(chunk):
            self._chunks += 1
            self._actions, self._t0_s = answer.actions, t0_s
            self._request_s = t0_s + self._policy.action_steps * self._policy.dt_s - self._owner.margin_s
            if first and self._open is not None:
                self._open = (t0_s, self._open[1])
                self._frame_s = t0_s + self._policy.dt_s
