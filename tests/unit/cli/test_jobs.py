from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from robopo.cli.jobs import Job, Outcome, Progress, Scheduler, Status, log_path, read_status, tail
from robopo.errors import ConfigError, DataError

# Counts its attempts in <folder>/attempts, and ends at once unless told otherwise.
WRITE = "mkdir -p {0} && echo run >> {0}/attempts"


def job(root: Path, name: str, script: str = "", *needs: str, settings: tuple[str, ...] = ("a=1",), **more: str) -> Job:
    folder = root / name
    resume = ("bash", "-c", more["resume"].format(folder)) if "resume" in more else ()
    command = ("bash", "-c", f"{WRITE}; {script}".format(folder))
    return Job(name, command, settings, folder, needs, more.get("kind", ""), resume)


def run(root: Path, *jobs: Job, processes: int = 2) -> Outcome:
    return Scheduler(root, jobs, processes).run()


def attempts(root: Path, name: str) -> int:
    path = root / name / "attempts"
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_needs_come_first_and_done_jobs_are_not_run_again(tmp_path: Path) -> None:
    jobs = (job(tmp_path, "a"), job(tmp_path, "b", f"cat {tmp_path}/a/attempts", "a"))
    assert run(tmp_path, *jobs) == Outcome({}, (), None)
    assert read_status(tmp_path) == {"a": Status.DONE, "b": Status.DONE}
    assert log_path(tmp_path, "b").read_text().splitlines()[-1] == "run"
    run(tmp_path, *jobs, job(tmp_path, "c", "", "b"))
    run(tmp_path, job(tmp_path, "c"))  # a part of them alone forgets nothing of the others
    run(tmp_path, *jobs)
    assert [attempts(tmp_path, name) for name in "abc"] == [1, 1, 1]


def test_a_failure_shows_its_log_and_stops_only_what_needs_it(tmp_path: Path) -> None:
    bad = job(tmp_path, "bad", "echo 'no such mug' >&2; exit 3")
    jobs = (bad, job(tmp_path, "behind", "", "bad"), job(tmp_path, "far", "", "behind"), job(tmp_path, "free"))
    found = run(tmp_path, *jobs, processes=1)
    assert found.failed.keys() == {"bad"} and found.failed["bad"].endswith("no such mug")
    assert found.skipped == ("behind", "far")
    assert read_status(tmp_path)["free"] is Status.DONE
    mended = (job(tmp_path, "bad", settings=("a=2",)), *jobs[1:])  # what failed may change
    assert run(tmp_path, *mended) == Outcome({}, (), None)
    assert attempts(tmp_path, "bad") == 1  # of the new settings: what the old ones wrote is gone
    assert attempts(tmp_path, "far") == 1


def test_a_killed_process_counts_as_failed(tmp_path: Path) -> None:
    found = run(tmp_path, job(tmp_path, "a", "kill -9 $$"))
    assert list(found.failed) == ["a"]
    assert json.loads((tmp_path / "jobs.json").read_text())["jobs"]["a"]["code"] == -9


def test_at_most_so_many_at_a_time(tmp_path: Path) -> None:
    seen: list[Progress] = []
    jobs = [job(tmp_path, f"j{i}", "sleep 0.1", kind="k") for i in range(4)]
    Scheduler(tmp_path, jobs, 2, on_change=seen.append).run()
    assert max(len(progress.running) for progress in seen) == 2
    assert seen[0].eta_s is None  # nothing of this kind was ever finished
    later = next(progress for progress in seen if progress.done == 2)
    assert later.eta_s is not None and 0.0 <= later.eta_s < 2.0
    assert seen[-1][:4] == (4, 4, (), 0)


