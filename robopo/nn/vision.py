"""From pictures to the numbers that a policy or a critic is conditioned on.

A picture encoder is a submodule ``vision`` of the network that it feeds, so that it is cloned, averaged, fine-tuned,
frozen and saved together with it. Two trunks: DPPO's small vision transformer (``vision_vit``) and ResNet-18
(``vision_resnet``). Pictures stay uint8 on the host; they become floats here, on the device of the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from robopo.errors import ConfigError

BLOCK = 1024
"""Pictures that go through the trunk at once where no graph is kept, to bound the memory of a whole rollout."""

type Picture = tuple[int, int, int]
"""Height, width, 3."""


class VisionConfig(Protocol):
    """What both encoders' settings have."""

    @property
    def features(self) -> int:
        """Numbers per camera."""
        ...

    @property
    def shared(self) -> bool:
        """Whether all cameras go through one trunk."""
        ...

    @property
    def shift(self) -> int:
        """Largest random shift while training, pixels; 0: none."""
        ...


type MakeTrunk = Callable[[int, int, int], nn.Module]
"""(channels, height, width) -> a module from [B, channels, height, width] to what a head takes."""
type MakeHead = Callable[[nn.Module, int], nn.Module]
"""(trunk, numbers beside the pictures) -> a module (trunk's output, those numbers [B, L]) -> [B, features]."""


class VisionEncoder(nn.Module):
    """Pictures of one or more cameras, and the numbers beside them -> [B, cameras * features].

    One head per camera; one trunk per camera, or one for all. The To pictures of a camera are stacked on the channels,
    as in Ren et al. 2024 (arXiv 2409.00588).
    """

    def __init__(
        self,
        config: VisionConfig,
        images: Mapping[str, Picture],
        *,
        obs_steps: int,
        low_dim: int,
        make_trunk: MakeTrunk,
        make_head: MakeHead,
    ) -> None:
        """images: entry -> (height, width, 3), read in sorted order. low_dim: numbers beside the pictures."""
        super().__init__()
        if not images or obs_steps < 1:
            raise ConfigError(f"images={dict(images)}, obs_steps={obs_steps}: expected at least one picture and step")
        self.config, self.images, self.obs_steps = config, dict(sorted(images.items())), obs_steps
        shapes = list(self.images.values())
        if config.shared and len(set(shapes)) > 1:
            raise ConfigError(f"pictures of {shapes} can't share one trunk; use one size, or vision.shared=false")
        built = [make_trunk(3 * obs_steps, *shape[:2]) for shape in (shapes[:1] if config.shared else shapes)]
        self.trunks = nn.ModuleList(built)
        self.heads = nn.ModuleList(make_head(built[0 if config.shared else n], low_dim) for n in range(len(shapes)))
        self.dim = len(shapes) * config.features
        """F, numbers that come out."""

    def forward(self, pictures: Sequence[Tensor], low: Tensor) -> Tensor:
        """Pictures, each [B, To, height, width, 3] uint8 wherever they lie, and low [B, L] -> [B, F] beside ``low``."""
        if torch.is_grad_enabled() or low.shape[0] <= BLOCK:
            return self._encode(pictures, low)
        parts = zip(*(picture.split(BLOCK) for picture in pictures), low.split(BLOCK), strict=True)
        return torch.cat([self._encode(part[:-1], part[-1]) for part in parts])

    def _encode(self, pictures: Sequence[Tensor], low: Tensor) -> Tensor:
        found: list[Tensor] = []
        for n, picture in enumerate(pictures):
            trunk = self.trunks[0 if self.config.shared else n]
            found.append(self.heads[n](trunk(as_channels(picture, low)), low))
        return torch.cat(found, dim=1)


def as_channels(picture: Tensor, like: Tensor) -> Tensor:
    """[B, To, height, width, 3] uint8 -> [B, To * 3, height, width] in [-0.5, 0.5], dtype and device of ``like``."""
    moved = picture.to(like.device, non_blocking=True).to(like.dtype)
    # One picture keeps its memory order, which is channels_last, what convolutions like best.
    stacked = moved[:, 0].movedim(-1, 1) if moved.shape[1] == 1 else moved.movedim(-1, 2).flatten(1, 2)
    return stacked / 255.0 - 0.5


def vision_of(net: nn.Module) -> VisionEncoder | None:
    """The picture encoder of a network, None for one that sees numbers alone."""
    found = getattr(net, "vision", None)
    return found if isinstance(found, VisionEncoder) else None


def feature_dim(net: nn.Module) -> int:
    """F of the network's picture encoder, 0 without one."""
    vision = vision_of(net)
    return 0 if vision is None else vision.dim
