"""What every VecSim must do. Add a simulator to ``SIMS`` and it is held to the same contract.

Engines of other environments add theirs in tests/engines/<engine>/factories.py, where their package is installed. No
test keeps two simulators open at a time, because some engines can't. Where a simulator declares that it can't do
something (maskable, independent, restorable), what it promises instead is tested.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from sims.base import Step, VecSim
from sims.gymnasium_vec import GymnasiumVec
from sims.mujoco_vec import MujocoVec
from sims.multi_task import MultiTaskVec

RANDOMIZED = {
    "object_mass": [0.5, 2.0],
    "actuator_kp": [0.8, 1.2],
    "latency_steps": [0, 2],
    "observation_noise": [0.0, 0.01],
}


def native(task: str, **settings: Any) -> Callable[..., VecSim]:
    return lambda num_envs, **kw: MujocoVec(task, num_envs, max_episode_steps=12, **settings, **kw)


SIMS: dict[str, Callable[..., VecSim]] = {
    "mujoco-reach": native("reach"),
    "mujoco-push": native("push"),
    "mujoco-lift": native("lift"),
    "mujoco-lift-joints": native("lift", action_mode="joint_delta"),
    "mujoco-lift-ur5e": native("lift", arm="ur5e"),
    "mujoco-lift-so101": native("lift", arm="so101"),
    "mujoco-lift-pixels": native("lift", cameras=("front", "wrist"), image_size=32, render_workers=0),
    "mujoco-lift-randomized": native("lift", randomize=RANDOMIZED),
    "mujoco-pick-place": native("pick_place"),
    "mujoco-peg-insertion": native("peg_insertion"),
    "mujoco-door": native("door"),
    "mujoco-two-arms": native("two_arm_transport"),
    "mujoco-multi-task": lambda num_envs, **kw: MultiTaskVec(
        ("reach", "lift", "drawer"), num_envs, max_episode_steps=12, **kw
    ),
    "gymnasium-half-cheetah": lambda num_envs, **kw: GymnasiumVec(
        "HalfCheetah-v5", num_envs, max_episode_steps=12, **kw
    ),
    "gymnasium-ant": lambda num_envs, **kw: GymnasiumVec("Ant-v5", num_envs, max_episode_steps=12, **kw),
    "gymnasium-pendulum": lambda num_envs, **kw: GymnasiumVec("Pendulum-v1", num_envs, max_episode_steps=12, **kw),
}

for engine in ("robosuite", "isaaclab"):
    if importlib.util.find_spec(engine) and importlib.util.find_spec(f"tests.engines.{engine}"):
        SIMS.update(importlib.import_module(f"tests.engines.{engine}.factories").SIMS)


@pytest.fixture(params=sorted(SIMS))
def make_sim(request: pytest.FixtureRequest) -> Iterator[Callable[..., VecSim]]:
    """make(num_envs, **settings); a simulator is closed before the next one opens."""
    opened: list[VecSim] = []

    def make(num_envs: int, **kwargs: object) -> VecSim:
        for sim in opened:
            sim.close()
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


def assert_same_step(left: Step, right: Step, rows: slice = slice(None)) -> None:
    assert_same(left.obs, right.obs, rows)
    assert_same(left.final_obs, right.final_obs, rows)
    for name in ("reward", "terminated", "truncated"):
        np.testing.assert_array_equal(getattr(left, name)[rows], getattr(right, name)[rows], err_msg=name)
    for name in ("success", "episode_return", "episode_length"):
        np.testing.assert_array_equal(left.info[name][rows], right.info[name][rows], err_msg=name)


def entry_that_differs(sim: VecSim) -> str:
    """The entry whose first observation no two episodes share."""
    return "environment_state" if "environment_state" in sim.spec.observation else "state"


def run(sim: VecSim, seed: int | np.ndarray, count: int) -> tuple[dict[str, np.ndarray], list[Step]]:
    """First observation and steps of one run."""
    first = sim.reset(seed)
    return first, [sim.step(action) for action in actions(sim, count)]


def test_spec_describes_what_comes_back(make_sim: Callable[..., VecSim]) -> None:
    sim = make_sim(3)
    obs = sim.reset(0)
    assert set(obs) == set(sim.spec.observation)
    for name, feature in sim.spec.observation.items():
        assert obs[name].shape == (3, *feature.shape)
        assert obs[name].dtype == np.dtype(feature.dtype)
        lengths = {len(feature.names), len(feature.units), len(feature.low), len(feature.high)}
        assert feature.is_image == name.startswith("image_")
        assert lengths == {3 if feature.is_image else feature.shape[0]}
        assert feature.dtype == ("uint8" if feature.is_image else "float32")
    step = sim.step(random_action(sim, np.random.default_rng(0)))
    assert step.reward.shape == (3,) and step.reward.dtype == np.float32
    for flags in (step.terminated, step.truncated, step.info["success"], step.info["diverged"], sim.success):
        assert flags.shape == (3,) and flags.dtype == np.bool_
    for found in (step.obs, step.final_obs):
        assert set(found) == set(obs)
        assert all(found[name].dtype == array.dtype and found[name].shape == array.shape for name, array in obs.items())


def test_observe_repeats_what_reset_and_step_returned(make_sim: Callable[..., VecSim]) -> None:
    sim = make_sim(2)
    assert_same(sim.reset(0), sim.observe())
    for action in actions(sim, sim.spec.max_episode_steps + 1):  # across an autoreset
        assert_same(sim.step(action).obs, sim.observe())
    seen = sim.observe()
    for array in seen.values():
        array[:] = 0
    assert any(array.any() for array in sim.observe().values()), "observe() returned the simulator's own arrays"


def test_same_seed_same_trajectory_whatever_the_number_of_environments(make_sim: Callable[..., VecSim]) -> None:
    """Where environments aren't independent: the same E is the promise."""
    sim = make_sim(2)
    first, steps = run(sim, 7, 20)
    other = make_sim(5 if sim.spec.independent else 2)
    again, more = run(other, 7, 20)
    rows = slice(0, 2)
    assert_same(first, {name: array[rows] for name, array in again.items()})
    for left, right in zip(steps, more, strict=True):
        assert_same_step(left, _rows(right, rows))


