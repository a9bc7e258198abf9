"""Speed of DPPO's update, beside the published algorithm and beside its own networks alone.

    python benchmarks/dppo_update.py --json out.json

The published sizes for state-based manipulation (3 x 512 network, 20 denoising steps, 10 of them fine-tuned, 7500 pairs
per minibatch), with fewer decisions and epochs per iteration so that a round takes seconds on one core.

- ours: ``PolicyGradient.update`` as DPPO (values, advantages, all minibatches, both optimisers, metrics).
- floor: bare forward and backward of the same two networks on ready-made batches of the same sizes and number; no
  optimiser, no loss, no gather.
- reference: ``dppo_reference.py``.

Rounds alternate between contestants, so a noisy machine disturbs all of them alike; medians are reported.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.dppo_reference import PublishedDPPO, Rollout, flat_settings
from robopo.algos.dppo import Clip, PerStep, dppo
from robopo.algos.gae_advantage import GAE
from robopo.algos.policy_gradient_config import CriticBatches, PolicyGradientConfig
from robopo.critics.value import ValueNet
from robopo.nn.mlp import DiffusionMLPConfig
from robopo.policies.base import PolicySpec
from robopo.policies.build import build_chunk_policy
from robopo.policies.chunk_policy import ChunkPolicy, ChunkPolicyConfig
from robopo.policies.normalizer import MinMaxNormalizer
from robopo.processes.base import DiffusionConfig
from robopo.types import RolloutBatch

LEVELS, FT_STEPS = 20, 10
SPEC = PolicySpec(
    obs={"state": 9, "environment_state": 14},
    action_dim=7,
    action_names=("dx", "dy", "dz", "rx", "ry", "rz", "gripper"),
)


def make_policy() -> ChunkPolicy:
    """Fresh weights; observations and actions already in [-1, 1]."""
    bounds = {key: (-torch.ones(size), torch.ones(size)) for key, size in (*SPEC.obs.items(), ("action", 7))}
    config = ChunkPolicyConfig(ft_steps=FT_STEPS)
    process = DiffusionConfig(num_train_steps=LEVELS)
    return build_chunk_policy(SPEC, DiffusionMLPConfig(), process, config, MinMaxNormalizer(bounds))


def make_batch(policy: ChunkPolicy, T: int, E: int, device: torch.device) -> RolloutBatch:
    """A rollout with random observations, rewards and ends, and chains that the policy really sampled."""
    generator = torch.Generator(device=device).manual_seed(0)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, device=device)

    obs = {key: 2 * uniform(T, E, 1, size) - 1 for key, size in SPEC.obs.items()}
    next_obs = {key: torch.cat([value[1:], value[:1]]) for key, value in obs.items()}
    _, chain = policy.sample_chain({key: value.flatten(0, 1) for key, value in obs.items()}, generator=generator)
    ends = uniform(T, E) < 0.05
    first = torch.cat([torch.ones(1, E, dtype=torch.bool, device=device), ends[:-1]])
    return RolloutBatch(
        obs=obs,
        next_obs=next_obs,
        latents=chain.latents.unflatten(0, (T, E)),
        log_probs=chain.log_probs.unflatten(0, (T, E)),
        reward=(uniform(T, E) < 0.1).float(),
        terminated=ends & (uniform(T, E) < 0.5),
        truncated=ends,
        first=first,
    )


def reference_rollout(policy: ChunkPolicy, batch: RolloutBatch) -> Rollout:
    """The same batch as the reference takes it."""

    def encoded(obs: Any) -> Tensor:
        flat = {key: value.flatten(0, 1) for key, value in obs.items()}
        return policy.encode(flat).view(*batch.reward.shape, -1)

    flags = {name: getattr(batch, name).float().cpu().numpy() for name in ("reward", "terminated", "truncated")}
    return Rollout(cond=encoded(batch.obs), next_cond=encoded(batch.next_obs), chain=batch.latents, **flags)


def make_reference(policy: ChunkPolicy, critic: ValueNet, config: PolicyGradientConfig) -> PublishedDPPO:
    """The reference on the same networks."""
    sizes = {"levels": LEVELS, "ft_steps": FT_STEPS, "action_steps": SPEC.action_steps}
    settings = flat_settings(config, GAE(), PerStep(), Clip())
    return PublishedDPPO(
        policy.net, policy.frozen_net or policy.net, critic.net, settings, std_floor=0.1, denoised_clip=1.0, **sizes
    )


def make_floor(
    policy: ChunkPolicy, critic: ValueNet, batch: RolloutBatch, config: PolicyGradientConfig
) -> Callable[[], None]:
    """Forward and backward of actor and critic, as often and on as many rows as the update runs them."""
    cond = policy.encode({key: value.flatten(0, 1) for key, value in batch.obs.items()})
    x = batch.latents[..., 0, :, :].flatten(0, 1)
    pairs = len(cond) * FT_STEPS
    B, steps = min(config.batch_size, pairs), max(1, pairs // config.batch_size) * config.epochs
    rows = torch.arange(B, device=cond.device) % len(cond)
    x, t, cond = x[rows], torch.arange(B, device=cond.device) % FT_STEPS, cond[rows]
    critic_rows = B if config.critic_batches is CriticBatches.PAIRS else min(len(cond), config.batch_size // FT_STEPS)

    def run() -> None:
        for _ in range(steps):
            policy.net.zero_grad()
            policy.net(x, t, cond).sum().backward()
            critic.zero_grad()
            critic.net(cond[:critic_rows]).sum().backward()

    return run


def timed(function: Callable[[], Any], device: torch.device) -> float:
    """Seconds of one call."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    function()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def main() -> None:
    """Run the rounds, print medians and ratios, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decisions", type=int, default=30, help="T; published: 300")
    parser.add_argument("--num-envs", type=int, default=50)
    parser.add_argument("--epochs", type=int, default=2, help="published: 10")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--critic-batches", type=CriticBatches, default=CriticBatches.DECISIONS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    device = torch.device(options.device)
    config = PolicyGradientConfig(
        epochs=options.epochs, critic_warmup_iterations=0, critic_batches=options.critic_batches
    )
    policy = make_policy().to(device)
    critic = ValueNet(SPEC.obs, SPEC.obs_steps, normalizer=policy.normalizer).to(device)
    batch = make_batch(policy, options.decisions, options.num_envs, device)
    data = reference_rollout(policy, batch)
    algorithm, reference = dppo(policy, critic, config), make_reference(policy, critic, config)
    generator = torch.Generator(device=device).manual_seed(0)
    contestants: dict[str, Callable[[], Any]] = {
        "floor": make_floor(policy, critic, batch, config),
        "ours": lambda: algorithm.update(batch, generator=generator),
        "reference": lambda: reference.update(data),
    }
    rounds: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(options.rounds + 1):
        for name, function in contestants.items():
            seconds = timed(function, device)
            if number:  # the first round warms caches and allocators
                rounds[name].append(seconds)
    median = {name: statistics.median(values) for name, values in rounds.items()}
    samples = batch.log_probs.numel() // config.batch_size * config.batch_size * config.epochs
    report = {
        "samples_per_s": samples / median["ours"],
        "over_reference": median["reference"] / median["ours"],
        "overhead_over_floor": median["ours"] / median["floor"] - 1.0,
        "seconds": median,
        "rounds": rounds,
        "samples": samples,
        "critic_batches": str(config.critic_batches),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else platform.machine(),
        "threads": options.threads,
        "torch": torch.__version__,
    }
    for name, value in median.items():
        print(f"{name:20s} {value:8.3f} s")
    for name in ("samples_per_s", "over_reference", "overhead_over_floor"):
        print(f"{name:20s} {report[name]:10.3f}")
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
