"""Control steps per second of the native simulator beside robosuite and bare mujoco.rollout, in one run.

    make bench-sim        # or, in an environment with the extra: python benchmarks/sim_throughput.py --json out.json

robosuite's Lift (Panda, its default controller, no rendering, 20 Hz) is stepped by one process and by two; ours steps E
environments of ``lift`` with end-effector actions, observations, rewards, success and autoreset; bare rollout runs the
same model's physics alone. Rounds alternate between contestants, so a noisy machine disturbs all of them alike.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from mujoco.rollout import Rollout

from sims.mujoco_vec import CONTROL_HZ, MujocoVec, load_model


def ours(num_envs: int, seconds: float) -> float:
    """Control steps per second of MujocoVec under random end-effector actions."""
    sim = MujocoVec("lift", num_envs)
    low, high = np.array(sim.spec.action.low), np.array(sim.spec.action.high)
    rng = np.random.default_rng(0)
    actions = rng.uniform(0.3 * low, 0.3 * high, (50, num_envs, len(low))).astype(np.float32)
    steps, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        sim.step(actions[steps % 50])
        steps += 1
    rate = steps * num_envs / (time.perf_counter() - start)
    sim.close()
    return rate


def bare_rollout(num_envs: int, seconds: float) -> float:
    """The same physics without anything round it: one rollout call per control step from the home pose."""
    sim = MujocoVec("lift", num_envs)
    state, control = sim.state()["physics"], sim.state()["reference"]
    sim.close()
    model = load_model("lift")
    threads = len(os.sched_getaffinity(0))
    substeps = round(1 / (CONTROL_HZ * model.opt.timestep))
    noise = np.random.default_rng(0).uniform(-0.03, 0.03, (50, num_envs, 1, model.nu))
    workers = [mujoco.MjData(model) for _ in range(threads)]
    with Rollout(nthread=threads) as pool:
        steps, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            commands = np.repeat(control[:, None] + noise[steps % 50], substeps, axis=1)
            states, _ = pool.rollout(model, workers, state, commands)
            state = states[:, -1]
            steps += 1
        return steps * num_envs / (time.perf_counter() - start)


def robosuite_worker(seconds: float, barrier: Any, results: Any) -> None:
    """Step one robosuite Lift for ``seconds`` and report its rate."""
    import robosuite

    env = robosuite.make(
        "Lift",
        robots="Panda",
        has_renderer=False,
        has_offscreen_renderer=False,
        use_camera_obs=False,
        control_freq=20,
        horizon=100,
        ignore_done=True,
    )
    env.reset()
    rng = np.random.default_rng(0)
    low, high = env.action_spec
    actions = rng.uniform(0.3 * low, 0.3 * high, (50, len(low)))
    for action in actions[:10]:
        env.step(action)
    barrier.wait()
    steps, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        env.step(actions[steps % 50])
        steps += 1
    results.put(steps / (time.perf_counter() - start))


def robosuite_rate(processes: int, seconds: float) -> float:
    """Summed control steps per second of ``processes`` robosuite processes running at the same time."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(processes), context.Queue()
    children = [
        context.Process(target=robosuite_worker, args=(seconds, barrier, results), daemon=True)
        for _ in range(processes)
    ]
    for child in children:
        child.start()
    rates = [results.get(timeout=120 + seconds) for _ in children]
    for child in children:
        child.join(timeout=30)
    return sum(rates)


def main() -> None:
    """Run the rounds, print the medians and the ratios, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=4.0, help="per contestant and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args()
    rounds: dict[str, list[float]] = {"robopo": [], "rollout": [], "robosuite": [], "robosuite_2proc": []}
    for _ in range(options.rounds):
        rounds["robopo"].append(ours(options.num_envs, options.seconds))
        rounds["rollout"].append(bare_rollout(options.num_envs, options.seconds))
        rounds["robosuite"].append(robosuite_rate(1, options.seconds))
        rounds["robosuite_2proc"].append(robosuite_rate(2, options.seconds))
    median = {name: statistics.median(values) for name, values in rounds.items()}
    import robosuite

    report = {
        "num_envs": options.num_envs,
        "control_steps_per_s": median,
        "rounds": rounds,
        "over_robosuite": median["robopo"] / median["robosuite"],
        "over_robosuite_2proc": median["robopo"] / median["robosuite_2proc"],
        "over_rollout": median["robopo"] / median["rollout"],
        "cores": len(os.sched_getaffinity(0)),
        "machine": platform.machine(),
        "mujoco": mujoco.__version__,
        "robosuite": robosuite.__version__,
    }
    for name, value in median.items():
        print(f"{name:18s} {value:10.0f} control steps/s")
    for name in ("over_robosuite", "over_robosuite_2proc", "over_rollout"):
        print(f"{name:22s} {report[name]:8.2f}")
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
