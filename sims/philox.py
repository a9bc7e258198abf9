"""Random numbers that are a function of where they are needed: Philox4x32-10, one counter per environment and entry.

A numpy generator per environment and step would cost ten microseconds each; here all are drawn at once, and
an environment's numbers depend on its own key and counter alone, never on E.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
ROUNDS = 10


def philox4x32(counter: NDArray[np.uint32], key: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Four random words per counter (Salmon et al. 2011, Philox4x32-10). counter [N, 4], key [N, 2] → [N, 4]."""
    c0, c1, c2, c3 = (np.ascontiguousarray(counter[:, i], dtype=np.uint64) for i in range(4))
    k0, k1 = (np.ascontiguousarray(key[:, i], dtype=np.uint64) for i in range(2))
    for turn in range(ROUNDS):
        w0 = (k0 + np.uint64(turn * _WEYL[0])) & _LOW
        w1 = (k1 + np.uint64(turn * _WEYL[1])) & _LOW
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (p1 >> _SHIFT) ^ c1 ^ w0, p1 & _LOW, (p0 >> _SHIFT) ^ c3 ^ w1, p0 & _LOW
    return np.stack([c0, c1, c2, c3], axis=1).astype(np.uint32)


def counter_normals(
    keys: NDArray[np.uint64], episode: NDArray[np.int64], step: NDArray[np.int64], width: int, stream: int
) -> NDArray[np.float64]:
    """[N, width] standard normals; row i is a function of (keys[i], episode[i], step[i], stream) alone.

    Box and Muller's transform of 32-bit uniforms, so no value exceeds 6.7. stream in [0, 65535] keeps apart what
    draws at the same step.
    """
    blocks = -(-width // 4)
    count = len(keys)

    def spread(values: NDArray[Any]) -> NDArray[np.uint32]:
        return np.repeat(values.astype(np.uint64) & _LOW, blocks).astype(np.uint32)

    place = np.tile(np.arange(blocks, dtype=np.uint32), count) + np.uint32(stream << 16)
    high = spread(episode.astype(np.uint64) >> _SHIFT)
    words = philox4x32(
        np.stack([place, spread(step), spread(episode), high], axis=1),
        np.stack([spread(keys), spread(keys >> _SHIFT)], axis=1),
    )
    uniform = (words.reshape(-1, 2).astype(np.float64) + 0.5) * 2.0**-32  # in (0, 1)
    radius = np.sqrt(-2.0 * np.log(np.ascontiguousarray(uniform[:, 0])))
    angle = 2.0 * np.pi * uniform[:, 1]
    pairs = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return pairs.reshape(count, 4 * blocks)[:, :width]
