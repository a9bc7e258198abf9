"""What a deployment leaves behind for training: what the policy saw, what it asked for, and what was really sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hardware.types import Array
from robopo.data.demo import DemoData, Episode


class Frame(NamedTuple):
    """One control step of the policy."""

    t_s: float
    obs: Mapping[str, NDArray[np.float32]]
    """Entries [D] at the beginning of the step."""
    action: NDArray[np.float32]
    """[A] the policy's own row."""
    requested: Array
    """[n+1] joint targets (rad) and opening (m) asked for at the end of the step."""
    sent: Array
    """[n+1] what the arm was told at the end of the step."""
    gate_rules: int
    """Bit mask of the interlocks that spoke during the step."""


@dataclass(frozen=True, slots=True, eq=False)
class RecordedEpisode:
    """L frames as arrays [L, …]; see ``Frame``. success None: nobody judged it."""

    t_s: Array
    obs: Mapping[str, NDArray[np.float32]]
    action: NDArray[np.float32]
    requested: Array
    sent: Array
    gate_rules: NDArray[np.uint64]
    success: bool | None

    @property
    def altered(self) -> NDArray[np.bool_]:
        """[L] steps that the gate changed: not what the policy wanted, so no target for imitation."""
        return self.gate_rules != 0


class Recorder:
    """Collects frames in memory and hands whole episodes to ``write``; the control loop never touches a disk."""

    def __init__(self, write: Callable[[Sequence[RecordedEpisode]], Any]) -> None:
        """write: called once, by ``close``, with every episode that has frames."""
        self._write = write
        self._frames: list[Frame] = []
        self.episodes: list[RecordedEpisode] = []
        self._closed = False

    def add(self, frame: Frame) -> None:
        """One more step of the running episode."""
        self._frames.append(frame)

    def end(self, success: bool | None) -> None:
        """Close the running episode; one without frames leaves nothing."""
        frames, self._frames = self._frames, []
        if not frames:
            return
        self.episodes.append(
            RecordedEpisode(
                t_s=np.array([frame.t_s for frame in frames]),
                obs={key: np.stack([frame.obs[key] for frame in frames]) for key in frames[0].obs},
                action=np.stack([frame.action for frame in frames]),
                requested=np.stack([frame.requested for frame in frames]),
                sent=np.stack([frame.sent for frame in frames]),
                gate_rules=np.array([frame.gate_rules for frame in frames], dtype=np.uint64),
                success=success,
            )
        )

    def close(self) -> None:
        """Write what was recorded; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        if self.episodes:
            self._write(self.episodes)


def demo_data(episodes: Sequence[RecordedEpisode], *, control_hz: float, task: str = "") -> DemoData:
    """Recorded episodes as demonstrations whose action is what was sent: joint targets and gripper opening."""
    return DemoData.from_episodes(
        [Episode(episode.obs, episode.sent, episode.success) for episode in episodes],
        control_hz=control_hz,
        action_mode="joint_position",
        task=task,
    )
