"""Whether a policy and a simulator belong together: asked once, before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from robopo.errors import ConfigError, ShapeError, did_you_mean
from sims.base import SimSpec


class ActorSpec(Protocol):
    """The part of a policy's spec that decides."""

    @property
    def obs(self) -> Mapping[str, int]: ...
    @property
    def action_dim(self) -> int: ...
    @property
    def action_mode(self) -> str: ...
    @property
    def control_hz(self) -> float: ...


def check_fits(spec: ActorSpec, sim: SimSpec) -> None:
    """Raise ShapeError or ConfigError unless the simulator shows and takes what the policy was trained on."""
    _check_pictures(getattr(spec, "images", {}), sim)
    for key, dim in spec.obs.items():
        if key not in sim.observation:
            raise ShapeError(f"{sim.name} shows no {key!r}{did_you_mean(key, sim.observation)}")
        shape = sim.observation[key].shape
        if shape != (dim,):
            raise ShapeError(f"{key!r} is {list(shape)} in {sim.name}, the policy was trained on [{dim}]; check sim=")
    if sim.action.shape != (spec.action_dim,):
        raise ShapeError(
            f"{sim.name} takes actions of {list(sim.action.shape)}, not [{spec.action_dim}]; "
            f"was the policy trained with action_mode={sim.action_mode!r}?"
        )
    if spec.action_mode != sim.action_mode:
        raise ConfigError(
            f"the policy speaks action_mode={spec.action_mode!r}, the simulator {sim.action_mode!r}; "
            f"use sim.action_mode={spec.action_mode}"
        )
    if abs(spec.control_hz - sim.control_hz) > 1e-6 * spec.control_hz:
        raise ConfigError(f"the policy acts at {spec.control_hz} Hz, the simulator at {sim.control_hz} Hz")


def _check_pictures(images: Mapping[str, tuple[int, int, int]], sim: SimSpec) -> None:
    cameras = ",".join(key.removeprefix("image_") for key in images)
    for key, shape in images.items():
        if key not in sim.observation:
            raise ShapeError(
                f"{sim.name} shows no picture {key!r}; add sim.cameras=[{cameras}] sim.image_size={shape[0]}"
            )
        found = sim.observation[key]
        if not found.is_image or found.shape != tuple(shape):
            raise ShapeError(
                f"{key!r} is {list(found.shape)} in {sim.name}, the policy was trained on {list(shape)}; "
                f"use sim.image_size={shape[0]}"
            )
