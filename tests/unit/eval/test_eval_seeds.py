"""Training, selection and report episodes never share a seed."""

from __future__ import annotations

import numpy as np
import pytest

from robopo.errors import ConfigError
from robopo.eval.seeds import RESERVED, SEEDS_PER_PURPOSE, SeedPurpose, check_training_seed, evaluation_seeds
from sims.seeding import environment_keys


def test_lists_are_fixed_and_disjoint() -> None:
    assert evaluation_seeds(3) == (1_000_000_000, 1_000_000_001, 1_000_000_002)
    assert evaluation_seeds(2, SeedPurpose.REPORT) == (1_001_000_000, 1_001_000_001)
    assert evaluation_seeds(5)[:3] == evaluation_seeds(3)
    selection = evaluation_seeds(SEEDS_PER_PURPOSE)
    assert set(selection).isdisjoint(evaluation_seeds(SEEDS_PER_PURPOSE, SeedPurpose.REPORT))
    assert all(seed in RESERVED for seed in selection)
    for n in (0, SEEDS_PER_PURPOSE + 1):
        with pytest.raises(ConfigError, match=f"n={n}"):
            evaluation_seeds(n)


def test_training_seeds_stay_out_of_the_reserved_range() -> None:
    assert check_training_seed(0) == 0
    assert check_training_seed(2**62) == 2**62
    for purpose in SeedPurpose:
        for seed in evaluation_seeds(3, purpose):
            with pytest.raises(ConfigError, match="reserved for evaluation"):
                check_training_seed(seed)


def test_simulators_draw_other_episodes_for_evaluation_than_for_training() -> None:
    seeds = np.array([*evaluation_seeds(2000), *evaluation_seeds(2000, SeedPurpose.REPORT)])
    evaluation = set(environment_keys(seeds, len(seeds)).tolist())
    assert len(evaluation) == len(seeds)
    for seed in (0, 1, 42, 999_999_999, 2**62 + 7):
        assert evaluation.isdisjoint(environment_keys(seed, 500).tolist())
    # What the reservation guards against: numpy pads keys with zeros, so (seed, 0) is the key of the episode ``seed``.
    assert environment_keys(int(seeds[0]), 1)[0] in evaluation
