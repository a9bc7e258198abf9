"""Control steps per second of the native tasks in Isaac Lab and in the native simulator, from one environment.

Run in .venv-isaaclab. Each row is a process of its own, so that start-up, memory and threads don't mix. The native
simulator gets one thread, and all of them; Newton's CPU kernels run on one.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

ENGINES = ("isaaclab", "isaaclab-eager", "native-1-thread", "native")
ROOT = Path(__file__).parents[1]


def make(engine: str, task: str, num_envs: int) -> Any:
    """One simulator; episodes don't end before the measurement does."""
    if engine.startswith("isaaclab"):
        from sims.isaaclab_vec import IsaacLabVec

        return IsaacLabVec(task, num_envs, cpu_graph=engine == "isaaclab")
    from sims.mujoco_vec import MujocoVec

    return MujocoVec(task, num_envs, num_threads=1 if engine == "native-1-thread" else None)


def measure(engine: str, task: str, num_envs: int, seconds: float) -> dict[str, Any]:
    """Random small motions, autoreset included."""
    begin = time.perf_counter()
    sim = make(engine, task, num_envs)
    rng = np.random.default_rng(0)
    low, high = np.array(sim.spec.action.low), np.array(sim.spec.action.high)
    script = [rng.uniform(low, high, (num_envs, len(low))).astype(np.float32) for _ in range(16)]
    for action in script[:3]:  # the first ones compile, allocate and record
        sim.step(action)
    start_s = time.perf_counter() - begin
    begin, cpu, calls = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - begin < seconds:
        sim.step(script[calls % 16])
        calls += 1
    wall_s, cpu_s = time.perf_counter() - begin, time.process_time() - cpu
    return {
        "engine": engine,
        "task": task,
        "num_envs": num_envs,
        "steps_per_s": num_envs * calls / wall_s,
        "steps_per_cpu_s": num_envs * calls / cpu_s,
        "start_s": start_s,
        "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    """Every row in a fresh process, then the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--tasks", nargs="+", default=["lift", "reach"])
    parser.add_argument("--num-envs", nargs="+", type=int, default=[1, 16, 64, 256, 1024])
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=ENGINES)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--one", nargs=3, help="engine, task, num_envs: measure here")
    options = parser.parse_args()
    if options.one:
        engine, task, count = options.one
        sys.stdout.write("ROW " + json.dumps(measure(engine, task, int(count), options.seconds)) + "\n")
        sys.stdout.flush()
        os._exit(0)  # tearing the interpreter down takes Isaac Lab seconds
    rows = []
    print(f"{'engine':16} {'task':6} {'E':>5} {'steps/s':>9} {'per CPU s':>9} {'start s':>8} {'RSS MB':>7}")
    for task in options.tasks:
        for count in options.num_envs:
            for engine in options.engines:
                row = spawn(engine, task, count, options.seconds)
                rows.append(row)
                rates = f"{row['steps_per_s']:9.0f} {row['steps_per_cpu_s']:9.0f}"
                print(f"{engine:16} {task:6} {count:5} {rates} {row['start_s']:8.1f} {row['rss_mb']:7.0f}", flush=True)
                if options.json:
                    options.json.parent.mkdir(parents=True, exist_ok=True)
                    options.json.write_text(json.dumps({"load": os.getloadavg(), "rows": rows}, indent=1))


def spawn(engine: str, task: str, num_envs: int, seconds: float) -> dict[str, Any]:
    """One row, measured in a process of its own."""
    command = [sys.executable, __file__, "--one", engine, task, str(num_envs), "--seconds", str(seconds)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    out = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600, env=environment).stdout
    return json.loads(out.rpartition("ROW ")[2])


if __name__ == "__main__":
    main()
