"""Environments that are vectorised themselves, in every autoreset mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from sims.gymnasium_vec import GymnasiumVec
from tests.helpers import gymnasium_envs

MODES = [mode.name for mode in AutoresetMode]
ENDS = [2, 99, 4]


def make(mode: str, num_envs: int = 3, **kwargs: Any) -> GymnasiumVec:
    env_id = f"{gymnasium_envs.__name__}:Batch{mode.title().replace('_', '')}-v0"
    limit = kwargs.pop("max_episode_steps", None)
    more = {"mode": mode, "ends": ENDS, **kwargs}
    return GymnasiumVec(
        env_id, num_envs, vectorization="vector", max_episode_steps=limit, has_success=True, env_kwargs=more
    )


@pytest.mark.parametrize("mode", MODES)
def test_what_an_episode_was_does_not_depend_on_who_resets_it(mode: str) -> None:
    """Worked out by hand: environment 0 ends at step 2, 1 runs into the limit 5, 2 ends at step 4."""
    sim = make(mode)
    assert (sim.spec.maskable, sim.spec.independent, sim.spec.restorable) == (False, True, False)
    starts = sim.reset(3)["state"][:, 1].copy()
    length = np.zeros(3)
    for index in range(12):
        value = np.float32((index + 1) / 16)
        step = sim.step(np.full((3, 1), value, np.float32))
        length += 1
        terminated, truncated = (length == np.array(ENDS)), length == 5
        assert step.terminated.tolist() == terminated.tolist() and step.truncated.tolist() == truncated.tolist()
        assert step.reward.tolist() == [value] * 3
        assert step.info["success"].tolist() == (length == 2).tolist()
        assert step.info["episode_length"].tolist() == length.tolist()
        expected = [sum((index + 1 - k) / 16 for k in range(int(n))) for n in length]
        np.testing.assert_allclose(step.info["episode_return"], expected)
        np.testing.assert_array_equal(step.final_obs["state"][:, 0], length)
        np.testing.assert_array_equal(step.final_obs["state"][:, 1], starts)
        done = terminated | truncated
        np.testing.assert_array_equal(step.obs["state"][:, 0], np.where(done, 0, length))
        assert (step.obs["state"][done, 1] != starts[done]).all()
        starts, length = step.obs["state"][:, 1].copy(), np.where(done, 0, length)


def test_the_three_modes_play_the_same_episodes() -> None:
    sims = [make(mode) for mode in MODES]
    for sim in sims:
        sim.reset(np.array([5, 6, 7]))
    for index in range(15):
        steps = [sim.step(np.full((3, 1), 0.01 * index, np.float32)) for sim in sims]
        for other in steps[1:]:
            for name in ("obs", "final_obs"):
                np.testing.assert_array_equal(getattr(other, name)["state"], getattr(steps[0], name)["state"])
            np.testing.assert_array_equal(other.terminated, steps[0].terminated)
            np.testing.assert_array_equal(other.info["episode_return"], steps[0].info["episode_return"])


@pytest.mark.parametrize("mode", MODES)
def test_who_is_outside_the_mask_idles_without_flags(mode: str) -> None:
    sim = make(mode)
    sim.reset(0)
    mask = np.array([False, True, True])
    for _ in range(3):  # environment 0 comes to its end while it idles
        step = sim.step(np.ones((3, 1), np.float32), mask)
        assert not step.terminated[0] and not step.truncated[0] and step.reward[0] == 0
        assert step.info["episode_length"][0] == 0
    assert sim.observe()["state"][0, 0] == 1.0  # the second episode's first step


def test_parts_are_reset_by_mask_and_refused_without() -> None:
    sim = make("DISABLED")
    sim.reset(0)
    before = sim.step(np.ones((3, 1), np.float32)).obs["state"]
    after = sim.reset(mask=np.array([True, False, False]))["state"]
    assert after[0, 0] == 0.0
    np.testing.assert_array_equal(after[1:], before[1:])
    deaf = make("SAME_STEP", obeys_mask=False)
    assert not deaf.spec.independent
    with pytest.raises(RuntimeError, match="can't reset a part"):
        deaf.reset(mask=np.array([True, False, False]))


def test_same_step_without_masks_keeps_its_own_resets() -> None:
    deaf = make("SAME_STEP", obeys_mask=False)
    deaf.reset(1)
    steps = [deaf.step(np.ones((3, 1), np.float32)) for _ in range(2)]
    assert steps[1].terminated.tolist() == [True, False, False]
    assert steps[1].final_obs["state"][:, 0].tolist() == [2, 2, 2] and steps[1].obs["state"][:, 0].tolist() == [0, 2, 2]
    deaf.reset(1)
    again = [deaf.step(np.ones((3, 1), np.float32)) for _ in range(2)]
    np.testing.assert_array_equal(again[1].obs["state"], steps[1].obs["state"])


def test_next_step_without_masks_is_refused() -> None:
    with pytest.raises(ValueError, match=r"NEXT_STEP.*reset_mask.*vectorization=sync"):
        make("NEXT_STEP", obeys_mask=False)
