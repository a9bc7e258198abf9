"""Frames drawn in batches: right, in order, the same wherever they are drawn, and never a hang."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import mujoco
import numpy as np
import pytest

from sims.batch_render import BatchRenderer
from sims.mujoco_vec import MujocoVec
from sims.render import Renderer
from sims.render_overrides import VisualOverrides, turned
from sims.render_scene import FULL_PHYSICS, DrawStyle

SIZE = 48
SCENE = """
<mujoco>
  <worldbody>
    <light name="sun" pos="0 0 3" dir="0 0 -1" directional="true"/>
    <camera name="front" pos="1.2 0.1 0.8" xyaxes="-0.08 1 0 -0.55 -0.05 0.83" fovy="50"/>
    <camera name="above" pos="0 0 1.5" fovy="60"/>
    <geom name="floor" type="plane" size="2 2 0.1" rgba="0.4 0.5 0.4 1"/>
    <body name="cube" pos="0 0 0.05"><freejoint/><geom name="cube" type="box" size=".05 .05 .05" rgba="1 0 0 1"/></body>
    <body name="goal" mocap="true" pos="0 0.4 0.05">
      <geom name="goal" type="sphere" size="0.06" contype="0" conaffinity="0" rgba="0 0 1 1"/>
    </body>
  </worldbody>
