"""The sampling loop, shared by cloning, rollouts, evaluation and deployment."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from robopo.processes.kernels import StepCoefficients, StepTable, step_mean


class Step(NamedTuple):
    """One sampler step: x_out ~ N(mean, std^2) from x_in; all [B, H, A], std broadcasts."""

    k: int
    x_in: Tensor
    mean: Tensor
    x_out: Tensor
    std: Tensor


def run_chain(
    x: Tensor,
    *,
    predict: Callable[[Tensor, int], Tensor],
    table: StepTable,
    clean_clip: float | None,
    noise: Tensor | None,
    final_clip: float | None = None,
    record: Callable[[Step], None] | None = None,
    coefficients: Callable[[int], StepCoefficients] | None = None,
) -> Tensor:
    """Denoise x [B, H, A] through all S steps of ``table``.

    predict(x, k): the network's output at step k. noise: standard draws [S, B, H, A], None for the mean at every step.
    final_clip: bound on the last latent. record: sees every step. coefficients(k): instead of the table's rows.
    """
    draws = None if noise is None else noise.unbind(0)
    last = len(table) - 1
    at = table.at if coefficients is None else coefficients
    for k in range(last + 1):
        step = at(k)
        mean = step_mean(x, predict(x, k), step, clean_clip)
        x_out = mean if draws is None else torch.addcmul(mean, draws[k], step.std)
        if k == last and final_clip is not None:
            x_out = x_out.clamp(-final_clip, final_clip)
        if record is not None:
            record(Step(k, x, mean, x_out, step.std))
        x = x_out
    return x