def _rows(step: Step, rows: slice) -> Step:
    def cut(tree: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: array[rows] for name, array in tree.items() if isinstance(array, np.ndarray)}

    return Step(
        cut(step.obs),
        step.reward[rows],
        step.terminated[rows],
        step.truncated[rows],
        cut(step.final_obs),
        cut(step.info),
    )


def test_a_run_repeats_in_the_same_simulator(make_sim: Callable[..., VecSim]) -> None:
    sim = make_sim(2)
    first, steps = run(sim, 3, 15)
    again, more = run(sim, 3, 15)
    assert_same(first, again)
    for left, right in zip(steps, more, strict=True):
        assert_same_step(left, right)


def test_seeds_decide_episodes_and_differ_between_environments(make_sim: Callable[..., VecSim]) -> None:
    sim = make_sim(3)
    start = entry_that_differs(sim)
    first = sim.reset(1)[start].copy()
    assert not np.array_equal(first, sim.reset(2)[start])
    np.testing.assert_array_equal(first, sim.reset(1)[start])
    assert len(np.unique(first[:, 0])) == 3
    one = sim.reset(np.array([11, 12, 13]))[start]
    two = sim.reset(np.array([13, 11, 12]))[start]
    if sim.spec.independent:  # an episode seed means the same episode in any slot
        np.testing.assert_array_equal(one[[2, 0, 1]], two)
    else:
        assert not np.array_equal(one, two)
        np.testing.assert_array_equal(one, sim.reset(np.array([11, 12, 13]))[start])


def test_truncation_gives_the_true_final_observation(make_sim: Callable[..., VecSim]) -> None:
    sim = make_sim(2)
    sim.reset(3)
    limit = sim.spec.max_episode_steps
    total = np.zeros(2)
    numbers = [name for name, feature in sim.spec.observation.items() if not feature.is_image]
    for index, action in enumerate(actions(sim, limit)):
        step = sim.step(action)
        total += step.reward
        done = step.terminated | step.truncated
        for name in numbers:
            same = (step.obs[name] == step.final_obs[name]).all(axis=1)
            np.testing.assert_array_equal(same, ~done, err_msg=f"{name} at step {index}")
    assert done.all()
    assert (step.info["episode_length"] == limit).all()
    np.testing.assert_allclose(step.info["episode_return"], total, rtol=1e-5)


