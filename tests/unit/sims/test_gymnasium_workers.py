"""Workers that die, hang or raise: the episodes end, the run goes on, nothing is left behind."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sims.gymnasium_vec import GymnasiumVec
from tests.helpers import gymnasium_envs

MAKER = f"{gymnasium_envs.__name__}:make_faulty"


def make(fault: str, once: Path | None, **kwargs: Any) -> GymnasiumVec:
    options = {"once": str(once)} if once is not None else {}
    return GymnasiumVec(
        fault, 3, vectorization="async", num_workers=2, maker=MAKER, has_success=False, env_kwargs=options, **kwargs
    )


def move(*values: float) -> np.ndarray:
    return np.array(values, np.float32)[:, None]


@pytest.mark.parametrize("fault", ["exit", "raise", "hang"])
def test_a_fault_ends_the_episodes_of_its_worker_and_no_more(fault: str, tmp_path: Path) -> None:
    sim = make(fault, tmp_path / "happened", step_timeout_s=2.0)
    try:
        pids = [process.pid for process in sim._envs.processes]  # type: ignore[attr-defined]
        before = sim.step(move(0.1, 0.1, 0.1)).obs["state"]
        began = time.monotonic()
        step = sim.step(move(0.2, 0.2, 1.0))  # the second worker has environments 1 and 2
        assert time.monotonic() - began < 60.0
        assert step.terminated.tolist() == step.info["diverged"].tolist() == [False, True, True]
        np.testing.assert_array_equal(step.reward, np.float32([0.2, 0.0, 0.0]))
        np.testing.assert_array_equal(step.final_obs["state"][1:], before[1:])  # the last good one
        assert step.obs["state"][:, 0].tolist() == [2.0, 0.0, 0.0]
        assert sim.diverged_count == 2
        after = sim.step(move(0.3, 0.3, 1.0))  # it was told to fail once
        assert after.obs["state"][:, 0].tolist() == [3.0, 1.0, 1.0] and not after.terminated.any()
        now = [process.pid for process in sim._envs.processes]  # type: ignore[attr-defined]
        assert now[0] == pids[0] and now[1] != pids[1]
        assert not alive(pids[1])
    finally:
        sim.close()
    assert not any(alive(pid) for pid in now)


def test_a_killed_worker_takes_masked_environments_along(tmp_path: Path) -> None:
    sim = make("raise", tmp_path / "never")
    try:
        sim.step(move(0.1, 0.1, 0.1))
        os.kill(sim._envs.processes[1].pid, signal.SIGKILL)  # type: ignore[attr-defined]
        step = sim.step(move(0.1, 0.1, 0.1), np.array([True, True, False]))
        assert step.info["diverged"].tolist() == step.terminated.tolist() == [False, True, True]
        assert step.obs["state"][:, 0].tolist() == [2.0, 0.0, 0.0]
        os.kill(sim._envs.processes[0].pid, signal.SIGKILL)  # type: ignore[attr-defined]
        assert sim.reset(5)["state"][:, 0].tolist() == [0.0, 0.0, 0.0]
        np.testing.assert_array_equal(sim.reset(5)["state"], make_sync().reset(5)["state"])
    finally:
        sim.close()


def make_sync() -> GymnasiumVec:
    return GymnasiumVec("raise", 3, maker=MAKER, has_success=False)


def test_failing_again_and_again_is_an_error_that_says_what_to_do() -> None:
    sim = make("raise", None)
    try:
        for _ in range(2):
            assert sim.step(move(0.0, 0.0, 1.0)).info["diverged"].tolist() == [False, True, True]
        with pytest.raises(RuntimeError, match=r"1 to 2 failed 3 times in a row.*tangled.*vectorization=sync"):
            sim.step(move(0.0, 0.0, 1.0))
    finally:
        sim.close()


def test_in_this_process_an_exception_is_the_caller_s() -> None:
    with pytest.raises(ArithmeticError, match="tangled"):
        make_sync().step(move(1.0, 0.0, 0.0))


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
