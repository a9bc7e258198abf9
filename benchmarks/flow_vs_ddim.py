"""A flow of K = 4 Euler steps beside DDIM of K = 10 steps: time per decision and per update, on the same network.

    python benchmarks/flow_vs_ddim.py --json out.json
    python benchmarks/flow_vs_ddim.py --train                    # clone both on lift first, and count their successes
    python benchmarks/flow_vs_ddim.py --checkpoints FLOW DDIM    # the same for policies that exist

lift's sizes (29 observed numbers, chunk of 4 x 7), a 3 x 256 perceptron, 20 noise levels in the diffusion's training,
all steps fine-tuned, one torch thread.

- act: one decision as deployed; weights frozen, batch 1.
- explore: 64 decisions of a rollout with their chains (``sample_chain``), each row with its own noise.
- update: ``PolicyGradient.update`` of each row of configs/algo on the same number of decisions, with the same epochs
  and as many minibatches per epoch: one of the flow's holds 4 pairs of a decision where one of DDIM's holds 10.

Contestants alternate in turning order: a noisy machine disturbs all alike. Medians, and ratios to DDIM within the run.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from robopo.algos.policy_gradient import PolicyGradient
from robopo.cli.configs import load_config, to_object
from robopo.cli.finetuning import algorithm_choices, for_finetuning, value_net
from robopo.cli.main import main as robopo
from robopo.cli.pipeline import FinetunablePolicy, scratch_policy
from robopo.cli.schema import TRAIN, FinetuneConfig, TrainConfig
from robopo.errors import ConfigError
from robopo.eval.evaluate import evaluate
from robopo.eval.intervals import wilson
from robopo.eval.provenance import collect_provenance
from robopo.eval.seeds import SeedPurpose, evaluation_seeds
from robopo.policies.chunk_policy import ChunkPolicy
from robopo.policies.io import load_policy
from robopo.train.checkpoint import find_checkpoint
from robopo.types import RolloutBatch
from sims.mujoco_vec import MujocoVec

POLICIES = {
    "flow": ("policy=flow_mlp", "policy.process.num_steps=4"),
    "ddim": ("policy=diffusion_mlp", "policy.process.num_train_steps=20", "policy.process.num_steps=10"),
}
NET = ("policy.net.hidden=[256,256,256]", "policy.horizon=4", "policy.action_steps=4")
ROWS = {"dppo": "ddim", "flow_clip": "flow", "flow_dppo": "flow", "flow_dppo_learned": "flow"}
"""Row of configs/algo -> the policy that it improves; the first is the measure of the others."""
DECISIONS, ENVS = 25, 64
EPOCHS, MINIBATCHES = 5, 20
CHAIN = ("latents", "log_probs", "means", "stds", "active")
BATCHES = {"act": 1, "explore": 64}


class Contestant(NamedTuple):
    """A row, ready to be timed."""

    policy: FinetunablePolicy
    algorithm: PolicyGradient
    batch: RolloutBatch


def fresh(kind: str) -> ChunkPolicy:
    """A policy with random weights."""
    config: TrainConfig = to_object(load_config("train", ["sim=lift", *POLICIES[kind], *NET], TRAIN))
    sim = MujocoVec("lift", 1, num_threads=1)
    try:
        policy = scratch_policy(sim.spec, config.policy, torch.device("cpu"))
    finally:
        sim.close()
    return as_chunk_policy(policy, kind)


def as_chunk_policy(policy: object, source: object) -> ChunkPolicy:
    """``policy``. Raises ConfigError when it has no denoising steps."""
    if not isinstance(policy, ChunkPolicy):
        raise ConfigError(f"{source} holds a {type(policy).__name__}, expected a flow or diffusion policy")
    return policy


def cloned(folder: Path, demos: Path | None) -> dict[str, Path]:
    """Clone both policies on lift, from ``demos`` or from 120 new demonstrations of a weak teacher."""

    def run(*argv: str) -> None:
        if code := robopo([*argv]):
            raise ConfigError(f"robopo {' '.join(argv)} ended with {code}")

    if demos is None:
        demos = folder / "demos"
        run("collect", "sim=lift", "episodes=120", "imperfection=0.93", "seed=0", f"out={demos}")
    for kind, settings in POLICIES.items():
        choices = ("algo=bc", "sim=lift", *settings, *NET, "loop.eval_every=0", "seed=0")
        run("train", *choices, f"demos={demos}", f"run_dir={folder / kind}")
    return {kind: folder / kind for kind in POLICIES}


def successes(policies: Mapping[str, ChunkPolicy], n: int) -> dict[str, int]:
    """Episodes of lift that each policy solves, of the first n of the selection seeds."""
    sim = MujocoVec("lift", 50)
    try:
        seeds = evaluation_seeds(n, SeedPurpose.SELECTION)
        return {kind: evaluate(policy, sim, seeds=seeds).successes for kind, policy in policies.items()}
    finally:
        sim.close()


def random_obs(policy: FinetunablePolicy, *shape: int) -> dict[str, Tensor]:
    """Observations [*shape, 1, D]."""
    return {key: torch.randn(*shape, 1, size) for key, size in policy.spec.obs.items()}


def make_batch(policy: FinetunablePolicy) -> RolloutBatch:
    """DECISIONS x ENVS of random observations and rewards, with chains that the policy really drew."""
    shape = (DECISIONS, ENVS)
    obs = random_obs(policy, *shape)
    flat = {key: value.flatten(0, 1) for key, value in obs.items()}
    _, chain = policy.sample_chain(flat, generator=torch.Generator().manual_seed(0))
    parts: dict[str, Any] = {
        name: part.unflatten(0, shape) for name in CHAIN if (part := getattr(chain, name)) is not None
    }
    ends = torch.rand(shape) < 0.05
    return RolloutBatch(
        obs=obs,
        next_obs={key: torch.cat([value[1:], value[:1]]) for key, value in obs.items()},
        reward=(torch.rand(shape) < 0.1).float(),
        terminated=ends & (torch.rand(shape) < 0.5),
        truncated=ends,
        first=torch.cat([torch.ones(1, ENVS, dtype=torch.bool), ends[:-1]]),
        **parts,
    )


def contestant(row: str, policy: ChunkPolicy) -> Contestant:
    """``row`` on a copy of ``policy``; the rate is tiny, so that every round times the same work."""
    pairs = DECISIONS * ENVS * policy.process.num_steps
    config: TrainConfig = to_object(load_config("train", [f"algo={row}"], TRAIN))
    algo = replace(
        config.algo,
        epochs=EPOCHS,
        batch_size=pairs // MINIBATCHES,
        actor_lr=1e-9,
        critic_warmup_iterations=0,
        max_chain_kl=None,  # these two would end the epochs early
        target_kl=None,
    )
    chosen, finetune = algorithm_choices(algo), FinetuneConfig()
    ready = for_finetuning(copy.deepcopy(policy), finetune, algo.reduce, chosen.exploration)
    algorithm = PolicyGradient(
        ready,
        value_net(ready.spec, finetune, ready, torch.device("cpu")),
        algo,
        ratio=chosen.ratio,
        advantage=chosen.advantage,
        trust_region=chosen.trust_region,
        optimizer=chosen.optimizer,
    )
    return Contestant(ready, algorithm, make_batch(ready))


def alternate(contestants: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median seconds of each, after warm-up."""
    names, seconds = list(contestants), {name: list[float]() for name in contestants}
    warm = 5 if rounds > 20 else 1
    for n in range(rounds + warm):
        turn = n % len(names)
        for name in names[turn:] + names[:turn]:
            began = time.perf_counter()
            contestants[name]()
            if n >= warm:
                seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in seconds.items()}


