"""Random shifts of pictures.

Kostrikov et al. 2020 (DrQ), arXiv 2004.13649: pad by repeating the border, crop at a random place. Without
interpolation, so every pixel of the result is a pixel of the picture and uint8 stays uint8.
"""

from __future__ import annotations

import torch
from torch import Tensor

from robopo.errors import ShapeError


def random_shift(picture: Tensor, pad: int, generator: torch.Generator | None) -> Tensor:
    """Shift [B, To, height, width, C] by up to ``pad`` pixels either way, each of the B by its own -> a new tensor.

    The To pictures of one window move together. generator: of any device; None: torch's global one.
    """
    if picture.ndim != 5:
        raise ShapeError(f"pictures are {list(picture.shape)}, expected [B, To, height, width, channels]")
    if pad == 0:
        return picture.clone()
    B, To, height, width = picture.shape[:4]
    where = picture.device if generator is None else generator.device
    offset = torch.randint(-pad, pad + 1, (2, B, 1), generator=generator, device=where).to(picture.device)
    down, across = (
        (torch.arange(size, device=picture.device) + move).clamp_(0, size - 1)  # [B, size]: the border repeats
        for size, move in zip((height, width), offset, strict=True)
    )
    batch = torch.arange(B, device=picture.device)[:, None, None, None]
    step = torch.arange(To, device=picture.device)[None, :, None, None]
    return picture[batch, step, down[:, None, :, None], across[:, None, None, :]]