def test_a_signal_lets_processes_save_and_the_next_scheduler_continues(tmp_path: Path) -> None:
    saving = "trap 'echo saved > {0}/saved; exit 143' TERM; touch {0}/ready; while :; do sleep 0.02; done"
    resume = "cat {0}/saved && echo run >> {0}/attempts"
    jobs = (job(tmp_path, "a", saving, resume=resume), job(tmp_path, "b", "", "a"))

    def interrupt() -> None:
        deadline = time.monotonic() + 10
        while not (tmp_path / "a" / "ready").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=interrupt)
    thread.start()
    found = run(tmp_path, *jobs)
    thread.join()
    assert found == Outcome({}, (), signal.SIGTERM)
    assert read_status(tmp_path) == {"a": Status.INTERRUPTED, "b": Status.WAITING}
    with pytest.raises(ConfigError, match=r"a was begun with other settings \(then \['a=1'\], now \['a=2'\]\)"):
        run(tmp_path, job(tmp_path, "a", settings=("a=2",)))
    assert run(tmp_path, *jobs) == Outcome({}, (), None)
    assert attempts(tmp_path, "a") == 2 and attempts(tmp_path, "b") == 1


def test_who_does_not_stop_is_killed(tmp_path: Path) -> None:
    deaf = job(tmp_path, "a", "trap '' TERM; touch {0}/ready; while :; do sleep 0.02; done")
    scheduler = Scheduler(tmp_path, [deaf], 1, grace_s=0.1)
    scheduler.on_change = lambda progress: (
        os.kill(os.getpid(), signal.SIGINT)
        if progress.running and (tmp_path / "a" / "ready").exists() and scheduler._kill_at is None
        else None
    )
    assert scheduler.run().stopped_by is signal.SIGINT
    assert read_status(tmp_path) == {"a": Status.INTERRUPTED}


def test_what_a_killed_scheduler_left_keeps_the_folder_until_it_ends(tmp_path: Path) -> None:
    program = f"""
from pathlib import Path
from tests.unit.cli.test_jobs import job, run
root = Path({str(tmp_path)!r})
run(root, job(root, "a", "while [ ! -e {{0}}/end ]; do sleep 0.02; done"))
"""
    parent = subprocess.Popen([sys.executable, "-c", program], cwd=Path(__file__).parents[3])
    deadline = time.monotonic() + 30
    while not attempts(tmp_path, "a") and time.monotonic() < deadline:
        time.sleep(0.02)
    parent.kill()
    parent.wait()
    with pytest.raises(ConfigError, match="in use"):
        run(tmp_path, job(tmp_path, "a"))
    assert read_status(tmp_path) == {"a": Status.INTERRUPTED}
    (tmp_path / "a" / "end").touch()
    while time.monotonic() < deadline:
        try:
            assert run(tmp_path, job(tmp_path, "a")) == Outcome({}, (), None)
            break
        except ConfigError:
            time.sleep(0.02)
    assert read_status(tmp_path) == {"a": Status.DONE}


def test_done_jobs_keep_their_settings(tmp_path: Path) -> None:
    run(tmp_path, job(tmp_path, "a"))
    with pytest.raises(ConfigError, match="choose another folder"):
        run(tmp_path, job(tmp_path, "a", settings=("a=2",)))


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="two jobs"):
        Scheduler(tmp_path, [job(tmp_path, "a"), job(tmp_path, "a")], 1)
    with pytest.raises(ConfigError, match="must come before"):
        Scheduler(tmp_path, [job(tmp_path, "a", "", "b"), job(tmp_path, "b")], 1)
    with pytest.raises(ConfigError, match="processes=0"):
        Scheduler(tmp_path, [], 0)
    (tmp_path / "jobs.json").write_text('{"schema": 1')
    with pytest.raises(DataError, match="can't be read"):
        run(tmp_path, job(tmp_path, "a"))


def test_tail_skips_empty_lines(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("one\n\ntwo  \n\n\nthree\n")
    assert tail(tmp_path / "log", 2) == "two\nthree"
    assert tail(tmp_path / "none").startswith("(no log")
