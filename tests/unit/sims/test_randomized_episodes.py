from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from sims.philox import counter_normals, philox4x32
from sims.randomize import ParameterSpace, RandomizeConfig
from sims.randomized_episodes import ActionDelay, ObservationNoise, RandomizedEpisodes, parameter_generator
from sims.seeding import environment_keys, episode_generator
from sims.task_samplers import Objective, UniformSampler, make_sampler

SPACE = ParameterSpace(RandomizeConfig(object_mass=(0.5, 1.5), latency_steps=(0, 2)), [], ["state"])


class Recorder:
    """Proposes 0, 1/8, 2/8, … and remembers what it is told."""

    def __init__(self, objective: Objective = Objective.RETURN) -> None:
        self.dim, self.batch_size, self.objective = 2, 4, objective
        self.proposed, self.heard = 0, list[tuple[np.ndarray, np.ndarray]]()

    def propose(self, rng: np.random.Generator, n: int) -> np.ndarray:
        self.proposed += n
        return np.repeat(np.arange(self.proposed - n, self.proposed)[:, None] % 8 / 8, 2, axis=1)

    def update(self, params: np.ndarray, returns: np.ndarray) -> None:
        self.heard.append((params, returns))

    def state(self) -> dict[str, np.ndarray]:
        return {"proposed": np.array(self.proposed)}

    def restore(self, state) -> None:
        self.proposed = int(state["proposed"])


def rows(*indices: int) -> np.ndarray:
    return np.array(indices, dtype=np.int64)


def test_philox_gives_the_published_words() -> None:
    """Known answers of Random123's kat_vectors."""
    counter = [[0] * 4, [0xFFFFFFFF] * 4, [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344]]
    key = [[0] * 2, [0xFFFFFFFF] * 2, [0xA4093822, 0x299F31D0]]
    words = philox4x32(np.array(counter, np.uint32), np.array(key, np.uint32))
    assert [" ".join(f"{word:08x}" for word in line) for line in words] == [
        "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
        "408f276d 41c83b0e a20bc7c6 6d5451fd",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ]


def test_normals_are_normal_and_a_function_of_their_place() -> None:
    keys, zeros = environment_keys(0, 2000), np.zeros(2000, np.int64)
    noise = counter_normals(keys, zeros, zeros, 13, 1)
    assert noise.shape == (2000, 13)
    assert abs(noise.mean()) < 0.02 and abs(noise.std() - 1) < 0.02
    assert np.abs(np.corrcoef(noise.T) - np.eye(13)).max() < 0.1
    assert_array_equal(counter_normals(keys[7:9], zeros[:2], zeros[:2], 13, 1), noise[7:9])
    for other in (
        counter_normals(keys, zeros + 1, zeros, 13, 1),
        counter_normals(keys, zeros, zeros + 1, 13, 1),
        counter_normals(keys, zeros, zeros, 13, 2),
    ):
        assert abs(np.corrcoef(noise.ravel(), other.ravel())[0, 1]) < 0.03


def test_uniform_settings_depend_on_the_episode_alone() -> None:
    def settings(num_envs: int) -> np.ndarray:
        episodes = RandomizedEpisodes(SPACE, num_envs, UniformSampler(2))
        episodes.begin(np.arange(num_envs), environment_keys(3, num_envs), np.zeros(num_envs, np.int64))
        return episodes.u.copy()

    few, many = settings(2), settings(5)
    assert_array_equal(few, many[:2])
    assert len(np.unique(many)) == 10
    key = int(environment_keys(3, 1)[0])
    assert_array_equal(few[0], parameter_generator(key, 0).random(2))
    assert not np.array_equal(few[0], episode_generator(key, 0).random(2))  # starts use other numbers
    assert not np.array_equal(few[0], parameter_generator(key, 1).random(2))


def test_parameters_are_physical_and_by_name() -> None:
    episodes = RandomizedEpisodes(SPACE, 3, UniformSampler(2))
    values = episodes.begin(rows(1), environment_keys(0, 3), np.zeros(3, np.int64))
    found = episodes.parameters
    assert set(found) == {"object_mass", "latency_steps"}
    assert found["object_mass"].tolist() == [1.0, values[0, 0], 1.0]  # the others sit in the middle until they begin
    assert found["latency_steps"].shape == (3,)
    found["object_mass"][:] = 9
    assert episodes.parameters["object_mass"][0] == 1.0


