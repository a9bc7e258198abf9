"""The policy in a process of its own: asked through shared memory, answers with joint rows, can die without harm."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hardware.shm import ShmRing
from hardware.types import ArmSpec, Array
from robopo.deploy.checkpoint_spec import DeployedPolicy
from robopo.deploy.chunking import Resolver, joint_rows, unstack_history
from robopo.errors import RobopoError

log = logging.getLogger(__name__)

_WARM_UPS = 10
_POLL_S = 5e-4


class PolicyRunner(Protocol):
    """A loaded policy, numpy in and out."""

    def begin(self, episode: int) -> None:
        """Forget the last episode; what follows depends on the seed and ``episode`` alone."""
        ...

    def __call__(self, obs: dict[str, NDArray[np.float32]]) -> Array:
        """obs: entries [To, D] → chunk [H, A], both in physical units."""
        ...


Loader = Callable[[Path, int], PolicyRunner]
"""(checkpoint folder, seed) → runner; called inside the policy's process, so it must be picklable."""


class Status(IntEnum):
    """What an answer is."""

    CHUNK = 0
    READY = 1
    ERROR = 2


@dataclass(frozen=True, slots=True)
class PolicyJob:
    """Everything the process needs, besides its rings."""

    checkpoint: Path
    policy: DeployedPolicy
    arm: ArmSpec
    resolver: Resolver
    load: Loader
    seed: int


class Answer:
    """One record of the policy's process. rows [H+1, n(+1)] are NaN when ``status`` is ERROR."""

    def __init__(self, record: Any) -> None:
        self.request = int(record["request"])
        self.status = Status(int(record["status"]))
        self.inference_s = float(record["inference_s"])
        self.rows: Array = record["rows"].copy()
        self.actions: NDArray[np.float32] = record["actions"].copy()
        self.message = record["message"].decode(errors="replace")


