"""Learning rates as functions of the step, so that a resumed run needs nothing but its counter."""

from __future__ import annotations

import math


def warmup_cosine(step: int, *, low: float, high: float, warmup: int, cycle: int) -> float:
    """Linear rise from ``low`` at 0 to ``high`` at ``warmup``, cosine fall to ``low``, again every ``cycle``."""
    position = step % cycle
    if position < warmup:
        return low + (high - low) * position / warmup
    progress = (position - warmup) / max(1, cycle - warmup)
    return low + (high - low) * 0.5 * (1.0 + math.cos(math.pi * progress))
