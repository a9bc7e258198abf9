"""What the gymnasium simulator promises beyond the contract."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict

from robopo.cli.configs import build, load_config
from robopo.cli.schema import TRAIN
from sims.gymnasium_vec import GymnasiumVec, episode_seed
from sims.seeding import environment_keys


class Counter(gymnasium.Env[Any, Any]):
    """Counts its steps; ends, succeeds, breaks and shows what it is told to."""

    action_space = Box(-2.0, 0.5, (2,), np.float64)
    metadata: ClassVar[dict[str, Any]] = {"render_fps": 25, "render_modes": []}

    def __init__(self, *, ends_at: int = 99, nan_at: int = 99, tells: str = "", shows: str = "box") -> None:
        self.ends_at, self.nan_at, self.tells, self.shows = ends_at, nan_at, tells, shows
        box = Box(-np.inf, np.inf, (2, 2), np.float64)
        self.observation_space: gymnasium.Space[Any] = {
            "box": box,
            "dict": Dict({"observation": box, "desired_goal": Box(-1.0, 1.0, (3,))}),
            "image": Dict({"observation": box, "pixels": Box(0, 255, (6, 8, 3), np.uint8)}),
            "planes": Dict({"observation": box, "pixels": Box(0, 255, (3, 8, 8), np.uint8)}),
            "tuple": gymnasium.spaces.Tuple((box, box)),
            "discrete": gymnasium.spaces.Discrete(4),
        }[shows]

    def _see(self) -> Any:
        seen = np.array([[self.count, self.start], [0.0, 0.0]])
        if self.count == self.nan_at:
            seen[1, 1] = np.nan
        if self.shows == "image":
            return {"observation": seen, "pixels": np.full((6, 8, 3), self.count, np.uint8)}
        return seen if self.shows == "box" else {"observation": seen, "desired_goal": np.arange(3, dtype=np.float32)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count, self.start, self.last_action = 0, self.np_random.random(), None
        return self._see(), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        self.last_action = action
        info = {self.tells: self.count == 2} if self.tells else {}
        return self._see(), float(action.sum()), self.count == self.ends_at, False, info


gymnasium.register("Counter-v0", entry_point=Counter, max_episode_steps=7)
gymnasium.register("Endless-v0", entry_point=Counter)


@pytest.fixture
def counter() -> Iterator[Any]:
    opened: list[GymnasiumVec] = []

    def make(num_envs: int = 2, *, max_episode_steps: int | None = None, **env_kwargs: Any) -> GymnasiumVec:
        sim = GymnasiumVec("Counter-v0", num_envs, max_episode_steps=max_episode_steps, env_kwargs=env_kwargs)
        opened.append(sim)
        return sim

    yield make
    for sim in opened:
        sim.close()
        sim.close()


def action(sim: GymnasiumVec, value: float = 0.25) -> np.ndarray:
    return np.full((sim.num_envs, *sim.spec.action.shape), value, np.float32)


@pytest.mark.parametrize(
    ("env_id", "obs_dim", "action_dim", "hz"),
    [("HalfCheetah-v5", 17, 6, 20.0), ("Hopper-v5", 11, 3, 125.0), ("Walker2d-v5", 17, 6, 125.0)],
)
def test_the_walkers_tell_their_sizes_names_and_rates(env_id: str, obs_dim: int, action_dim: int, hz: float) -> None:
    sim = GymnasiumVec(env_id, 1)
    assert sim.spec.observation["state"].shape == (obs_dim,)
    assert sim.spec.action.shape == (action_dim,)
    assert sim.spec.action.low == (-1.0,) * action_dim and sim.spec.action.high == (1.0,) * action_dim
    assert sim.spec.control_hz == hz and sim.spec.max_episode_steps == 1000
    assert (sim.spec.restorable, sim.spec.maskable, sim.spec.has_success) == (True, True, False)
    assert sim.spec.action_mode == "native" and sim.spec.cameras == ("track",)
    if env_id == "HalfCheetah-v5":
        assert sim.spec.action.names == ("bthigh", "bshin", "bfoot", "fthigh", "fshin", "ffoot")


def test_it_steps_as_gymnasium_does() -> None:
    """Same seed, same actions: the numbers of gymnasium.make, bit for bit, across an autoreset."""
    sim = GymnasiumVec("Hopper-v5", 2, seed=3)
    env = gymnasium.make("Hopper-v5")
    key = int(environment_keys(3, 2)[1])
    seen, _ = env.reset(seed=episode_seed(key, 0))
    rng, ended = np.random.default_rng(0), 0
    for _ in range(300):
        move = rng.uniform(-1, 1, (2, 3)).astype(np.float32)
        step = sim.step(move)
        seen, reward, terminated, truncated, _ = env.step(move[1])
        np.testing.assert_array_equal(step.final_obs["state"][1], seen.astype(np.float32))
        assert step.reward[1] == np.float32(reward)
        assert (step.terminated[1], step.truncated[1]) == (terminated, truncated)
        if terminated:
            ended += 1
            seen, _ = env.reset(seed=episode_seed(key, ended))
            np.testing.assert_array_equal(step.obs["state"][1], seen.astype(np.float32))
    assert ended >= 1


def test_actions_are_clipped_and_keep_the_environment_s_dtype(counter: Any) -> None:
    sim = counter(1)
    assert sim.step(action(sim, 9.0)).reward[0] == 1.0  # 2 x 0.5
    assert sim.step(action(sim, -9.0)).reward[0] == -4.0  # 2 x -2
    assert sim._envs.envs[0].unwrapped.last_action.dtype == np.float64


def test_the_end_of_an_episode_and_the_end_of_its_time_differ(counter: Any) -> None:
    sim = counter(1, ends_at=3)
    ended = [sim.step(action(sim)) for _ in range(3)][-1]
    assert (ended.terminated[0], ended.truncated[0]) == (True, False)
    assert (ended.final_obs["state"][0, 0], ended.obs["state"][0, 0]) == (3.0, 0.0)
    timed = counter(1)
    last = [timed.step(action(timed)) for _ in range(7)][-1]
    assert (last.terminated[0], last.truncated[0]) == (False, True)
    both = counter(1, ends_at=2, max_episode_steps=2)
    last = [both.step(action(both)) for _ in range(2)][-1]
    assert (last.terminated[0], last.truncated[0]) == (True, False)


@pytest.mark.parametrize("word", ["success", "is_success"])
def test_success_comes_from_info(counter: Any, word: str) -> None:
    sim = counter(1, tells=word)
    assert sim.spec.has_success
    told = [bool(sim.step(action(sim)).info["success"][0]) for _ in range(3)]
    assert told == [False, True, False]


def test_no_success_is_said_and_stays_false(counter: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        sim = counter(1)
    assert not sim.spec.has_success and "reports no success" in caplog.text
    silent = GymnasiumVec("Counter-v0", 1, has_success=False, env_kwargs={"tells": "success"})
    assert not any(silent.step(action(silent)).info["success"][0] for _ in range(3))


def test_a_non_finite_observation_ends_that_episode_alone(counter: Any) -> None:
    sim = counter(2, nan_at=2)
    sim.step(action(sim), np.array([True, False]))
    step = sim.step(action(sim))
    assert step.info["diverged"].tolist() == [True, False] and sim.diverged_count == 1
    assert step.terminated.tolist() == [True, False] and step.reward.tolist() == [0.0, 0.5]
    assert step.final_obs["state"][0, 0] == 1.0  # the last good one
    assert step.obs["state"][0, 0] == 0.0 and np.isfinite(step.obs["state"]).all()


def test_an_exploded_mujoco_state_is_a_divergence() -> None:
    """MuJoCo itself goes back to its initial state, which looks like an ordinary observation."""
    sim = GymnasiumVec("HalfCheetah-v5", 2)
    sim.step(action(sim, 0.0))
    sim._envs.envs[1].unwrapped.data.qvel[:] = 1e12
    step = sim.step(action(sim, 0.0))
    assert step.info["diverged"].tolist() == [False, True]
    assert np.isfinite(step.final_obs["state"]).all() and step.reward[1] == 0.0


def test_a_dictionary_of_boxes_becomes_named_entries(counter: Any) -> None:
    sim = counter(2, shows="dict")
    obs = sim.reset(0)
    assert {name: array.shape for name, array in obs.items()} == {"observation": (2, 4), "desired_goal": (2, 3)}
    assert obs["desired_goal"].dtype == np.float32 and obs["desired_goal"][1].tolist() == [0.0, 1.0, 2.0]
    assert sim.spec.observation["desired_goal"].names[2] == "desired_goal_2"
    assert sim.spec.control_hz == 25.0 and not sim.spec.restorable
    with pytest.raises(RuntimeError, match="can't save its state"):
        sim.state()


def test_a_picture_becomes_an_entry_of_its_own(counter: Any) -> None:
    sim = counter(2, shows="image")
    told = sim.spec.observation["image_pixels"]
    assert told.is_image and told.shape == (6, 8, 3) and told.dtype == "uint8"
    step = sim.step(action(sim), np.array([True, False]))
    assert step.obs["image_pixels"].shape == (2, 6, 8, 3) and step.obs["image_pixels"].dtype == np.uint8
    assert step.obs["image_pixels"][:, 0, 0, 0].tolist() == [1, 0]


def test_pictures_where_there_is_a_camera_or_an_own_renderer(counter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cheetah = GymnasiumVec("HalfCheetah-v5", 2)
    frame = cheetah.render(1, width=64, height=48)
    assert frame.shape == (48, 64, 3) and frame.dtype == np.uint8 and frame.std() > 5
    with pytest.raises(ValueError, match="known are track"):
        cheetah.render(0, camera="side")
    cheetah.close()
    pole = GymnasiumVec("InvertedPendulum-v5", 1)
    assert pole.spec.cameras == ()
    with pytest.raises(RuntimeError, match="no camera"):
        pole.render()
    drawn = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    monkeypatch.setattr(Counter, "render", lambda self: drawn)
    np.testing.assert_array_equal(counter(1).render(width=3, height=2), drawn[::2, ::2])
    monkeypatch.setattr(Counter, "render", lambda self: None)
    with pytest.raises(RuntimeError, match="draws no RGB pictures"):
        counter(1).render()


def test_worker_processes_change_nothing() -> None:
    """Three environments in two processes: the same numbers, masks and restored state as in this process."""
    here = GymnasiumVec("Ant-v5", 3, max_episode_steps=6, seed=1)
    there = GymnasiumVec("Ant-v5", 3, max_episode_steps=6, seed=1, vectorization="async", num_workers=2)
    try:
        rng, saved = np.random.default_rng(0), {}
        for index in range(8):
            move = rng.uniform(-1, 1, (3, 8)).astype(np.float32)
            mask = np.array([index % 2 == 0, True, index % 3 == 0])
            left, right = here.step(move, mask), there.step(move, mask)
            np.testing.assert_array_equal(left.obs["state"], right.obs["state"])
            np.testing.assert_array_equal(left.final_obs["state"], right.final_obs["state"])
            np.testing.assert_array_equal(left.reward, right.reward)
            if index == 3:
                saved = there.state()
                for name, array in here.state().items():
                    np.testing.assert_array_equal(array, saved[name], err_msg=name)
        here.restore(saved)
        there.restore(saved)
        left, right = here.step(move), there.step(move)
        np.testing.assert_array_equal(left.obs["state"], right.obs["state"])
        with pytest.raises(RuntimeError, match=r"a simulator process failed: .*camera"):
            there.render(0, camera="no such camera", width=64, height=64)
        there.step(move)  # and the pipes are still in step
    finally:
        there.close()
        there.close()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"env_id": "HalfCheeta-v5"}, "near: HalfCheetah"),
        ({"env_id": "HalfCheetah-v9"}, "near: HalfCheetah-v"),
        ({"env_id": "CartPole-v1"}, "Box of floats"),
        ({"env_id": "Endless-v0"}, "give max_episode_steps"),
        ({"env_id": "Counter-v0", "env_kwargs": {"shows": "planes"}}, r"uint8\[height, width, 3\]"),
        ({"env_id": "Counter-v0", "env_kwargs": {"shows": "tuple"}}, "only Box"),
        ({"env_id": "Counter-v0", "env_kwargs": {"shows": "discrete"}}, "only Box"),
        ({"env_id": "Counter-v0", "env_kwargs": {"colour": 1}}, "env_kwargs="),
        ({"env_id": "Counter-v0", "num_envs": 0}, "at least one environment"),
        ({"env_id": "Counter-v0", "max_episode_steps": 0}, "at least one step"),
        ({"env_id": "Counter-v0", "vectorization": "thread"}, "sync, async, vector"),
        ({"env_id": "Counter-v0", "vectorization": "vector"}, "no vector environment of its own"),
        ({"env_id": "Counter-v0", "step_timeout_s": 0.0}, "must be positive"),
        ({"env_id": ""}, "name an environment"),
        ({"env_id": "x", "maker": "no_such_module:make"}, "no_such_module"),
        ({"env_id": "x", "maker": "json:nothing"}, "module:function"),
        ({"env_id": "gymnasium:Hoper-v5"}, "near: Hopper"),
    ],
)
def test_what_can_t_be_built_is_refused_with_a_way_out(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        GymnasiumVec(**arguments)


def test_a_missing_package_is_named() -> None:
    pytest.importorskip("gymnasium")
    try:
        import Box2D  # noqa: F401
    except ImportError:
        with pytest.raises(ImportError, match=r"(?s)CarRacing-v3 needs .*box2d"):
            GymnasiumVec("CarRacing-v3", 1)
    else:
        pytest.skip("Box2D is installed")


@pytest.mark.parametrize("overrides", [["sim=half_cheetah"], ["sim=gymnasium", "sim.env_id=Pendulum-v1"]])
def test_its_configuration_builds_it(overrides: list[str]) -> None:
    node = load_config("train", overrides, TRAIN).sim
    sim = build(node, num_envs=1)
    assert sim.spec.engine == "gymnasium" and sim.spec.name in ("HalfCheetah-v5", "Pendulum-v1")
    assert not sim.spec.has_success
    sim.close()
