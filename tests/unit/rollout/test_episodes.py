"""Seeds of episodes: repeatable, resumable, and never those of an evaluation."""

from __future__ import annotations

import numpy as np
import pytest

from robopo.errors import ConfigError
from robopo.eval.seeds import RESERVED
from robopo.rollout.episodes import SEED_LIMIT, EpisodeSeeds


def test_seeds_repeat_and_resume() -> None:
    straight = EpisodeSeeds(5, reserved=RESERVED)
    drawn = [straight.draw(3) for _ in range(3)]
    assert len(np.unique(np.concatenate(drawn))) == 9
    resumed = EpisodeSeeds(5, reserved=RESERVED)
    resumed.draw(3)
    again = EpisodeSeeds(5, reserved=RESERVED)
    again.load_state_dict(resumed.state_dict())
    np.testing.assert_array_equal(again.draw(3), drawn[1])
    assert not np.array_equal(EpisodeSeeds(6, reserved=RESERVED).draw(3), drawn[0])


def test_reserved_seeds_are_never_drawn() -> None:
    reserved = range(SEED_LIMIT // 4, SEED_LIMIT // 2)  # a quarter of all: 1000 draws would hit it
    seeds = EpisodeSeeds(0, reserved=reserved).draw(1000)
    assert not np.isin(seeds // (SEED_LIMIT // 4), [1]).any()
    assert set(np.unique(seeds // (SEED_LIMIT // 4))) == {0, 2, 3}
    free = EpisodeSeeds(0, reserved=range(0)).draw(1000)
    outside = (free < reserved.start) | (free >= reserved.stop)
    np.testing.assert_array_equal(seeds[outside], free[outside])  # only the bad ones were drawn again


def test_ranges_are_checked() -> None:
    with pytest.raises(ConfigError, match="seed=-1"):
        EpisodeSeeds(-1, reserved=RESERVED)
    with pytest.raises(ConfigError, match="half of all seeds"):
        EpisodeSeeds(0, reserved=range(SEED_LIMIT))
