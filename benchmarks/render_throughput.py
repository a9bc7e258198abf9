"""Frames per second of batched software rendering beside one-at-a-time sims.render.Renderer, in one run.

    make bench-render        # or: python benchmarks/render_throughput.py --json out.json

For every scene, camera and size: Renderer after mj_forward, BatchRenderer in the calling thread, with one worker and
with two, on EGL and on OSMesa (each in a process of its own). Rounds alternate between contestants. Two rates: per
second of the clock, and per second of processor time of all processes involved, which a busy machine disturbs less.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from sims.batch_render import BatchRenderer
from sims.mujoco_vec import MujocoVec
from sims.render import Renderer
from sims.render_scene import FULL_PHYSICS

RENDERER, WORKERS = "renderer", (0, 1, 2)


def processor_seconds(pids: tuple[int, ...]) -> float:
    """Processor time used so far by this process and those (Linux)."""
    ticks = 0
    for pid in pids:
        ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def measure(draw: Callable[[], object], frames: int, pids: tuple[int, ...], seconds: float) -> tuple[float, float]:
    """Frames per second of the clock and of processor time."""
    count, start, used = 0, time.perf_counter(), processor_seconds(pids)
    while time.perf_counter() - start < seconds:
        draw()
        count += frames
    return count / (time.perf_counter() - start), count / (processor_seconds(pids) - used)


def one_at_a_time(
    model: mujoco.MjModel, camera: str, size: int, physics: NDArray[np.float64]
) -> tuple[Callable[[], object], Renderer]:
    """What sims.render offers: mj_forward, then a frame."""
    renderer, data = Renderer(model, width=size, height=size), mujoco.MjData(model)

    def draw() -> None:
        for row in physics:
            mujoco.mj_setState(model, data, row, FULL_PHYSICS)
            mujoco.mj_forward(model, data)
            renderer.frame(data, camera)

    return draw, renderer


def case(task: str, camera: str, size: int, options: argparse.Namespace) -> dict[str, Any]:
    """Medians over rounds for one scene, camera and size, with the back end of this process."""
    sim = MujocoVec(task, options.num_envs, seed=0)
    model, physics = sim.model, sim.state()["physics"]
    sim.close()
    plain, renderer = one_at_a_time(model, camera, size, physics[: max(1, options.num_envs // 4)])
    contestants: dict[str, tuple[Callable[[], object], int, tuple[int, ...]]] = {
        RENDERER: (plain, max(1, options.num_envs // 4), ())
    }
    batches = [BatchRenderer(model, (camera,), width=size, height=size, num_workers=n) for n in WORKERS]
    for count, batch in zip(WORKERS, batches, strict=True):
        contestants[f"workers_{count}"] = (lambda b=batch: b.render(physics), len(physics), batch.pids)
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
    for draw, _, _ in contestants.values():
        draw()
    for _ in range(options.rounds):
        for name, (draw, frames, pids) in contestants.items():
            rates[name].append(measure(draw, frames, pids, options.seconds))
    renderer.close()
    for batch in batches:
        batch.close()
    clock = {name: statistics.median(rate for rate, _ in found) for name, found in rates.items()}
    processor = {name: statistics.median(rate for _, rate in found) for name, found in rates.items()}
    return {
        "task": task,
        "camera": camera,
        "size": size,
        "frames_per_s": clock,
        "frames_per_processor_s": processor,
        "over_renderer": {name: processor[name] / processor[RENDERER] for name in processor if name != RENDERER},
    }


def table(cases: list[dict[str, Any]]) -> str:
    """Markdown: frames per second of the clock (of processor time)."""
    columns = (RENDERER, *(f"workers_{n}" for n in WORKERS))
    lines = [
        "| back end | scene | camera | size | Renderer | in this thread | 1 worker | 2 workers | in thread / Renderer |"
    ]
    lines.append("|---" * 9 + "|")
    for row in cases:
        cells = [f"{row['frames_per_s'][c]:.0f} ({row['frames_per_processor_s'][c]:.0f})" for c in columns]
        head = [row["backend"], row["task"], row["camera"], f"{row['size']}²"]
        lines.append("| " + " | ".join([*head, *cells, f"{row['over_renderer']['workers_0']:.1f}"]) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run every back end in a process of its own, print the table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=["reach", "push", "lift"])
    parser.add_argument("--cameras", nargs="+", default=["front", "wrist"])
    parser.add_argument("--sizes", nargs="+", type=int, default=[64, 96])
    parser.add_argument("--backends", nargs="+", default=["egl", "osmesa"])
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=0.5, help="per contestant and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the result here")
    parser.add_argument("--inside", action="store_true", help="measure with this process's MUJOCO_GL (used by itself)")
    options = parser.parse_args()
    if options.inside:
        combinations = [(t, c, s) for t in options.tasks for c in options.cameras for s in options.sizes]
        options.json.write_text(json.dumps([case(*which, options) for which in combinations]))
        return
    cases: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for backend in options.backends:
            out = Path(folder) / f"{backend}.json"
            # Mesa reads LP_NUM_THREADS once: 0 keeps it to the thread that draws, so that a core is a core.
            environment = {**os.environ, "MUJOCO_GL": backend, "LP_NUM_THREADS": "0"}
            environment.pop("PYOPENGL_PLATFORM", None)
            command = [sys.executable, *sys.argv, "--json", str(out), "--inside"]
            subprocess.run(command, env=environment, check=True)
            cases += [{"backend": backend, **row} for row in json.loads(out.read_text())]
    print(table(cases))
    if options.json:
        about = {"cores": len(os.sched_getaffinity(0)), "machine": platform.machine(), "mujoco": mujoco.__version__}
        options.json.write_text(json.dumps({**about, "num_envs": options.num_envs, "cases": cases}, indent=2) + "\n")


if __name__ == "__main__":
    main()
