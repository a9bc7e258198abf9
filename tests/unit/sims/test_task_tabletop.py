"""Tasks in which objects are carried or pushed to a place: experts, success, rest, and independence of E."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from sims.demonstrations import collect_demonstrations
from sims.experts import ExpertConfig, make_expert
from sims.experts.push_t import CONTACTS, plan
from sims.mujoco_vec import MujocoVec
from sims.tasks import make_task
from sims.tasks.base import ArmView, SceneView, pose

NAMES = ("pick_place", "peg_insertion", "stack", "push_t")


def scene(
    objects: dict[str, list[float]],
    fixtures: dict[str, list[float]] | None = None,
    *,
    tcp: tuple[float, float, float] = (0.3, 0.0, 0.4),
    opening: float = 0.08,
) -> SceneView:
    """One environment made by hand: positions of objects and fixtures with an optional yaw as the fourth number."""
    arm = ArmView(np.zeros((1, 7)), np.array([tcp]), np.array([[1.0, 0, 0, 0, -1, 0]]), np.array([opening]))

    def poses(places: dict[str, list[float]]) -> dict[str, NDArray[np.float64]]:
        return {name: pose(p[:3], p[3] if len(p) > 3 else 0.0)[None] for name, p in places.items()}

    return SceneView((arm,), poses(objects), poses(fixtures or {}), {})


@pytest.mark.parametrize("name", NAMES)
def test_the_clean_expert_succeeds_and_starts_are_no_success(name: str) -> None:
    sim = MujocoVec(name, 32)
    assert not sim.success.any()
    demos = collect_demonstrations(sim, make_expert(name, 32), 32, seed=3)
    assert demos.attempted_successes >= 0.9 * demos.attempted
    assert sim.diverged_count == 0


@pytest.mark.parametrize("name", NAMES)
def test_the_novice_mostly_succeeds(name: str) -> None:
    sim = MujocoVec(name, 16)
    novice = make_expert(name, 16, ExpertConfig.imperfect(1.0))
    demos = collect_demonstrations(sim, novice, 16, seed=4, keep_failures=True)
    assert demos.success.mean() >= 0.5


@pytest.mark.parametrize("name", NAMES)
def test_untouched_objects_rest(name: str) -> None:
    sim = MujocoVec(name, 16, terminate_on_success=False)
    before = {key: value.copy() for key, value in sim.view().objects.items()}
    hold = np.zeros((16, *sim.spec.action.shape), dtype=np.float32)
    hold[:, -1] = 0.08
    for _ in range(40):
        sim.step(hold)
    for key, value in sim.view().objects.items():
        start = int(sim.model.joint(key).dofadr[0])
        assert np.abs(sim.qvel[:, start : start + 6]).max() < 1e-2
        np.testing.assert_allclose(value[:, :2], before[key][:, :2], atol=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_an_episode_is_the_same_whatever_the_number_of_environments(name: str) -> None:
    few, many = MujocoVec(name, 2, seed=5, num_threads=1), MujocoVec(name, 5, seed=5, num_threads=2)
    expert = make_expert(name, 5)
    for _ in range(40):
        action = np.clip(expert.act(many.observe()), many.spec.action.low, many.spec.action.high).astype(np.float32)
        one, other = few.step(action[:2]), many.step(action)
        for key, value in one.obs.items():
            np.testing.assert_array_equal(value, other.obs[key][:2])
        np.testing.assert_array_equal(one.reward, other.reward[:2])


def test_a_can_counts_when_let_go_inside_the_bin() -> None:
    task, place = make_task("pick_place"), {"bin": [0.5, 0.2]}
    good = scene({"can": [0.52, 0.15, 0.045]}, place)
    assert task.success(good)[0] and task.reward(good)[0] == 1
    lying = scene({"can": [0.5, 0.2, 0.025]}, place)
    assert task.success(lying)[0]
    for can, tcp in (
        ([0.5, 0.115, 0.045], (0.3, 0.0, 0.4)),  # beside the wall
        ([0.5, 0.2, 0.07], (0.3, 0.0, 0.4)),  # above the rim
        ([0.5, 0.2, 0.045], (0.5, 0.2, 0.07)),  # still held
    ):
        miss = scene({"can": can}, place, tcp=tcp)
        assert not task.success(miss)[0] and task.reward(miss)[0] < 1


def test_a_nut_counts_when_round_the_peg_and_down() -> None:
    task, peg = make_task("peg_insertion"), {"peg": [0.5, 0.15]}
    for nut in ([0.503, 0.148, 0.011, 0.05], [0.5, 0.15, 0.02, np.pi / 2]):
        good = scene({"nut": nut}, peg)
        assert task.success(good)[0] and task.reward(good)[0] == 1
    for nut in ([0.5, 0.15, 0.071], [0.54, 0.15, 0.011], [0.5, 0.15, 0.045]):  # on top, beside, only half way down
        miss = scene({"nut": nut}, peg)
        assert not task.success(miss)[0] and task.reward(miss)[0] < 1


def test_only_the_peg_in_the_hole_is_as_low_as_that() -> None:
    """A nut that lies on the peg's top, pressed down by nothing, stays above the height that counts."""
    sim = MujocoVec("peg_insertion", 4, terminate_on_success=False)
    state = sim.state()
    start = 1 + int(sim.model.joint("nut").qposadr[0])
    offsets = np.array([[0.0, 0.0], [0.003, -0.003], [0.008, 0.0], [0.012, 0.012]])
    state["physics"][:, start : start + 2] = state["fixtures"][:, 0, :2] + offsets
    state["physics"][:, start + 2] = 0.075
    state["physics"][:, start + 3 : start + 7] = [1.0, 0.0, 0.0, 0.0]
    sim.restore(state)
    hold = np.zeros((4, *sim.spec.action.shape), dtype=np.float32)
    for _ in range(20):
        sim.step(hold)
    assert sim.success[:2].tolist() == [True, True]  # with play it falls round the peg
    assert not sim.success[3]
    speed = sim.qvel[:2, int(sim.model.joint("nut").dofadr[0]) :][:, :6]
    assert np.abs(speed).max() < 1e-2