</mujoco>
"""
CAMERAS = ("front", "above")


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(SCENE)


@pytest.fixture(scope="module")
def here(model: mujoco.MjModel) -> Iterator[BatchRenderer]:
    with BatchRenderer(model, CAMERAS, width=SIZE, height=SIZE, num_workers=0) as renderer:
        yield renderer


@pytest.fixture(scope="module")
def there(model: mujoco.MjModel) -> Iterator[BatchRenderer]:
    with BatchRenderer(model, CAMERAS, width=SIZE, height=SIZE, num_workers=2) as renderer:
        yield renderer


def states(model: mujoco.MjModel, count: int, seed: int = 0) -> np.ndarray:
    """[count, nstate]: the cube at random places of the floor."""
    physics = np.zeros((count, mujoco.mj_stateSize(model, FULL_PHYSICS)))
    physics[:, 1:8] = model.qpos0
    physics[:, 1:3] = np.random.default_rng(seed).uniform(-0.3, 0.3, (count, 2))
    return physics


def pixel(model: mujoco.MjModel, camera: str, point: np.ndarray, size: int) -> tuple[int, int]:
    """Row and column where a world point appears, by the pinhole model."""
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    index = model.camera(camera).id
    x, y, z = data.cam_xmat[index].reshape(3, 3).T @ (point - data.cam_xpos[index])
    focal = 0.5 * size / np.tan(0.5 * np.deg2rad(model.cam_fovy[index]))
    return int(size / 2 - focal * y / -z), int(size / 2 + focal * x / -z)


def test_the_cube_is_where_the_camera_matrix_puts_it(model: mujoco.MjModel, here: BatchRenderer) -> None:
    physics = states(model, 12)
    frames = here.render(physics)
    for camera in CAMERAS:
        assert frames[camera].shape == (12, SIZE, SIZE, 3)
        assert frames[camera].dtype == np.uint8
        for row in range(12):  # other rows' cubes are elsewhere: this holds the order too
            r, c = pixel(model, camera, physics[row, 1:4], SIZE)
            red, green, blue = frames[camera][row, r, c].astype(int)
            assert red > 80 and red > 2 * green and red > 2 * blue, (camera, row, r, c)
        assert len(np.unique(frames[camera].reshape(12, -1), axis=0)) == 12


def test_workers_draw_what_this_process_draws(model: mujoco.MjModel, here: BatchRenderer, there: BatchRenderer) -> None:
    for count in (1, 5, 0):
        physics = states(model, count, seed=count)
        expected = here.render(physics)
        there.submit(physics)
        physics[:] = np.nan  # handed over already
        found = there.result()
        for camera in CAMERAS:
            np.testing.assert_array_equal(found[camera], expected[camera])
    rows = [3, 1]
    physics = states(model, 5)
    np.testing.assert_array_equal(there.render(physics[rows])["above"], here.render(physics)["above"][rows])


@pytest.mark.parametrize("task", ["reach", "push", "lift"])
def test_the_light_kinematics_draw_what_mj_forward_draws(task: str) -> None:
    sim = MujocoVec(task, 3, seed=5)
    physics, model, cameras = sim.state()["physics"], sim.model, sim.spec.cameras
    sim.close()
    plain, data = Renderer(model, width=64, height=64), mujoco.MjData(model)
    # MuJoCo's own tessellation, so that pictures are comparable bit for bit.
    style = DrawStyle(slices=28, stacks=16, quads=4)
    with BatchRenderer(model, cameras, width=64, height=64, num_workers=0, style=style) as renderer:
        frames = renderer.render(physics)
    for row in range(3):
        mujoco.mj_setState(model, data, physics[row], FULL_PHYSICS)
        mujoco.mj_forward(model, data)
        for camera in cameras:
            expected = plain.frame(data, camera)
            assert expected.std() > 5
            np.testing.assert_array_equal(frames[camera][row], expected)
    plain.close()


def test_two_renderers_in_one_process_both_draw(model: mujoco.MjModel, here: BatchRenderer) -> None:
    physics = states(model, 2)
    first = here.render(physics)["front"]
    with BatchRenderer(model, ("front",), width=SIZE, height=SIZE, num_workers=0) as other:
        np.testing.assert_array_equal(other.render(physics)["front"], first)
        np.testing.assert_array_equal(here.render(physics)["front"], first)
    np.testing.assert_array_equal(here.render(physics)["front"], first)
    assert first.std() > 5


def test_mocap_poses_are_those_given_else_the_models(
    model: mujoco.MjModel, here: BatchRenderer, there: BatchRenderer
) -> None:
    physics = states(model, 2)
    before = here.render(physics)["above"]
    places = np.array([[[-0.3, 0.3, 0.05]], [[0.3, -0.35, 0.05]]])
    quats = np.tile([1.0, 0, 0, 0], (2, 1, 1))
    moved = here.render(physics, mocap_pos=places, mocap_quat=quats)["above"]
    for row in range(2):
        assert np.argmax(moved[(row, *pixel(model, "above", places[row, 0], SIZE))]) == 2  # blue
        assert np.argmax(before[(row, *pixel(model, "above", np.array([0, 0.4, 0.05]), SIZE))]) == 2
    np.testing.assert_array_equal(there.render(physics, mocap_pos=places)["above"], moved)
    np.testing.assert_array_equal(here.render(physics)["above"], before)
    with pytest.raises(ValueError, match=r"mocap_pos is \[2, 3\], expected \[2, 1, 3\]"):
        here.render(physics, mocap_pos=places[:, 0])


def test_overrides_change_one_environment_and_are_undone(
    model: mujoco.MjModel, here: BatchRenderer, there: BatchRenderer
) -> None:
    physics = np.repeat(states(model, 1), 8, axis=0)
    plain = here.render(physics)["above"]
    rgba = np.tile(model.geom_rgba.astype(float), (8, 1, 1))
    rgba[1, model.geom("cube").id] = [0, 1, 0, 1]
    ambient, rotation, position = np.full((8, 1, 3), 0.7), np.zeros((8, 2, 3)), np.zeros((8, 2, 3))
    ambient[2], rotation[3, 1, 2], position[4, 1, 0] = 0.1, 0.5, 0.2
    ambient[:2] = ambient[3:] = model.light_diffuse[0]
    fovy = np.zeros((8, 2))
    fovy[5, 1] = 20
    changes = VisualOverrides(position, rotation, fovy, np.zeros((8, 1, 3)), ambient, rgba)
    found = here.render(physics, overrides=changes)["above"]
    r, c = pixel(model, "above", physics[0, 1:4], SIZE)
    assert np.argmax(found[1, r, c]) == 1
    assert found[2].mean() < 0.8 * plain[2].mean()
    changed = [not np.array_equal(found[row], plain[row]) for row in range(8)]
    assert changed == [False, True, True, True, True, True, False, False]
    np.testing.assert_array_equal(here.render(physics)["above"], plain)
    np.testing.assert_array_equal(there.render(physics, overrides=changes)["above"], found)
    np.testing.assert_array_equal(there.render(physics)["above"], plain)
    one = here.render(physics[3:4], overrides=changes.rows(slice(3, 4)))["above"]
    np.testing.assert_array_equal(one[0], found[3])


def test_moved_cameras_project_as_they_should(model: mujoco.MjModel, here: BatchRenderer) -> None:
    physics = states(model, 1)
    rotation, position, fovy = np.zeros((1, 2, 3)), np.zeros((1, 2, 3)), np.zeros((1, 2))
    rotation[0, 0], position[0, 0], fovy[0, 0] = (0.1, -0.08, 0.3), (0.05, -0.1, 0.1), 8.0
    moved = mujoco.MjModel.from_xml_string(SCENE)
    moved.cam_pos[0] += position[0, 0]
    moved.cam_fovy[0] += 8.0
    mujoco.mju_quatIntegrate(moved.cam_quat[0], rotation[0, 0], 1.0)
    np.testing.assert_allclose(turned(model.cam_quat, rotation[0])[0], moved.cam_quat[0], atol=1e-12)
    frame = here.render(physics, overrides=VisualOverrides(position, rotation, fovy))["front"][0]
    red, green, blue = frame[pixel(moved, "front", physics[0, 1:4], SIZE)].astype(int)
    assert red > 80 and red > 2 * green and red > 2 * blue


def test_wrong_overrides_are_refused(model: mujoco.MjModel, here: BatchRenderer) -> None:
    physics = states(model, 2)
    wrong = {
        r"geom_rgba is \[1, 3, 4\], expected \[2, 3, 4\]": VisualOverrides(geom_rgba=np.ones((1, 3, 4))),
        r"geom_rgba must lie in \[0, 1\]": VisualOverrides(geom_rgba=np.full((2, 3, 4), 1.5)),
        "fields of view": VisualOverrides(camera_fovy=np.full((2, 2), 130.0)),
        "aren't finite": VisualOverrides(light_position=np.full((2, 1, 3), np.nan)),
    }
    for message, overrides in wrong.items():
        with pytest.raises(ValueError, match=message):
            here.render(physics, overrides=overrides)


def test_errors_name_what_is_wrong(model: mujoco.MjModel, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="unknown camera 'frnt': known are front, above"):
        BatchRenderer(model, ("frnt",), width=SIZE, height=SIZE)
    with pytest.raises(ValueError, match="each once"):
        BatchRenderer(model, ("front", "front"), width=SIZE, height=SIZE)
    with pytest.raises(ValueError, match="too small"):
        BatchRenderer(model, ("front",), width=0, height=SIZE)
    renderer = BatchRenderer(model, ("front",), width=SIZE, height=SIZE, num_workers=0)
    with pytest.raises(ValueError, match="mjSTATE_FULLPHYSICS"):
        renderer.render(np.zeros((2, 3)))
    with pytest.raises(RuntimeError, match="submit"):
        renderer.result()
    renderer.submit(states(model, 1))
    with pytest.raises(RuntimeError, match="result"):
        renderer.submit(states(model, 1))
    renderer.close()
    renderer.close()
    for call in (renderer.result, lambda: renderer.submit(states(model, 1)), lambda: renderer.render(states(model, 1))):
        with pytest.raises(RuntimeError, match="closed"):
            call()
    monkeypatch.setenv("MUJOCO_GL", "nonsense")
    for workers, message in ((0, r"no headless OpenGL context .*nonsense.*apt-get install"), (1, "start: .*nonsense")):
        with pytest.raises(RuntimeError, match=message):
            BatchRenderer(model, ("front",), width=SIZE, height=SIZE, num_workers=workers)


def test_a_killed_worker_is_replaced(model: mujoco.MjModel, here: BatchRenderer, there: BatchRenderer) -> None:
    physics = states(model, 6)
    expected = here.render(physics)["front"]
    for before_submit in (True, False):
        old = there.pids
        if before_submit:
            os.kill(old[0], signal.SIGKILL)
        there.submit(physics)
        if not before_submit:
            os.kill(old[0], signal.SIGKILL)
        np.testing.assert_array_equal(there.result()["front"], expected)
        if before_submit:
            assert there.pids[0] != old[0] and there.pids[1] == old[1]
    np.testing.assert_array_equal(there.render(physics)["front"], expected)


def test_a_silent_worker_is_replaced_in_bounded_time(model: mujoco.MjModel, here: BatchRenderer) -> None:
    physics = states(model, 2)
    with BatchRenderer(model, CAMERAS, width=SIZE, height=SIZE, timeout_s=3.0) as renderer:
        (old,) = renderer.pids
        os.kill(old, signal.SIGSTOP)
        start = time.monotonic()
        np.testing.assert_array_equal(renderer.render(physics)["front"], here.render(physics)["front"])
        assert time.monotonic() - start > 2.5
        assert renderer.pids != (old,)


def test_a_worker_that_always_fails_is_an_error(model: mujoco.MjModel, monkeypatch: pytest.MonkeyPatch) -> None:
    renderer = BatchRenderer(model, ("front",), width=SIZE, height=SIZE)
    monkeypatch.setenv("MUJOCO_GL", "nonsense")  # the replacement finds no library
    os.kill(renderer.pids[0], signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"could not start: .*nonsense"):
        renderer.render(states(model, 1))
    with pytest.raises(RuntimeError, match="closed"):
        renderer.render(states(model, 1))
