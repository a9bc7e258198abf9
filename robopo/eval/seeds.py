"""Which episodes a policy is judged on: fixed, and never those it was trained or tuned on.

A simulator draws an episode's start from its seed alone. Integers from RESERVED_START on are reserved: SELECTION
episodes choose checkpoints and hyperparameters, REPORT episodes give the published numbers, every other seed belongs
to training and to demonstrations. Simulators key training episodes by (seed, environment) and numpy pads such keys with
zeros, so (seed, 0) and the episode seed ``seed`` are the same key: hence training seeds must stay out of the range.
"""

from __future__ import annotations

from enum import StrEnum

from robopo.errors import ConfigError

RESERVED_START = 1_000_000_000
SEEDS_PER_PURPOSE = 1_000_000


class SeedPurpose(StrEnum):
    """What the episodes decide."""

    SELECTION = "selection"
    """Choosing a checkpoint or a hyperparameter; seeds 1,000,000,000 to 1,000,999,999."""
    REPORT = "report"
    """Numbers that leave the house; seeds 1,001,000,000 to 1,001,999,999. Look at them once, at the end."""


RESERVED = range(RESERVED_START, RESERVED_START + SEEDS_PER_PURPOSE * len(SeedPurpose))


def evaluation_seeds(n: int, purpose: SeedPurpose = SeedPurpose.SELECTION) -> tuple[int, ...]:
    """The first ``n`` episode seeds of ``purpose``; a longer list starts with the shorter one."""
    if not 1 <= n <= SEEDS_PER_PURPOSE:
        raise ConfigError(f"n={n}: between 1 and {SEEDS_PER_PURPOSE} evaluation episodes are possible")
    start = RESERVED_START + SEEDS_PER_PURPOSE * list(SeedPurpose).index(SeedPurpose(purpose))
    return tuple(range(start, start + n))


def check_training_seed(seed: int) -> int:
    """Return ``seed``, or raise ConfigError when it is reserved for evaluation episodes."""
    if seed in RESERVED:
        raise ConfigError(
            f"seed={seed} is reserved for evaluation ({RESERVED.start} to {RESERVED.stop - 1}); train with another seed"
        )
    return seed