def test_masked_environments_stand_still_or_idle(make_sim: Callable[..., VecSim]) -> None:
    sim = make_sim(3)
    before = sim.reset(4)
    mask = np.array([True, False, True])
    action = random_action(sim, np.random.default_rng(1))
    step = sim.step(action, mask)
    if sim.spec.maskable:
        for name in before:
            np.testing.assert_array_equal(step.obs[name][1], before[name][1])
    assert not np.array_equal(step.obs["state"][0], before["state"][0])
    assert step.info["episode_length"].tolist() == [1, 0, 1]
    assert_same(step.obs, sim.observe())
    for _ in range(sim.spec.max_episode_steps + 2):  # however long it waits, nothing is said about it
        assert not step.truncated[1] and not step.terminated[1] and step.reward[1] == 0
        assert not step.info["success"][1] and not step.info["diverged"][1]
        step = sim.step(action, mask)
    assert_same(step.obs, sim.observe())


def test_an_empty_mask_ends_nothing(make_sim: Callable[..., VecSim]) -> None:
    sim = make_sim(2)
    before = sim.reset(4)
    step = sim.step(random_action(sim, np.random.default_rng(1)), np.zeros(2, dtype=bool))
    if sim.spec.maskable:
        assert_same(step.obs, before)
    assert not (step.terminated | step.truncated).any() and not step.reward.any()
    assert step.info["episode_length"].tolist() == [0, 0]


def test_partial_reset_leaves_the_others_alone(make_sim: Callable[..., VecSim]) -> None:
    sim = make_sim(2)
    sim.reset(5)
    before = sim.step(random_action(sim, np.random.default_rng(1))).obs
    after = sim.reset(mask=np.array([False, True]))
    for name in before:
        np.testing.assert_array_equal(after[name][0], before[name][0])
    start = entry_that_differs(sim)
    assert not np.array_equal(after[start][1], before[start][1])
    step = sim.step(random_action(sim, np.random.default_rng(2)))
    assert step.info["episode_length"].tolist() == [2, 1]


def test_restore_repeats_the_future_bit_for_bit(make_sim: Callable[..., VecSim]) -> None:
    sim = make_sim(3)
    if not sim.spec.restorable:
        with pytest.raises(RuntimeError, match="restorable"):
            sim.state()
        return
    sim.reset(6)
    script = actions(sim, 25)  # long enough to cross an autoreset
    for action in script[:5]:
        sim.step(action)
    saved = sim.state()
    first = [sim.step(action) for action in script[5:]]
    other = make_sim(3)
    other.restore(saved)
    for expected, action in zip(first, script[5:], strict=True):
        assert_same_step(other.step(action), expected)
    with pytest.raises(ValueError, match="expected"):
        make_sim(2).restore(saved)


def test_returned_arrays_are_not_views_of_the_simulator(make_sim: Callable[..., VecSim]) -> None:
    sim = make_sim(2)
    sim.reset(8)
    step = sim.step(random_action(sim, np.random.default_rng(0)))
    kept = {"reward": step.reward, "terminated": step.terminated, "truncated": step.truncated, **step.obs}
    kept |= {f"final_{name}": array for name, array in step.final_obs.items()}
    kept |= {name: array for name, array in step.info.items() if isinstance(array, np.ndarray)}
    kept |= {f"state_{name}": array for name, array in (sim.state() if sim.spec.restorable else {}).items()}
    copies = {name: array.copy() for name, array in kept.items()}
    for action in actions(sim, sim.spec.max_episode_steps):
        sim.step(action)
    for name, array in kept.items():
        np.testing.assert_array_equal(array, copies[name], err_msg=name)


@pytest.mark.parametrize("wrong", ["shape", "dtype", "nan"])
def test_a_wrong_action_is_refused_and_nothing_moves(make_sim: Callable[..., VecSim], wrong: str) -> None:
    sim = make_sim(2)
    before = sim.reset(9)
    action = random_action(sim, np.random.default_rng(0))
    expected = sim.step(action)
    sim = make_sim(2)
    sim.reset(9)
    state = sim.state() if sim.spec.restorable else {}
    bad: np.ndarray = {"shape": action[:, :-1], "dtype": action.astype(np.int64), "nan": action * np.nan}[wrong]
    with pytest.raises(ValueError, match="action"):
        sim.step(bad)
    assert_same(sim.observe(), before)
    for name, array in state.items():
        np.testing.assert_array_equal(sim.state()[name], array)
    assert_same_step(sim.step(action), expected)


def test_closing_twice_is_fine(make_sim: Callable[..., VecSim]) -> None:
    sim = make_sim(2)
    sim.close()
    sim.close()