class PolicyProcess:
    """Starts the process and talks to it; nothing here waits except ``wait_ready`` and ``close``."""

    def __init__(self, job: PolicyJob) -> None:
        self._requests = ShmRing(_request_dtype(job), 4)
        self._answers = ShmRing(_answer_dtype(job), 8)
        self._last = -1
        context = multiprocessing.get_context("spawn")
        names = (self._requests.name, self._answers.name)
        self._process = context.Process(target=_run, args=(job, *names), daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid or 0

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.is_alive()

    def wait_ready(self, timeout_s: float) -> float:
        """Wait until the policy is loaded and warm; returns the seconds one decision took. RobopoError if it fails."""
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            answer = self.poll()
            if answer is not None and answer.status is Status.READY:
                return answer.inference_s
            if answer is not None:
                raise RobopoError(f"the policy could not be started: {answer.message}")
            if not self.alive:
                raise RobopoError(f"the policy's process ended with code {self._process.exitcode} while loading")
            time.sleep(0.01)
        raise RobopoError(f"the policy was not ready after {timeout_s} s; raise policy_start_s if the machine is slow")

    def ask(self, obs: NDArray[np.float32], *, q_ref: Array, gripper_m: float, episode: int, first: bool) -> int:
        """Request a chunk for the flat observation [To * O]; returns the request's number."""
        scratch = self._requests.scratch
        scratch["obs"], scratch["q_ref"], scratch["gripper_m"] = obs, q_ref, gripper_m
        scratch["episode"], scratch["first"] = episode, first
        return self._requests.publish()

    def poll(self) -> Answer | None:
        """The newest answer not seen before."""
        latest = self._answers.latest(self._last)
        if latest is None:
            return None
        self._last = latest[0]
        return Answer(latest[1])

    def close(self) -> None:
        """End the process and free the memory; callable twice."""
        if self._process.is_alive():
            self._process.terminate()
            self._process.join(2.0)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()
        self._requests.close()
        self._answers.close()


def _request_dtype(job: PolicyJob) -> np.dtype[Any]:
    return np.dtype([
        ("episode", np.int64), ("first", np.bool_), ("q_ref", np.float64, (job.arm.num_joints,)),
        ("gripper_m", np.float64), ("obs", np.float32, (job.policy.obs_size,)),
    ])  # fmt: skip


def _answer_dtype(job: PolicyJob) -> np.dtype[Any]:
    policy = job.policy
    return np.dtype([
        ("request", np.int64), ("status", np.int64), ("inference_s", np.float64), ("message", "S256"),
        ("rows", np.float64, (policy.horizon + 1, job.arm.row_size)),
        ("actions", np.float32, (policy.horizon, policy.action_dim)),
    ])  # fmt: skip


def _run(job: PolicyJob, requests_name: str, answers_name: str) -> None:
    """Process entry."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the control process decides
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    requests = ShmRing(_request_dtype(job), 4, name=requests_name)
    answers = ShmRing(_answer_dtype(job), 8, name=answers_name)
    try:
        _answer_requests(job, requests, answers)
    finally:
        requests.close()
        answers.close()


def _answer_requests(job: PolicyJob, requests: ShmRing, answers: ShmRing) -> None:
    scratch, parent = answers.scratch, os.getppid()
    scratch["request"] = -1
    try:
        runner = job.load(job.checkpoint, job.seed)
        scratch["inference_s"] = _warm_up(job, runner)
        scratch["status"] = Status.READY
    except Exception as error:
        log.exception("the policy could not be loaded from %s", job.checkpoint)
        scratch["status"], scratch["message"] = Status.ERROR, _text(error)
        answers.publish()
        return
    answers.publish()
    last = -1
    while os.getppid() == parent:
        latest = requests.latest(last)
        if latest is None:
            time.sleep(_POLL_S)
            continue
        last, record = latest
        scratch["request"] = last
        start_s = time.monotonic()
        try:
            if record["first"]:
                runner.begin(int(record["episode"]))
            scratch["actions"], scratch["rows"] = _decide(job, runner, record)
            scratch["status"], scratch["message"] = Status.CHUNK, b""
        except Exception as error:  # noqa: BLE001 - the gate holds on NaN, and the message says why
            scratch["actions"], scratch["rows"] = np.nan, np.nan
            scratch["status"], scratch["message"] = Status.ERROR, _text(error)
        scratch["inference_s"] = time.monotonic() - start_s
        answers.publish()


def _decide(job: PolicyJob, runner: PolicyRunner, record: Any) -> tuple[Array, Array]:
    obs = unstack_history(record["obs"], dict(job.policy.obs), job.policy.obs_steps)
    chunk = np.asarray(runner(obs), dtype=np.float64)
    expected = (job.policy.horizon, job.policy.action_dim)
    if chunk.shape != expected:
        raise RobopoError(f"the policy gave a chunk of shape {chunk.shape}, its checkpoint says {expected}")
    has_gripper = job.arm.gripper is not None
    rows = joint_rows(job.resolver, record["q_ref"], float(record["gripper_m"]), chunk, has_gripper=has_gripper)
    return chunk, rows


def _warm_up(job: PolicyJob, runner: PolicyRunner) -> float:
    """Slowest of the later warm-up decisions on zeros; the first ones pay for allocations."""
    obs = {key: np.zeros((job.policy.obs_steps, size), np.float32) for key, size in job.policy.obs.items()}
    seconds: list[float] = []
    for _ in range(_WARM_UPS):
        start_s = time.monotonic()
        runner(obs)
        seconds.append(time.monotonic() - start_s)
    return max(seconds[_WARM_UPS // 2 :])


def _text(error: Exception) -> bytes:
    return f"{type(error).__name__}: {error}".encode()[:256]


class CheckpointRunner:
    """A saved policy in torch, one thread, without gradients."""

    def __init__(self, folder: Path, seed: int, *, deterministic: bool = True) -> None:
        import torch

        from robopo.algos.best_of_n_io import load_acting

        torch.set_num_threads(1)
        self._torch, self._seed, self._deterministic = torch, seed, deterministic
        # Without gradients a network may keep what doesn't change from decision to decision.
        self._policy = load_acting(folder, device="cpu").eval().requires_grad_(False)
        self._generator = torch.Generator().manual_seed(seed)

    def begin(self, episode: int) -> None:
        """See ``PolicyRunner.begin``."""
        self._policy.reset()
        self._generator.manual_seed(self._seed + episode)

    def __call__(self, obs: dict[str, NDArray[np.float32]]) -> Array:
        """See ``PolicyRunner``."""
        tensors = {key: self._torch.from_numpy(value.copy())[None] for key, value in obs.items()}
        with self._torch.inference_mode():
            chunk = self._policy.act(tensors, deterministic=self._deterministic, generator=self._generator)
        return chunk[0].numpy()


def load_checkpoint(folder: Path, seed: int) -> PolicyRunner:
    """The default ``Loader``: the policy that the folder describes."""
    return CheckpointRunner(folder, seed)