def measure(policies: Mapping[str, ChunkPolicy], calls: int, rounds: int) -> dict[str, dict[str, float]]:
    """Quantity -> contestant -> median seconds."""
    # A copy for each: no contestant finds its weights in the cache because another one has just used them.
    deployed = {kind: copy.deepcopy(policy).requires_grad_(False).eval() for kind, policy in policies.items()}
    obs = random_obs(policies["flow"], BATCHES["act"])
    noise = torch.randn(BATCHES["act"], 4, policies["flow"].spec.action_dim)
    rows = {row: contestant(row, policies[kind]) for row, kind in ROWS.items()}
    many, generator = random_obs(policies["flow"], BATCHES["explore"]), torch.Generator().manual_seed(1)

    def act(policy: ChunkPolicy) -> Callable[[], Tensor]:
        return lambda: policy.act(obs, noise=noise)

    def explore(policy: FinetunablePolicy) -> Callable[[], Any]:
        return lambda: policy.sample_chain(many, generator=generator)

    def update(one: Contestant) -> Callable[[], Any]:
        return lambda: one.algorithm.update(one.batch, generator=generator)

    return {
        "act": alternate({kind: act(deployed[kind]) for kind in ("ddim", "flow")}, calls),
        "explore": alternate({row: explore(one.policy) for row, one in rows.items()}, max(1, calls // 4)),
        "update": alternate({row: update(one) for row, one in rows.items()}, rounds),
    }


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    start = parser.add_mutually_exclusive_group()
    start.add_argument("--train", action="store_true", help="clone both on lift first (minutes)")
    start.add_argument("--checkpoints", type=Path, nargs=2, metavar=("FLOW", "DDIM"), help="policies of lift to time")
    parser.add_argument("--demos", type=Path, help="with --train: existing demonstrations of lift")
    parser.add_argument("--episodes", type=int, default=200, help="of the evaluation of what was trained")
    parser.add_argument("--calls", type=int, default=200, help="timed decisions at batch 1, a quarter at 64")
    parser.add_argument("--rounds", type=int, default=3, help="timed updates of each row")
    parser.add_argument("--json", type=Path, help="write the result here")
    return parser.parse_args()


def main() -> None:
    """Print the table; write JSON if asked to."""
    options = read_options()
    torch.manual_seed(0)
    folders: dict[str, Path] = {}
    if options.checkpoints:
        folders = dict(zip(("flow", "ddim"), options.checkpoints, strict=True))
    with tempfile.TemporaryDirectory() as made:
        if options.train:
            folders = cloned(Path(made), options.demos)
        policies = {
            kind: as_chunk_policy(load_policy(find_checkpoint(folders[kind])), folders[kind])
            if kind in folders
            else fresh(kind)
            for kind in POLICIES
        }
    torch.set_num_threads(1)
    solved = successes(policies, options.episodes) if folders else {}
    success: dict[str, Any] = {}
    for kind, count in solved.items():
        interval = wilson(count, options.episodes)
        success[kind] = {"successes": count, "n": options.episodes, **interval._asdict()}
        steps = policies[kind].process.num_steps
        print(f"{kind}, {steps} steps: success {interval} on {options.episodes} episodes")
    table = measure(policies, options.calls, options.rounds)
    results: list[dict[str, Any]] = []
    print(f"{'quantity':10} {'contestant':18} {'steps':>5} {'median ms':>10} {'over ddim':>10}")
    for quantity, medians in table.items():
        base = next(iter(medians.values()))
        for name, seconds in medians.items():
            steps = policies[ROWS.get(name, name)].process.num_steps
            print(f"{quantity:10} {name:18} {steps:5} {seconds * 1e3:10.3f} {seconds / base:10.3f}")
            results.append({"quantity": quantity, "contestant": name, "steps": steps, "seconds": seconds})
            results[-1]["over_ddim"] = seconds / base
    if options.json:
        facts = {
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "load_1m": os.getloadavg()[0],
            "torch": torch.__version__,
            "decisions": DECISIONS * ENVS,
            "epochs": EPOCHS,
            "minibatches": MINIBATCHES,
        }
        provenance = collect_provenance(seed=0).to_json()
        report = {"machine": facts, "provenance": provenance, "success": success, "results": results}
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
