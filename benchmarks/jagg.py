"""What JAGG saves on a diffusion transformer, and how far its gradient is from the exact one.

    python benchmarks/jagg.py --json out.json

A one-layer task stands for the robot's: chunks around a point that depends on the state, cloned for a few hundred steps
so that the network is a real velocity field. Then one actor step (clipped ratio per denoising step) runs on chains that
the policy sampled with a Flow-SDE kernel, by the exact backward pass and by JAGG with windows W of the K steps:

- seconds: medians of alternating rounds, gradient comparisons left out.
- rows: of the network's passes, without and with a graph; a row with a graph costs about three without.
- cosine, error: of the gradient to the exact one, all windows approximated.
- straight: share of the windows that the default ``min_score`` lets through; checked: the cosine over those alone,
  which the accelerator holds against ``min_cosine``.
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
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from robopo.algos.choices import Samples
from robopo.algos.jagg import Jagg, JaggBackward
from robopo.nn.dit import DiTConfig
from robopo.policies.base import PolicySpec
from robopo.policies.build import build_chunk_policy
from robopo.policies.chunk_policy import ChunkPolicy
from robopo.policies.config import ChunkPolicyConfig, Reduce
from robopo.policies.normalizer import MinMaxNormalizer
from robopo.processes.exploration import Exploration
from robopo.processes.flow import FlowConfig
from robopo.processes.transitions import FlowSDE

SPEC = PolicySpec(
    obs={"state": 16}, action_dim=7, action_names=tuple(f"a{n}" for n in range(7)), horizon=8, action_steps=8
)


class Case(NamedTuple):
    """A policy, chains it sampled, and the loss on all their steps."""

    policy: ChunkPolicy
    data: Samples
    unit: Tensor
    loss_of: Callable[[Any], Tensor]


def cloned_policy(config: DiTConfig, num_steps: int, clone_steps: int) -> ChunkPolicy:
    """A flow that has learned chunks around tanh(W s), in one of two modes."""
    torch.manual_seed(0)
    sizes = {**SPEC.obs, "action": SPEC.action_dim}
    bounds = {key: (-torch.ones(size), torch.ones(size)) for key, size in sizes.items()}
    process, normalizer = FlowConfig(num_steps=num_steps), MinMaxNormalizer(bounds)
    policy = build_chunk_policy(SPEC, config, process, ChunkPolicyConfig(reduce=Reduce.SUM), normalizer)
    weight = torch.randn(16, SPEC.horizon * SPEC.action_dim) * 0.3
    optimizer = torch.optim.AdamW(policy.net.parameters(), lr=1e-3)
    for _ in range(clone_steps):
        state = 2.0 * torch.rand(64, 1, 16) - 1.0
        mode = torch.randint(2, (64, 1, 1)) * 2.0 - 1.0
        action = (state[:, 0] @ weight).tanh().view(64, SPEC.horizon, SPEC.action_dim) * 0.5 + 0.3 * mode
        loss = policy.bc_loss({"state": state}, action + 0.05 * torch.randn_like(action), None)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return policy


def make_case(policy: ChunkPolicy, num_steps: int, decisions: int, eta: float) -> Case:
    """Chains of a Flow-SDE kernel, and PPO's clipped loss with random advantages."""
    policy.begin_finetuning(num_steps, Exploration(FlowSDE(eta=eta)))
    generator = torch.Generator().manual_seed(1)
    obs = {"state": 2.0 * torch.rand(decisions, 1, 16, generator=generator) - 1.0}
    _, chain = policy.sample_chain(obs, generator=generator)
    advantage = torch.randn(decisions, generator=generator)
    data = Samples(
        obs=obs,
        latents=chain.latents,
        log_probs=chain.log_probs,
        means=chain.means,
        stds=chain.stds,
        active=chain.active,
        use=None,
        value=advantage,
        advantage=advantage,
        returns=advantage,
        anchors={},
    )
    active = torch.ones_like(chain.log_probs, dtype=torch.bool) if chain.active is None else chain.active
    unit = active.flatten().nonzero()[:, 0]

    def loss_of(policy: Any) -> Tensor:
        decision, i = unit // num_steps, unit % num_steps
        rows, x_in, x_out = data.rows(decision), data.latents[decision, i], data.latents[decision, i + 1]
        ratio = (policy.step_log_prob(rows, x_in, x_out, i) - data.log_probs[decision, i]).exp()
        adv = data.advantage[decision]
        return torch.maximum(-adv * ratio, -adv * ratio.clamp(0.8, 1.2)).mean()

    return Case(policy, data, unit, loss_of)


