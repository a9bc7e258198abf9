"""One seed at the root, a named and independent generator for everything that draws random numbers.

A child's stream depends on the root seed and on its name alone, never on the order in which children are made, so
adding a component does not change the numbers that the others see.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from robopo.errors import ConfigError


@dataclass(frozen=True, slots=True)
class SeedTree:
    """A node of the tree: the root seed and the names on the way down.

    >>> tree = SeedTree(3)
    >>> tree.child("sim").int("env") == SeedTree(3).child("sim").int("env")
    True
    """

    seed: int
    """Root seed of the run; 0 or greater."""
    path: tuple[str, ...] = ()
    """Names from the root to this node."""

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ConfigError(f"seed={self.seed}: expected 0 or greater; choose a non-negative seed")

    def child(self, name: str) -> SeedTree:
        """Return the node called ``name`` below this one."""
        return SeedTree(self.seed, (*self.path, name))

    def int(self, name: str) -> int:
        """Return the 63-bit seed of child ``name``: non-negative, and fit for numpy, torch and simulators."""
        # Lengths keep ("a", "bc") and ("ab", "c") apart.
        key = "".join(f"{len(part)}:{part}" for part in (str(self.seed), *self.path, name))
        return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little") >> 1

    def numpy(self, name: str) -> np.random.Generator:
        """Return a fresh numpy generator (PCG64) for child ``name``."""
        return np.random.Generator(np.random.PCG64(self.int(name)))

    def torch(self, name: str, device: str | torch.device = "cpu") -> torch.Generator:
        """Return a fresh torch generator on ``device`` for child ``name``."""
        return torch.Generator(device=device).manual_seed(self.int(name))

    def seed_globals(self) -> None:
        """Seed the process-wide generators of Python, numpy and torch: for libraries that take no generator."""
        random.seed(self.int("python"))
        np.random.seed(self.int("numpy") % 2**32)
        torch.manual_seed(self.int("torch"))


def global_rng_state() -> dict[str, Any]:
    """State of the process-wide generators (Python, numpy, torch, every CUDA device in use), as a state tree."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
        "cuda": list(cuda),
    }


def restore_global_rng(state: dict[str, Any]) -> None:
    """Inverse of ``global_rng_state``; CUDA devices that are not here are left out."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.device_count() == len(state["cuda"]):
        torch.cuda.set_rng_state_all(state["cuda"])
