"""Differential entropy: of Gaussian steps, and estimated from samples. In nats."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def gaussian_entropy(std: Tensor) -> Tensor:
    """Entropy of each element: log std + log(2 pi e) / 2."""
    return std.log() + 0.5 * (1.0 + math.log(2.0 * math.pi))


def knn_entropy(sample: Tensor, *, k: int = 1, eps: float = 1e-6) -> Tensor:
    """Entropy [S] of the distributions behind sample [S, M, D], M > k samples each, differentiable.

    Kozachenko and Leonenko 1987: D mean log rho + log V_D + psi(M) - psi(k), rho the distance of a sample to its k-th
    neighbour and V_D the volume of the unit ball. Distances count as at least ``eps``: samples may coincide.
    """
    M, D = sample.shape[1:]
    if not 1 <= k < M:
        raise ValueError(f"k={k}: expected 1 to one less than the {M} samples")
    squared = (sample[:, :, None] - sample[:, None]).square().sum(-1)  # [S, M, M]
    itself = torch.eye(M, dtype=torch.bool, device=sample.device)
    nearest = squared.masked_fill(itself, torch.inf).kthvalue(k, dim=-1).values  # [S, M]
    log_rho = 0.5 * nearest.clamp_min(eps**2).log()
    log_volume = 0.5 * D * math.log(math.pi) - math.lgamma(0.5 * D + 1.0)
    psi = torch.digamma(torch.tensor([float(M), float(k)], dtype=torch.float64))
    return D * log_rho.mean(-1) + (log_volume + float(psi[0] - psi[1]))
