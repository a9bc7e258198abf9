"""The native simulator with parameters that vary: what it does to physics, commands, observations and pictures."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from sims.mujoco_vec import MujocoVec

PHYSICS = {
    "object_mass": [0.5, 2.0], "object_friction": [0.5, 1.5], "pad_friction": [0.5, 1.5], "actuator_kp": [0.8, 1.2],
    "actuator_kv": [0.8, 1.2], "joint_damping": [0.5, 2.0], "latency_steps": [0, 3], "observation_noise": [0.0, 0.01],
}  # fmt: skip


def hold(sim: MujocoVec) -> np.ndarray:
    action = np.zeros((sim.num_envs, 7), np.float32)
    action[:, -1] = 0.08
    return action


def script(sim: MujocoVec, count: int) -> list[np.ndarray]:
    feature = sim.spec.action
    rngs = [np.random.default_rng((1, env)) for env in range(sim.num_envs)]
    return [np.stack([rng.uniform(feature.low, feature.high) for rng in rngs]).astype(np.float32) for _ in range(count)]


def randomized(num_envs: int, **kw) -> MujocoVec:
    return MujocoVec("lift", num_envs, **({"randomize": PHYSICS, "max_episode_steps": 8, "num_threads": 1} | kw))


def test_settings_are_told_with_the_episode_that_was_stepped() -> None:
    sim = randomized(3)
    before = sim.step(hold(sim)).info["parameters"]
    assert set(before) == set(PHYSICS)
    for name, (low, high) in PHYSICS.items():
        assert before[name].shape == (3,) and ((before[name] >= low) & (before[name] <= high)).all()
    for _ in range(6):
        sim.step(hold(sim))
    last, first = sim.step(hold(sim)), sim.step(hold(sim))
    assert last.truncated.all()
    assert_array_equal(last.info["parameters"]["object_mass"], before["object_mass"])
    assert not np.isin(first.info["parameters"]["object_mass"], before["object_mass"]).any()
    assert "parameters" not in MujocoVec("reach", 1).step(hold(MujocoVec("reach", 1))).info


def test_starts_are_those_of_the_plain_simulator() -> None:
    plain, other = MujocoVec("lift", 3), randomized(3, randomize={"object_mass": [0.5, 2.0]})
    for name, array in plain.reset(4).items():
        assert_array_equal(other.reset(4)[name], array)


def test_ranges_without_width_at_one_change_nothing() -> None:
    same = {"object_mass": [1, 1], "actuator_kp": [1, 1], "pad_friction": [1, 1], "joint_damping": [1, 1],
            "latency_steps": [0, 0], "observation_noise": [0.0, 0.0]}  # fmt: skip
    plain, other = randomized(2, randomize=None), randomized(2, randomize=same)
    for action in script(plain, 12):
        left, right = plain.step(action), other.step(action)
        for name in left.obs:
            assert_array_equal(left.obs[name], right.obs[name])


@pytest.mark.parametrize("name", ["object_mass", "pad_friction", "actuator_kp", "actuator_kv", "joint_damping"])
def test_every_parameter_has_an_effect_on_a_grasp(name: str) -> None:
    def lifted(value: float) -> np.ndarray:
        sim = MujocoVec("lift", 1, randomize={name: [value, value]}, num_threads=1, terminate_on_success=False)
        state = sim.state()
        sim.restore(state)
        qpos = sim.qpos.copy()
        for k in range(25):
            cube = sim.qpos[:, sim.layout.object["cube"] :][:, :3]
            action = hold(sim)
            action[:, :3] = np.clip(cube - sim.view().arms[0].tcp, -0.04, 0.04) if k < 14 else (0, 0, 0.03)
            action[:, -1] = 0.08 if k < 12 else 0.0
            sim.step(action)
        return np.abs(sim.qpos - qpos)

    assert not np.array_equal(lifted(0.6), lifted(1.6))


def test_latency_shifts_motion_by_whole_steps() -> None:
    quick = MujocoVec("reach", 1, randomize={"latency_steps": [0, 0]}, terminate_on_success=False)
    late = MujocoVec("reach", 1, randomize={"latency_steps": [2, 2]}, terminate_on_success=False)
    still = hold(quick)
    seen = []
    for _ in range(2):
        late.step(still)
        quick.step(still)
    for action in script(quick, 5):
        late_obs = late.step(action).obs["state"]
        seen.append((quick.step(action).obs["state"], late_obs))
    tool = np.array([[left[0, :3], right[0, :3]] for left, right in seen])
    assert np.abs(tool[0, 0] - tool[0, 1]).max() > 1e-3
    assert_allclose(tool[2:, 1], tool[:-2, 0], atol=5e-4)  # the arm also settles a little meanwhile


@pytest.mark.parametrize("mode", ["joint_position", "joint_delta", "ee_delta"])
def test_late_commands_first_hold_the_start(mode: str) -> None:
    sim = MujocoVec("reach", 1, action_mode=mode, randomize={"latency_steps": [3, 3]}, terminate_on_success=False)
    start = sim.reference.copy()
    action = script(sim, 1)[0]
    for _ in range(3):
        sim.step(action)
        assert_allclose(sim.reference, start, atol=1e-6)
    sim.step(action)
    assert np.abs(sim.reference - start).max() > 1e-4


def test_noise_is_seen_but_not_lived() -> None:
    noise = {"observation_noise": {"environment_state": [0.01, 0.01]}}
    plain, noisy = randomized(40, randomize=None), randomized(40, randomize=noise)
    for action in script(plain, 3):
        left, right = plain.step(action), noisy.step(action)
    assert_array_equal(left.obs["state"], right.obs["state"])
    error = right.obs["environment_state"] - left.obs["environment_state"]
    assert error.std() == pytest.approx(0.01, rel=0.1)
    assert_array_equal(noisy.observe()["environment_state"], right.obs["environment_state"])


def test_restored_state_goes_on_exactly_with_a_learning_sampler() -> None:
    sampler = {"name": "pdts", "batch_size": 3, "updates": 2}
    sim, other = randomized(2, sampler=sampler), randomized(2, sampler=sampler, seed=5)
    assert not sim.spec.independent and randomized(1).spec.independent
    actions = script(sim, 40)
    for action in actions[:13]:
        sim.step(action)
    other.restore(sim.state())
    for action in actions[13:]:
        left, right = sim.step(action), other.step(action)
        for name in left.obs:
            assert_array_equal(left.obs[name], right.obs[name])
        for name, array in left.info["parameters"].items():
            assert_array_equal(array, right.info["parameters"][name])
    assert sim._random is not None and sim._random.episodes.sampler.state()["iteration"] >= 2
    with pytest.raises(ValueError, match="randomization"):
        randomized(2).restore(randomized(2, randomize={"object_mass": [1, 2]}).state())


def test_divergence_ends_one_episode_and_reaches_the_sampler() -> None:
    sim = randomized(3, sampler={"name": "pdts", "batch_size": 1, "updates": 1})
    state = sim.state()
    state["physics"][1, 1 + sim.model.nq] = np.nan
    sim.restore(state)
    step = sim.step(hold(sim))
    assert step.info["diverged"].tolist() == [False, True, False] and sim.diverged_count == 1
    assert all(np.isfinite(array).all() for array in (*step.obs.values(), *step.final_obs.values()))
    assert sim._random is not None and sim._random.episodes.sampler.state()["iteration"] == 1


def test_pictures_show_each_environments_looks() -> None:
    looks = {"camera_position": [-0.1, 0.1], "table_color": [-0.3, 0.3], "light_intensity": [0.2, 1.5]}
    sim = MujocoVec("reach", 2, randomize=looks, num_threads=1)
    frames = [sim.render(env, width=64, height=48) for env in (0, 1, 0)]
    assert_array_equal(frames[0], frames[2])
    plain = MujocoVec("reach", 2, num_threads=1)
    assert np.abs(frames[0].astype(int) - plain.render(0, width=64, height=48)).mean() > 2
    assert_array_equal(sim.model.cam_pos, plain.model.cam_pos)
    sim.close()
    plain.close()


def test_wrong_settings_are_named() -> None:
    with pytest.raises(ValueError, match="did you mean 'object_mass'"):
        MujocoVec("lift", 1, randomize={"objectmass": [1, 2]})
    with pytest.raises(ValueError, match="no free body"):
        MujocoVec("reach", 1, randomize={"object_mass": [1, 2]})
    with pytest.raises(ValueError, match="unknown sampler"):
        MujocoVec("lift", 1, randomize={"object_mass": [1, 2]}, sampler="best")
