"""Films of evaluated episodes: small H.264 files that any browser plays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robopo.errors import ConfigError
from robopo.eval.evaluate import Actor, evaluate
from robopo.eval.records import EpisodeRow
from sims.base import BoolArray, FloatArray, Seed, SimSpec, Step, VecSim

Frame = NDArray[np.uint8]

SUCCESS_RGB = (46, 160, 112)
FAILURE_RGB = (214, 96, 60)
STRIP_PX = 20
HOLD_S = 0.6
"""How long the last picture stays, so that the outcome can be read."""


class Clip(NamedTuple):
    """frames [T, height, width, 3] uint8 and the episode they show."""

    frames: Frame
    row: EpisodeRow


def record_episodes(
    policy: Actor,
    sim: VecSim,
    seeds: Sequence[int],
    *,
    camera: str | None = None,
    width: int = 320,
    height: int = 240,
    stride: int = 1,
    **options: Any,
) -> list[Clip]:
    """Play ``seeds`` as ``evaluate`` does (``options`` go to it) and film them, one picture every ``stride`` steps."""
    if stride < 1:
        raise ConfigError(f"stride={stride}: at least 1 is needed")
    film = _FilmedSim(sim, stride, {"camera": camera, "width": width, "height": height})
    report = evaluate(policy, film, seeds=seeds, **options)
    return [Clip(np.stack(film.frames[row.seed]), row) for row in report.rows]


def annotate(clip: Clip, label: str = "") -> Frame:
    """Frames [T, height + STRIP_PX, width, 3]: the clip's, below a strip that names the outcome in words and colour."""
    from PIL import Image, ImageDraw

    count, height, width, _ = clip.frames.shape
    outcome = "success" if clip.row.success else "failure"
    color = SUCCESS_RGB if clip.row.success else FAILURE_RGB
    image = Image.new("RGB", (width, STRIP_PX), color)
    caption = "  ".join(part for part in (label, f"seed {clip.row.seed}", outcome) if part)
    ImageDraw.Draw(image).text((6, STRIP_PX // 2), caption, fill=(255, 255, 255), anchor="lm")
    out = np.empty((count, height + STRIP_PX, width, 3), np.uint8)
    out[:, :STRIP_PX] = np.asarray(image)  # on top, where a player's controls don't cover it
    out[:, STRIP_PX:] = clip.frames
    return out


def montage(films: Sequence[Frame], columns: int = 3) -> Frame:
    """Films of equal frame size side by side, row by row; shorter ones hold their last picture."""
    if not films or columns < 1:
        raise ConfigError(f"{len(films)} films in {columns} columns: at least one of each is needed")
    shapes = {film.shape[1:] for film in films}
    if len(shapes) != 1:
        raise ConfigError(f"films of different frame sizes {sorted(shapes)}: record them with one width and height")
    length = max(len(film) for film in films)
    height, width, _ = next(iter(shapes))
    columns = min(columns, len(films))
    rows = -(-len(films) // columns)
    out = np.zeros((length, rows * height, columns * width, 3), np.uint8)
    for index, film in enumerate(films):
        row, column = divmod(index, columns)
        held = film[np.minimum(np.arange(length), len(film) - 1)]
        out[:, row * height : (row + 1) * height, column * width : (column + 1) * width] = held
    return out


def write_mp4(path: Path, frames: Frame, *, fps: float) -> Path:
    """Write frames [T, height, width, 3] as H.264 (yuv420p, faststart); the last picture is held for HOLD_S.

    Odd sizes lose their last row or column, since the codec takes even ones only.
    """
    import imageio.v2 as imageio

    if len(frames) == 0 or fps <= 0:
        raise ConfigError(
            f"{len(frames)} frames at {fps} per second: a film needs at least one frame and a positive rate"
        )
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    even = frames[:, : frames.shape[1] // 2 * 2, : frames.shape[2] // 2 * 2]
    temporary = path.with_name(f".{path.stem}.tmp.mp4")
    options = ["-crf", "28", "-preset", "fast", "-movflags", "+faststart"]
    try:
        with imageio.get_writer(
            temporary, fps=fps, codec="libx264", pixelformat="yuv420p", macro_block_size=2, output_params=options
        ) as writer:
            for frame in [*even, *[even[-1]] * round(HOLD_S * fps)]:
                writer.append_data(frame)  # pyright: ignore[reportAttributeAccessIssue]
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


class _FilmedSim:
    """A simulator that keeps a picture of every running episode, by seed. Autoreset pictures are never taken."""

    def __init__(self, sim: VecSim, stride: int, view: Mapping[str, Any]) -> None:
        self._sim, self._stride, self._view = sim, stride, view
        self.frames: dict[int, list[Frame]] = {}
        self._seeds: list[int] = []
        self._filming = np.zeros(sim.num_envs, np.bool_)
        self._age = 0

    @property
    def num_envs(self) -> int:
        return self._sim.num_envs

    @property
    def spec(self) -> SimSpec:
        return self._sim.spec

    @property
    def success(self) -> BoolArray:
        return self._sim.success

    def reset(self, seed: Seed = None, mask: BoolArray | None = None) -> dict[str, FloatArray]:
        obs = self._sim.reset(seed, mask)
        self._seeds = [int(value) for value in np.broadcast_to(np.asarray(seed), (self.num_envs,))]
        # Surplus environments repeat the last seed; the first of them films it.
        self._filming = np.array([value not in self._seeds[:i] for i, value in enumerate(self._seeds)])
        self._age = 0
        self._shoot()
        return obs

    def step(self, action: FloatArray, mask: BoolArray | None = None) -> Step:
        step = self._sim.step(action, mask)
        self._filming &= ~(step.terminated | step.truncated)
        self._age += 1
        if self._age % self._stride == 0:
            self._shoot()
        return step

    def _shoot(self) -> None:
        for env in np.flatnonzero(self._filming):
            self.frames.setdefault(self._seeds[env], []).append(self._sim.render(int(env), **self._view))

    def observe(self) -> dict[str, FloatArray]:
        return self._sim.observe()

    def state(self) -> dict[str, NDArray[Any]]:
        return self._sim.state()

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._sim.restore(state)

    def render(self, env: int = 0, *, camera: str | None = None, width: int = 320, height: int = 240) -> Frame:
        return self._sim.render(env, camera=camera, width=width, height=height)

    def close(self) -> None:
        self._sim.close()
