"""Workers that die, hang or raise: an episode that ends, never a run that stops."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sims.base import Step
from sims.robosuite_vec import RobosuiteVec
from tests.engines.robosuite.faulty import Broken, Toy

ROOT = Path(__file__).parents[3]
FINE, RAISE, HANG, DIE = 0.0, 0.5, 0.75, 1.0


class ToyVec(RobosuiteVec):
    make_env = Toy


class BrokenVec(RobosuiteVec):
    make_env = Broken


@pytest.fixture
def sim() -> Iterator[RobosuiteVec]:
    made = ToyVec("Lift", 4, num_workers=2, step_timeout_s=1.5)
    yield made
    made.close()


def act(sim: RobosuiteVec, *what: float) -> Step:
    action = np.zeros((sim.num_envs, 7), np.float32)
    action[: len(what), 0] = what
    return sim.step(action)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("what", [DIE, HANG])
def test_a_lost_worker_ends_the_episodes_of_its_environments(sim: RobosuiteVec, what: float) -> None:
    act(sim)
    before = sim.observe()["state"]
    pids = sim.pool.processes
    start = time.monotonic()
    step = act(sim, what)
    assert time.monotonic() - start < 60
    assert step.info["diverged"].tolist() == [True, True, False, False]  # worker 0 had environments 0 and 1
    assert step.terminated.tolist() == [True, True, False, False]
    assert step.reward.tolist() == [0, 0, 0, 0] and sim.diverged_count == 2
    np.testing.assert_array_equal(step.final_obs["state"][:2], before[:2])  # the last good observation
    assert step.info["episode_length"].tolist() == [2, 2, 2, 2]
    assert not alive(pids[0]) and alive(pids[1])
    after = act(sim)
    assert after.info["episode_length"].tolist() == [1, 1, 3, 3] and not after.info["diverged"].any()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_killed_or_stopped_process_is_replaced(sim: RobosuiteVec, how: signal.Signals) -> None:
    os.kill(sim.pool.processes[1], how)
    step = act(sim)
    assert step.info["diverged"].tolist() == [False, False, True, True]
    assert not act(sim).info["diverged"].any() and sim.pool.lost_count == 1


def test_an_error_inside_an_environment_ends_only_its_episode(sim: RobosuiteVec) -> None:
    pids = sim.pool.processes
    step = act(sim, FINE, RAISE)
    assert step.info["diverged"].tolist() == [False, True, False, False]
    assert sim.pool.processes == pids and not act(sim).info["diverged"].any()


def test_losses_in_a_row_end_in_an_error_that_helps(sim: RobosuiteVec) -> None:
    pids = sim.pool.processes
    with pytest.raises(RuntimeError, match=r"3 times in a row.*num_workers.*step_timeout_s"):
        for _ in range(10):
            act(sim, DIE)
    assert not any(alive(pid) for pid in pids) and not sim.pool.processes


def test_scattered_losses_do_not(sim: RobosuiteVec) -> None:
    for _ in range(3):
        act(sim, DIE)
        act(sim)
    assert sim.pool.lost_count == 3


def test_the_future_does_not_depend_on_which_worker_was_lost(sim: RobosuiteVec) -> None:
    """Environments of the other worker go on exactly as without the loss."""
    act(sim, DIE)
    act(sim)
    other = ToyVec("Lift", 4, num_workers=1)
    act(other)
    act(other)
    np.testing.assert_array_equal(sim.observe()["state"][2:], other.observe()["state"][2:])
    other.close()


def test_an_environment_that_cannot_be_built_says_why() -> None:
    with pytest.raises(RuntimeError, match="OSError: no scene today"):
        BrokenVec("Lift", 2, num_workers=2)


def test_wrong_actions_and_close() -> None:
    sim = ToyVec("Lift", 2, num_workers=1)
    for bad in (np.zeros((2, 6), np.float32), np.zeros((2, 7), np.int64), np.full((2, 7), np.nan)):
        with pytest.raises(ValueError, match="action"):
            sim.step(bad)
    pids = sim.pool.processes
    sim.close()
    sim.close()
    assert not any(alive(pid) for pid in pids)


def run_and_interrupt(how: signal.Signals) -> list[int]:
    """Start a program that steps a hanging environment, end it, and return its workers' process ids."""
    program = textwrap.dedent("""
        import numpy as np
        from tests.engines.robosuite.test_faults import ToyVec
        if __name__ == "__main__":
            sim = ToyVec("Lift", 2, num_workers=2, step_timeout_s=500.0)
            print(*sim.pool.processes, flush=True)
            try:
                sim.step(np.full((2, 7), 0.75))
            finally:
                sim.close()
                sim.close()
                print("closed", flush=True)
    """)
    script = ROOT / "runs" / f"hang_{os.getpid()}.py"
    script.parent.mkdir(exist_ok=True)
    script.write_text(program)
    environment: dict[str, Any] = {**os.environ, "PYTHONPATH": str(ROOT)}
    shown = subprocess.Popen([sys.executable, str(script)], env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert shown.stdout is not None
        pids = [int(word) for word in shown.stdout.readline().split()]
        assert len(pids) == 2
        time.sleep(0.5)
        shown.send_signal(how)
        out, _ = shown.communicate(timeout=60)
        assert ("closed" in out) == (how == signal.SIGINT)
    finally:
        shown.kill()
        script.unlink()
    return pids


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_its_parent(how: signal.Signals) -> None:
    before = set(Path("/dev/shm").iterdir())
    pids = run_and_interrupt(how)
    deadline = time.monotonic() + 10
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not any(alive(pid) for pid in pids)
    assert not [path for path in set(Path("/dev/shm").iterdir()) - before if path.name.startswith(("pym-", "psm_"))]
