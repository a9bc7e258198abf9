"""Latency of one decision, beside the same network called through diffusers' DDIMScheduler.

    python benchmarks/policy_latency.py --json out.json

Observation in, chunk out, 10 of 100 denoising steps, one torch thread, the published sizes for state-based manipulation
(7 actions, chunk of 4, 23 observed numbers). Both sides normalise, denoise and unnormalise, clip the clean estimate and
return the same chunk (checked before timing).

- ours: ``ChunkPolicy.act`` of a policy as it is built or loaded.
- ours, frozen: the same after ``requires_grad_(False)``, as a deployed policy is.
- diffusers: the usual loop over ``scheduler.timesteps`` with ``scheduler.step``.

Calls alternate between contestants in turning order, each with its own copy of the weights: a noisy machine disturbs
all alike, and all find cold caches, as a controller that decides 5 times a second does.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from diffusers.schedulers.scheduling_ddim import DDIMScheduler
from torch import Tensor

from robopo.nn.mlp import DiffusionMLPConfig
from robopo.nn.unet1d import UNet1DConfig
from robopo.policies.base import PolicySpec
from robopo.policies.build import NetConfig, build_chunk_policy
from robopo.policies.chunk_policy import ACTION, ChunkPolicy, ChunkPolicyConfig
from robopo.policies.normalizer import MinMaxNormalizer
from robopo.processes.base import DiffusionConfig, ProcessKind

TRAIN_STEPS, STEPS = 100, 10
NETS: dict[str, tuple[NetConfig, int]] = {
    "mlp 3x512, H=4": (DiffusionMLPConfig(), 4),
    "unet 64-128, H=4": (UNet1DConfig(), 4),
    "unet 64-128, H=16": (UNet1DConfig(), 16),
}
BATCHES = (1, 64)


def make_policy(net: NetConfig, horizon: int) -> ChunkPolicy:
    """Fresh weights; observations and actions already in [-1, 1]."""
    spec = PolicySpec(
        obs={"state": 9, "environment_state": 14},
        action_dim=7,
        action_names=("dx", "dy", "dz", "rx", "ry", "rz", "gripper"),
        horizon=horizon,
    )
    bounds = {key: (-torch.ones(size), torch.ones(size)) for key, size in (*spec.obs.items(), (ACTION, 7))}
    process = DiffusionConfig(kind=ProcessKind.DDIM, num_train_steps=TRAIN_STEPS, num_steps=STEPS)
    return build_chunk_policy(spec, net, process, ChunkPolicyConfig(), MinMaxNormalizer(bounds)).eval()


def through_diffusers(policy: ChunkPolicy) -> Callable[[dict[str, Tensor], Tensor], Tensor]:
    """The same decision by the scheduler's loop."""
    scheduler = DDIMScheduler(
        num_train_timesteps=TRAIN_STEPS,
        beta_schedule="squaredcos_cap_v2",
        clip_sample=True,
        set_alpha_to_one=True,
        steps_offset=0,
        prediction_type="epsilon",
    )
    scheduler.set_timesteps(STEPS)

    @torch.no_grad()
    def act(obs: dict[str, Tensor], noise: Tensor) -> Tensor:
        cond, x = policy.encode(obs), noise
        for t in scheduler.timesteps:
            out = policy.net(x, t.expand(x.shape[0]), cond)
            # Index tensors are what the scheduler's own loop passes, whatever its annotations say.
            step: Any = scheduler.step(out, cast("int", t), x, eta=0.0, use_clipped_model_output=True)
            x = step.prev_sample
        return policy.normalizer.invert(ACTION, x)

    return act


def measure(net: NetConfig, horizon: int, batch: int, calls: int) -> dict[str, dict[str, float]]:
    """Contestant -> p50 and p99 in milliseconds."""
    torch.manual_seed(0)
    # A copy for each: no contestant finds its weights in the cache because another one has just used them.
    policy = make_policy(net, horizon)
    frozen = copy.deepcopy(policy).requires_grad_(False)
    theirs = through_diffusers(copy.deepcopy(policy))
    obs = {key: torch.randn(batch, 1, size) for key, size in policy.spec.obs.items()}
    noise = torch.randn(batch, horizon, 7)
    contestants: dict[str, Callable[[], Tensor]] = {
        "ours": lambda: policy.act(obs, noise=noise),
        "ours, frozen": lambda: frozen.act(obs, noise=noise),
        "diffusers": lambda: theirs(obs, noise),
    }
    expected = contestants["diffusers"]()
    for name in ("ours", "ours, frozen"):
        torch.testing.assert_close(contestants[name](), expected, rtol=1e-3, atol=1e-4)
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for n in range(calls + 5):
        names = list(contestants)
        for name in names[n % 3 :] + names[: n % 3]:
            act = contestants[name]
            began = time.perf_counter()
            act()
            if n >= 5:  # the first calls warm caches
                seconds[name].append(time.perf_counter() - began)
    return {
        name: {"p50_ms": float(np.percentile(s, 50)) * 1e3, "p99_ms": float(np.percentile(s, 99)) * 1e3}
        for name, s in seconds.items()
    }


def main() -> None:
    """Print a table; write JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--calls", type=int, default=200, help="timed calls per contestant at batch 1, a quarter at 64")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results: list[dict[str, Any]] = []
    print(f"{'network':20} {'batch':>5} {'contestant':14} {'p50 ms':>8} {'p99 ms':>8} {'p50 / diffusers':>16}")
    for name, (net, horizon) in NETS.items():
        for batch in BATCHES:
            calls = arguments.calls if batch == 1 else max(1, arguments.calls // 4)
            table = measure(net, horizon, batch, calls)
            for contestant, row in table.items():
                ratio = row["p50_ms"] / table["diffusers"]["p50_ms"]
                print(f"{name:20} {batch:5} {contestant:14} {row['p50_ms']:8.3f} {row['p99_ms']:8.3f} {ratio:16.2f}")
                results.append(
                    {"net": name, "batch": batch, "contestant": contestant, **row, "ratio": ratio, "calls": calls}
                )
    if arguments.json:
        machine = {
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "load_1m": os.getloadavg()[0],
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
        }
        arguments.json.write_text(json.dumps({"machine": machine, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