@pytest.mark.parametrize("objective", Objective)
def test_a_learning_sampler_fills_a_queue_and_hears_of_every_b_episodes(objective: Objective) -> None:
    sampler = Recorder(objective)
    episodes = RandomizedEpisodes(SPACE, 6, sampler)
    keys, number = environment_keys(0, 6), np.zeros(6, np.int64)
    episodes.begin(np.arange(6), keys, number)
    assert sampler.proposed == 8
    assert episodes.u[:, 0].tolist() == [0, 1 / 8, 2 / 8, 3 / 8, 4 / 8, 5 / 8]
    episodes.finished(rows(4, 1), np.array([10.0, 11.0]), np.array([True, False]))
    episodes.begin(rows(4, 1), keys, number)
    assert episodes.u[[4, 1], 0].tolist() == [6 / 8, 7 / 8] and sampler.heard == []
    episodes.finished(rows(0, 2, 3), np.array([12.0, 13.0, 14.0]), np.array([True, True, False]))
    (params, returns), *rest = sampler.heard
    assert rest == []
    assert params[:, 0].tolist() == [4 / 8, 1 / 8, 0, 2 / 8]  # settings of the episodes, not of who runs there now
    assert returns.tolist() == ([10, 11, 12, 13] if objective is Objective.RETURN else [1, 0, 1, 1])
    episodes.begin(rows(0), keys, number)
    assert sampler.proposed == 12


def test_restored_episodes_go_on_as_the_others() -> None:
    first = RandomizedEpisodes(SPACE, 3, Recorder())
    keys, number = environment_keys(0, 3), np.zeros(3, np.int64)
    first.begin(np.arange(3), keys, number)
    first.finished(rows(0), np.array([1.0]), np.array([True]))
    saved = first.state()
    other = RandomizedEpisodes(SPACE, 3, Recorder())
    other.restore(saved)
    for episodes in (first, other):
        episodes.begin(rows(0, 1, 2), keys, number)
        episodes.finished(rows(0, 1, 2), np.arange(3.0), np.zeros(3, bool))
    assert_array_equal(first.values, other.values)
    for left, right in zip(first.sampler.heard[0], other.sampler.heard[0], strict=True):
        assert_array_equal(left, right)
    assert {name: array.shape for name, array in saved.items()} == {
        name: array.shape for name, array in first.state().items()
    }


def test_commands_arrive_late_by_each_environments_delay() -> None:
    delay = ActionDelay(2, 2, 1)
    late = np.array([0, 2])
    delay.reset(rows(0, 1), np.array([-1.0]))
    acts = []
    for k in range(4):
        acts.append(delay.push(rows(0, 1), np.full((2, 1), float(k)), late)[:, 0].tolist())
        saved = delay.state()
    assert acts == [[0, -1], [1, -1], [2, 0], [3, 1]]
    delay.push(rows(0), np.array([[9.0]]), late[:1])  # the other one stands still
    assert delay.push(rows(1), np.array([[4.0]]), late[1:]).tolist() == [[2.0]]
    delay.restore(saved)
    assert delay.push(rows(1), np.array([[4.0]]), late[1:]).tolist() == [[2.0]]
    delay.reset(rows(1), np.array([[5.0]]))
    assert delay.push(rows(1), np.array([[6.0]]), late[1:]).tolist() == [[5.0]]


def test_noise_has_the_asked_for_size_and_spares_other_entries() -> None:
    space = ParameterSpace(RandomizeConfig(observation_noise={"state": (0.0, 0.1)}), [], ["state", "other"])
    noise = ObservationNoise(space, {"state": 3, "other": 2})
    assert noise and not ObservationNoise(SPACE, {"state": 3})
    count = 4000
    obs = {"state": np.ones((count, 3), np.float32), "other": np.ones((count, 2), np.float32)}
    keys, zeros = environment_keys(0, count), np.zeros(count, np.int64)
    std = np.where(np.arange(count) < 2000, 0.1, 0.02)[:, None]
    seen = noise.add(obs, std, keys, zeros, zeros)
    assert seen["other"] is obs["other"] and seen["state"].dtype == np.float32
    assert seen["state"][:2000].std() == pytest.approx(0.1, rel=0.05)
    assert seen["state"][2000:].std() == pytest.approx(0.02, rel=0.05)
    assert (obs["state"] == 1).all()
    assert_array_equal(noise.add(obs, std, keys, zeros, zeros)["state"], seen["state"])
    both = ObservationNoise(
        ParameterSpace(RandomizeConfig(observation_noise=(0.0, 0.1)), [], []), {"state": 3, "other": 3}
    )
    seen = both.add({"state": obs["state"], "other": obs["state"]}, std, keys, zeros, zeros)
    assert not np.array_equal(seen["state"], seen["other"])


def test_samplers_are_made_by_name() -> None:
    assert isinstance(make_sampler("uniform", 3), UniformSampler)
    assert make_sampler({"name": "pdts", "batch_size": 5}, 3).batch_size == 5
    with pytest.raises(ValueError, match="did you mean 'pdts'"):
        make_sampler("pdst", 3)
    with pytest.raises(ValueError, match="batch"):
        make_sampler({"name": "pdts", "batch": 5}, 3)
    with pytest.raises(ValueError, match="at least one"):
        make_sampler("uniform", 0)
    with pytest.raises(ValueError, match="proposes 2"):
        make_sampler(UniformSampler(2), 3)
