"""What every VecSim must do. Add a simulator to ``SIMS`` and it is held to the same contract."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from sims.base import VecSim
from sims.gymnasium_vec import GymnasiumVec
from sims.mujoco_vec import MujocoVec

SIMS: dict[str, Callable[..., VecSim]] = {
    "mujoco-reach": lambda num_envs, **kw: MujocoVec("reach", num_envs, max_episode_steps=12, **kw),
    "mujoco-push": lambda num_envs, **kw: MujocoVec("push", num_envs, max_episode_steps=12, **kw),
    "mujoco-lift": lambda num_envs, **kw: MujocoVec("lift", num_envs, max_episode_steps=12, **kw),
    "mujoco-lift-joints": lambda num_envs, **kw: MujocoVec(
        "lift", num_envs, max_episode_steps=12, action_mode="joint_delta", **kw
    ),
    "gymnasium-half-cheetah": lambda num_envs, **kw: GymnasiumVec(
        "HalfCheetah-v5", num_envs, max_episode_steps=12, **kw
    ),
    "gymnasium-ant": lambda num_envs, **kw: GymnasiumVec("Ant-v5", num_envs, max_episode_steps=12, **kw),
    "gymnasium-pendulum": lambda num_envs, **kw: GymnasiumVec("Pendulum-v1", num_envs, max_episode_steps=12, **kw),
}


@pytest.fixture(params=sorted(SIMS))
def make_sim(request: pytest.FixtureRequest) -> Iterator[Callable[..., VecSim]]:
    opened: list[VecSim] = []

    def make(num_envs: int, **kwargs: object) -> VecSim:
        opened.append(SIMS[request.param](num_envs, **kwargs))
        return opened[-1]

    yield make
    for sim in opened:
        sim.close()


def random_action(sim: VecSim, rng: np.random.Generator) -> np.ndarray:
    feature = sim.spec.action
    low, high = np.array(feature.low), np.array(feature.high)
    return rng.uniform(low, high, (sim.num_envs, *feature.shape)).astype(np.float32)


def actions(sim: VecSim, count: int, seed: int = 0) -> list[np.ndarray]:
    """Environment i's actions don't depend on E."""
    feature = sim.spec.action
    per_env = [np.random.default_rng((seed, env)) for env in range(sim.num_envs)]
    return [
        np.stack([rng.uniform(feature.low, feature.high) for rng in per_env]).astype(np.float32) for _ in range(count)
    ]


def assert_same(left: dict[str, np.ndarray], right: dict[str, np.ndarray], rows: slice = slice(None)) -> None:
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_array_equal(left[name][rows], right[name][rows], err_msg=name)


def entry_that_differs(sim: VecSim) -> str:
    """The entry whose first observation no two episodes share."""
    return "environment_state" if "environment_state" in sim.spec.observation else "state"


def test_spec_describes_what_comes_back(make_sim: Callable[..., VecSim]) -> None:
    sim = make_sim(3)
    obs = sim.reset(0)
    assert set(obs) == set(sim.spec.observation)
    for name, feature in sim.spec.observation.items():
        assert obs[name].shape == (3, *feature.shape)
        assert obs[name].dtype == np.dtype(feature.dtype)
        lengths = {len(feature.names), len(feature.units), len(feature.low), len(feature.high)}
        assert lengths == {feature.shape[0]}
    step = sim.step(random_action(sim, np.random.default_rng(0)))
    assert step.reward.shape == (3,) and step.reward.dtype == np.float32
    for flags in (step.terminated, step.truncated, step.info["success"], step.info["diverged"], sim.success):
        assert flags.shape == (3,) and flags.dtype == np.bool_
    assert set(step.final_obs) == set(obs)


def test_same_seed_same_trajectory_whatever_the_number_of_environments(make_sim: Callable[..., VecSim]) -> None:
    small, large = make_sim(2), make_sim(5)
    assert_same(small.reset(7), {k: v[:2] for k, v in large.reset(7).items()})
    for few, many in zip(actions(small, 20), actions(large, 20), strict=True):
        np.testing.assert_array_equal(few, many[:2])
        left, right = small.step(few), large.step(many)
        assert_same(left.obs, {k: v[:2] for k, v in right.obs.items()})
        np.testing.assert_array_equal(left.reward, right.reward[:2])
        np.testing.assert_array_equal(left.truncated, right.truncated[:2])


def test_seeds_decide_episodes_and_differ_between_environments(make_sim: Callable[..., VecSim]) -> None:
    sim = make_sim(3)
    start = entry_that_differs(sim)
    first = sim.reset(1)[start].copy()
    assert not np.array_equal(first, sim.reset(2)[start])
    np.testing.assert_array_equal(first, sim.reset(1)[start])
    assert len(np.unique(first[:, 0])) == 3
    # An episode seed means the same episode in any slot.
    one = sim.reset(np.array([11, 12, 13]))[start]
    two = sim.reset(np.array([13, 11, 12]))[start]
    np.testing.assert_array_equal(one[[2, 0, 1]], two)


def test_truncation_gives_the_true_final_observation(make_sim: Callable[..., VecSim]) -> None:
    sim = make_sim(2)
    sim.reset(3)
    limit = sim.spec.max_episode_steps
    total = np.zeros(2)
    for index, action in enumerate(actions(sim, limit)):
        step = sim.step(action)
        total += step.reward
        done = step.terminated | step.truncated
        for name in step.obs:
            same = (step.obs[name] == step.final_obs[name]).all(axis=1)
            np.testing.assert_array_equal(same, ~done, err_msg=f"{name} at step {index}")
    assert done.all()
    assert (step.info["episode_length"] == limit).all()
    np.testing.assert_allclose(step.info["episode_return"], total, rtol=1e-5)


def test_masked_environments_stand_still(make_sim: Callable[..., VecSim]) -> None:
    sim = make_sim(3)
    if not sim.spec.maskable:
        pytest.skip("declared maskable=False")
    before = sim.reset(4)
    mask = np.array([True, False, True])
    step = sim.step(random_action(sim, np.random.default_rng(1)), mask)
    for name in before:
        np.testing.assert_array_equal(step.obs[name][1], before[name][1])
    assert not np.array_equal(step.obs["state"][0], before["state"][0])
    assert not step.truncated[1] and not step.terminated[1] and step.reward[1] == 0
    assert step.info["episode_length"].tolist() == [1, 0, 1]


def test_an_empty_mask_changes_nothing(make_sim: Callable[..., VecSim]) -> None:
    sim = make_sim(2)
    if not sim.spec.maskable:
        pytest.skip("declared maskable=False")
    before = sim.reset(4)
    step = sim.step(random_action(sim, np.random.default_rng(1)), np.zeros(2, dtype=bool))
    assert_same(step.obs, before)
    assert not (step.terminated | step.truncated).any() and not step.reward.any()


def test_partial_reset_leaves_the_others_alone(make_sim: Callable[..., VecSim]) -> None:
    sim = make_sim(2)
    sim.reset(5)
    before = sim.step(random_action(sim, np.random.default_rng(1))).obs
    after = sim.reset(mask=np.array([False, True]))
    for name in before:
        np.testing.assert_array_equal(after[name][0], before[name][0])
    start = entry_that_differs(sim)
    assert not np.array_equal(after[start][1], before[start][1])


def test_restore_repeats_the_future_bit_for_bit(make_sim: Callable[..., VecSim]) -> None:
    sim = make_sim(3)
    if not sim.spec.restorable:
        pytest.skip("declared restorable=False")
    sim.reset(6)
    script = actions(sim, 25)  # long enough to cross an autoreset
    for action in script[:5]:
        sim.step(action)
    saved = sim.state()
    first = [sim.step(action) for action in script[5:]]
    other = make_sim(3)
    other.restore(saved)
    for expected, action in zip(first, script[5:], strict=True):
        step = other.step(action)
        assert_same(step.obs, expected.obs)
        assert_same(step.final_obs, expected.final_obs)
        np.testing.assert_array_equal(step.reward, expected.reward)
        np.testing.assert_array_equal(step.info["episode_return"], expected.info["episode_return"])
    with pytest.raises(ValueError, match="expected"):
        make_sim(2).restore(saved)


def test_returned_arrays_are_not_views_of_the_simulator(make_sim: Callable[..., VecSim]) -> None:
    sim = make_sim(2)
    sim.reset(8)
    step = sim.step(random_action(sim, np.random.default_rng(0)))
    copies = {name: array.copy() for name, array in step.obs.items()}
    state = sim.state() if sim.spec.restorable else {}
    frozen = {name: array.copy() for name, array in state.items()}
    sim.step(random_action(sim, np.random.default_rng(1)))
    assert_same(step.obs, copies)
    for name, array in state.items():
        np.testing.assert_array_equal(array, frozen[name])


@pytest.mark.parametrize("wrong", ["shape", "dtype", "nan"])
def test_a_wrong_action_is_refused_and_nothing_moves(make_sim: Callable[..., VecSim], wrong: str) -> None:
    sim, untouched = make_sim(2), make_sim(2)
    sim.reset(9)
    untouched.reset(9)
    before = sim.state() if sim.spec.restorable else {}
    action = random_action(sim, np.random.default_rng(0))
    bad: np.ndarray = {"shape": action[:, :-1], "dtype": action.astype(np.int64), "nan": action * np.nan}[wrong]
    with pytest.raises(ValueError, match="action"):
        sim.step(bad)
    for name, array in before.items():
        np.testing.assert_array_equal(sim.state()[name], array)
    assert_same(sim.step(action).obs, untouched.step(action).obs)