def test_a_red_cube_counts_when_it_lies_on_the_green_one_and_is_let_go() -> None:
    task, green = make_task("stack"), [0.5, 0.1, 0.025, 0.3]
    on_top = {"red_cube": [0.51, 0.095, 0.07, 1.0], "green_cube": green}
    held = (0.51, 0.095, 0.07)
    for good in (scene(on_top), scene(on_top, tcp=held, opening=0.06), scene(on_top, opening=0.0)):
        assert task.success(good)[0] and task.reward(good)[0] == 1
    tilted = scene(on_top)
    tilted.objects["red_cube"][0, 3:] = [np.cos(0.2), np.sin(0.2), 0.0, 0.0]
    places = ([0.53, 0.1, 0.07], [0.5, 0.1, 0.08], [0.5, 0.16, 0.02])  # half off, in the air, beside
    misses = [scene({"red_cube": red, "green_cube": green}) for red in places]
    for miss in (*misses, scene(on_top, tcp=held, opening=0.04), tilted):
        assert not task.success(miss)[0] and task.reward(miss)[0] < 1


def test_a_cube_lies_flat_on_any_face() -> None:
    view = scene({"red_cube": [0.5, 0.1, 0.07], "green_cube": [0.5, 0.1, 0.025]})
    view.objects["red_cube"][0, 3:] = [0.5**0.5, 0.0, 0.5**0.5, 0.0]
    assert make_task("stack").success(view)[0]


def test_a_t_counts_within_two_centimetres_and_a_seventh_of_a_radian() -> None:
    task, goal = make_task("push_t"), {"goal": [0.5, 0.1, 0.0, 3.1]}
    for block in ([0.5, 0.1, 0.015, 3.1], [0.512, 0.088, 0.015, 3.0], [0.5, 0.1, 0.015, 3.1 + 0.14 - 2 * np.pi]):
        good = scene({"block": block}, goal)
        assert task.success(good)[0] and task.reward(good)[0] == 1
    for block in ([0.521, 0.1, 0.015, 3.1], [0.5, 0.1, 0.015, 2.9], [0.5, 0.1, 0.04, 3.1], [0.5, 0.1, 0.015, 0.0]):
        miss = scene({"block": block}, goal)
        assert not task.success(miss)[0] and task.reward(miss)[0] < 1


def test_pushes_are_planned_where_they_help() -> None:
    # Straight down the stem's axis by 5 cm: the middle of the bar's top face, pushed for those 5 cm.
    planned = plan(np.array([[0.0, -0.05]]), np.zeros(1))
    best = int(planned.gain[0].argmax())
    assert CONTACTS[best].tolist() == [0.0, 0.0407, 0.0, -1.0]
    np.testing.assert_allclose([planned.length[0, best], planned.gain[0, best]], [0.05, 0.0025])
    # A turn to the left on the spot: some contact whose torque is positive, and never one that turns it to the right.
    turning = plan(np.zeros((1, 2)), np.array([0.5]))
    torque = CONTACTS[:, 0] * CONTACTS[:, 3] - CONTACTS[:, 1] * CONTACTS[:, 2]
    assert torque[turning.gain[0].argmax()] > 0
    assert (turning.gain[0, torque <= 0] == 0).all()
