"""Films of the fake simulator, decoded again."""

from __future__ import annotations

from pathlib import Path

import imageio.v2 as imageio
import numpy as np
import pytest

from robopo.errors import ConfigError
from robopo.eval.evaluate import evaluate
from robopo.eval.records import EpisodeRow
from robopo.eval.video import FAILURE_RGB, STRIP_PX, SUCCESS_RGB, Clip, annotate, montage, record_episodes, write_mp4

from .fakes import Constant, LineSim, Noisy


def make_clip(frames: int, *, success: bool) -> Clip:
    row = EpisodeRow(3, success, success, frames, 0.0, success)
    return Clip(np.full((frames, 48, 64, 3), 100, np.uint8), row)


def test_each_episode_is_filmed_up_to_its_end() -> None:
    clips = record_episodes(Constant(2.0), LineSim(2), [9, 6, 0], width=64, height=48)
    # Episodes of 2, 4 and 7 steps: the first picture and one after each step but the last (autoreset hides that one).
    assert [len(clip.frames) for clip in clips] == [2, 4, 7]
    assert [clip.row.seed for clip in clips] == [9, 6, 0]
    assert clips[0].frames.shape[1:] == (48, 64, 3)
    assert not np.array_equal(clips[0].frames[0], clips[0].frames[1])
    thinned = record_episodes(Constant(2.0), LineSim(2), [6], width=64, height=48, stride=2)
    assert [len(clip.frames) for clip in thinned] == [2]


def test_filming_changes_no_outcome() -> None:
    filmed = record_episodes(Noisy(), LineSim(3), [1, 2, 3, 4], width=16, height=16)
    assert tuple(clip.row for clip in filmed) == evaluate(Noisy(), LineSim(2), seeds=[1, 2, 3, 4]).rows


@pytest.mark.parametrize(("success", "color"), [(True, SUCCESS_RGB), (False, FAILURE_RGB)])
def test_outcome_is_written_above(success: bool, color: tuple[int, int, int]) -> None:
    frames = annotate(make_clip(2, success=success), "before")
    assert frames.shape == (2, 48 + STRIP_PX, 64, 3)
    assert tuple(frames[0, 0, -1]) == color
    assert (frames[:, STRIP_PX:] == 100).all()
    assert (frames[0, :STRIP_PX] != color).any(), "there is text"


def test_montage_holds_the_last_picture() -> None:
    short, long = np.zeros((1, 4, 6, 3), np.uint8), np.full((3, 4, 6, 3), 9, np.uint8)
    grid = montage([short + 5, long, long], columns=2)
    assert grid.shape == (3, 8, 12, 3)
    assert (grid[2, :4, :6] == 5).all()
    assert (grid[:, 4:, 6:] == 0).all()
    with pytest.raises(ConfigError, match="different frame sizes"):
        montage([short, np.zeros((1, 2, 6, 3), np.uint8)])
    with pytest.raises(ConfigError, match="0 films"):
        montage([])


def test_mp4_can_be_decoded(tmp_path: Path) -> None:
    frames = annotate(make_clip(5, success=True))
    path = write_mp4(tmp_path / "deep" / "clip.mp4", frames[:, :-1], fps=10)
    assert [entry.name for entry in path.parent.iterdir()] == ["clip.mp4"]
    with imageio.get_reader(path) as reader:
        meta = reader.get_meta_data()
        assert (meta["codec"], meta["size"], meta["fps"]) == ("h264", (64, 66), 10)
        assert meta["pix_fmt"].startswith("yuv420p")
        assert sum(1 for _ in reader) == 5 + 6
    with pytest.raises(ConfigError, match="0 frames"):
        write_mp4(tmp_path / "none.mp4", frames[:0], fps=10)
