"""Control steps per second, memory and start-up of every engine over the number of environments.

    make bench-engines      # or: .venv/bin/python benchmarks/engines.py --engines native gymnasium --seconds 3

Each row runs in a process of its own, in the environment that has the engine (.venv, .venv-robosuite, .venv-isaaclab);
an engine whose environment is missing is left out. Random actions, autoreset included. Native and Isaac Lab play the
same scene (a Panda and a cube), robosuite its own Lift, gymnasium HalfCheetah. Rates are given per second of the clock
and per second of processor time, all processes of the simulator together: on a shared machine only the second compares.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
ENGINES = {
    "native": ".venv",
    "native-1-thread": ".venv",
    "gymnasium": ".venv",
    "robosuite": ".venv-robosuite",
    "isaaclab": ".venv-isaaclab",
}
LIMITS = {"robosuite": 64}
"""Most environments worth a row: robosuite takes about 40 MB each, and seconds to build."""


def make(engine: str, num_envs: int) -> Any:
    """One simulator of ``num_envs`` environments."""
    if engine == "isaaclab":
        from sims.isaaclab_vec import IsaacLabVec

        return IsaacLabVec("lift", num_envs)
    if engine == "robosuite":
        from sims.robosuite_vec import RobosuiteVec

        return RobosuiteVec("Lift", num_envs)
    if engine == "gymnasium":
        from sims.gymnasium_vec import GymnasiumVec

        return GymnasiumVec("HalfCheetah-v5", num_envs)
    from sims.mujoco_vec import MujocoVec

    return MujocoVec("lift", num_envs, num_threads=1 if engine == "native-1-thread" else None)


def family() -> list[int]:
    """Process numbers of the caller and of those it started, however deep."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found = [os.getpid()]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def used() -> tuple[float, float]:
    """Processor seconds and resident megabytes of the family."""
    seconds = memory = 0.0
    for pid in family():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except OSError:
            continue
        seconds += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        memory += pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    return seconds, memory


def measure(engine: str, num_envs: int, seconds: float) -> dict[str, Any]:
    """One row."""
    begin = time.perf_counter()
    sim = make(engine, num_envs)
    rng = np.random.default_rng(0)
    low, high = np.array(sim.spec.action.low), np.array(sim.spec.action.high)
    script = [rng.uniform(0.3 * low, 0.3 * high, (num_envs, len(low))).astype(np.float32) for _ in range(16)]
    for action in script[:3]:  # the first ones compile, allocate and record
        sim.step(action)
    start_s = time.perf_counter() - begin
    cpu, _ = used()
    begin, calls = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        sim.step(script[calls % 16])
        calls += 1
    wall_s = time.perf_counter() - begin
    cpu_s, memory = used()
    return {
        "engine": engine,
        "num_envs": num_envs,
        "steps_per_s": num_envs * calls / wall_s,
        "steps_per_cpu_s": num_envs * calls / max(cpu_s - cpu, 0.01),
        "start_s": start_s,
        "rss_mb": memory,
    }


def spawn(engine: str, num_envs: int, seconds: float) -> dict[str, Any]:
    """One row, measured in a process of its own."""
    python = ROOT / ENGINES[engine] / "bin" / "python"
    command = [str(python), __file__, "--one", engine, str(num_envs), "--seconds", str(seconds)]
    cache = {"WARP_CACHE_PATH": str(ROOT / ".venv-isaaclab" / "warp-cache")}
    environment = {**cache, **os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=900, env=environment)
    if "ROW " not in done.stdout:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.rpartition("ROW ")[2])


def main() -> None:
    """Every row in a fresh process, then the ratios on one core."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--num-envs", nargs="+", type=int, default=[1, 16, 64, 256, 1024])
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=list(ENGINES))
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--one", nargs=2, help="engine, num_envs: measure here")
    options = parser.parse_args()
    if options.one:
        row = measure(options.one[0], int(options.one[1]), options.seconds)
        sys.stdout.write("ROW " + json.dumps(row) + "\n")
        sys.stdout.flush()
        os._exit(0)  # tearing the interpreter down takes Isaac Lab seconds
    rows: list[dict[str, Any]] = []
    print(f"{'engine':16} {'E':>5} {'steps/s':>9} {'per CPU s':>9} {'start s':>8} {'RSS MB':>7}")
    for count in options.num_envs:
        for engine in options.engines:
            if count > LIMITS.get(engine, count) or not (ROOT / ENGINES[engine]).is_dir():
                continue
            row = spawn(engine, count, options.seconds)
            rows.append(row)
            rates = f"{row['steps_per_s']:9.0f} {row['steps_per_cpu_s']:9.0f}"
            print(f"{engine:16} {count:5} {rates} {row['start_s']:8.1f} {row['rss_mb']:7.0f}", flush=True)
    best = {e: max((r["steps_per_cpu_s"] for r in rows if r["engine"] == e), default=0.0) for e in ENGINES}
    ratios = {e: best["native-1-thread"] / best[e] for e in ("robosuite", "isaaclab") if best[e] > 0}
    for engine, ratio in ratios.items():
        print(f"native over {engine}, best rows, per processor second: {ratio:.1f}")
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        facts = {"load": os.getloadavg(), "machine": platform.machine(), "cores": len(os.sched_getaffinity(0))}
        options.json.write_text(json.dumps({**facts, "rows": rows, "native_over": ratios}, indent=1) + "\n")


if __name__ == "__main__":
    main()