def gradient(net: nn.Module, backward: Callable[[], object]) -> Tensor:
    """All gradients that ``backward`` leaves in ``net``, as one vector."""
    net.zero_grad()
    backward()
    return torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])


def count_rows(net: nn.Module, backward: Callable[[], object]) -> dict[str, int]:
    """Rows that pass through ``net`` without and with a graph."""
    rows = {"plain": 0, "graph": 0}

    def hook(_module: nn.Module, args: tuple[Tensor, ...]) -> None:
        rows["graph" if torch.is_grad_enabled() else "plain"] += len(args[0])

    handle = net.register_forward_pre_hook(hook)
    backward()
    handle.remove()
    return rows


def measure(case: Case, window: int, rounds: int) -> dict[str, Any]:
    """Exact against approximated, of one actor step."""
    policy, never = case.policy, 10**9
    free = JaggBackward(Jagg(window=window, min_score=-1.0, min_cosine=-1.0, check_every=never), policy)
    routed = JaggBackward(Jagg(window=window, check_every=never, min_cosine=-1.0), policy)

    def exact() -> None:
        case.loss_of(policy).backward()

    def jagg() -> float:
        return free.backward(policy, case.data, case.unit, case.loss_of)

    expected, found = gradient(policy.net, exact), gradient(policy.net, jagg)
    seconds: dict[str, list[float]] = {"exact": [], "jagg": []}
    for _ in range(rounds):
        for name, function in (("exact", exact), ("jagg", jagg)):
            begin = time.perf_counter()
            function()
            seconds[name].append(time.perf_counter() - begin)
    median = {name: statistics.median(values) for name, values in seconds.items()}
    straight = routed.backward(policy, case.data, case.unit, case.loss_of)
    return {
        "window": window,
        "seconds": median,
        "speedup": median["exact"] / median["jagg"],
        "rows": {"exact": count_rows(policy.net, exact), "jagg": count_rows(policy.net, jagg)},
        "cosine": float(nn.functional.cosine_similarity(expected, found, dim=0)),
        "error": float((found - expected).norm() / expected.norm()),
        "straight": straight,
        "checked": routed.cosine,
    }


def main() -> None:
    """Clone, measure every window and noise, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8, help="K, denoising steps, all fine-tuned")
    parser.add_argument("--windows", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--etas", type=float, nargs="+", default=[0.1, 0.3, 0.7])
    parser.add_argument("--decisions", type=int, default=32)
    parser.add_argument("--clone-steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    policy = cloned_policy(DiTConfig(width=options.width, depth=options.depth), options.steps, options.clone_steps)
    results: list[dict[str, Any]] = []
    print("   eta   W   exact s    jagg s  speedup   rows plain/graph   cosine   error  straight  checked")
    for eta in options.etas:
        case = make_case(policy, options.steps, options.decisions, eta)
        for window in options.windows:
            out = measure(case, window, options.rounds)
            results.append({"eta": eta, **out})
            rows = f"{out['rows']['jagg']['plain']}/{out['rows']['jagg']['graph']}"
            print(
                f"{eta:6.2f} {window:3d} {out['seconds']['exact']:9.3f} {out['seconds']['jagg']:9.3f} "
                f"{out['speedup']:8.2f} {rows:>18s} {out['cosine']:8.3f} {out['error']:7.3f} {out['straight']:9.2f} "
                f"{out['checked']:8.3f}"
            )
    report = {
        "results": results,
        "options": {key: value for key, value in vars(options).items() if key != "json"},
        "parameters": sum(p.numel() for p in policy.net.parameters()),
        "device": platform.machine(),
        "torch": torch.__version__,
    }
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
