from __future__ import annotations

import copy

import mujoco
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from sims.randomize import ModelRandomizer, ParameterSpace, RandomizeConfig

SCENE = """
<mujoco>
  <worldbody>
    <light pos="0 0 2" dir="0 0 -1" diffuse="0.5 0.5 0.5" directional="true"/>
    <camera name="front" pos="1 0 1" xyaxes="0 1 0 -0.7 0 0.7" fovy="40"/>
    <camera name="side" pos="0 1 1" fovy="50"/>
    <geom name="table" type="box" size="1 1 0.1" pos="0 0 -0.1" rgba="0.5 0.5 0.5 1"/>
    <body name="arm" pos="0 0 1">
      <joint name="hinge" axis="0 1 0" damping="2"/>
      <geom name="left_pad" type="box" size="0.1 0.1 0.1" mass="3" friction="1.5 0.02 0.0001"/>
    </body>
    <body name="cube" pos="0.5 0 0.05">
      <freejoint/>
      <geom name="cube" type="box" size="0.05 0.05 0.05" mass="0.2" friction="1 0.01 0.0001" rgba="0.8 0.2 0.2 1"/>
    </body>
  </worldbody>
  <actuator><position joint="hinge" kp="100" kv="10"/><motor joint="hinge" gear="1"/></actuator>
</mujoco>
"""


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(SCENE)


def arrays(model: mujoco.MjModel) -> dict[str, np.ndarray]:
    names = [name for name in dir(model) if not name.startswith("_")]
    return {name: np.array(value) for name in names if isinstance(value := getattr(model, name), np.ndarray)}


def changed(model: mujoco.MjModel, other: mujoco.MjModel) -> set[str]:
    left, right = arrays(model), arrays(other)
    return {name for name in left if not np.array_equal(left[name], right[name])}


def applied(model: mujoco.MjModel, values: list[float], **ranges: tuple[float, float]) -> mujoco.MjModel:
    randomizer = ModelRandomizer(model, RandomizeConfig(**ranges), ["state"])
    target = randomizer.copies(1)[0]
    randomizer.apply(target, np.array(values))
    return target


def test_values_are_linear_in_u_and_whole_numbers_get_equal_cells() -> None:
    config = RandomizeConfig(object_mass=(0.5, 2.0), latency_steps=(1, 3))
    space = ParameterSpace(config, ["front"], ["state"])
    assert space.names == ("object_mass", "latency_steps")
    u = np.array([[0.0, 0.0], [0.5, 0.34], [1.0, 1.0]])
    assert_allclose(space.physical(u), [[0.5, 1], [1.25, 2], [2.0, 3]])
    drawn = space.physical(np.random.default_rng(0).random((30000, 2)))[:, 1]
    assert_allclose(np.bincount(drawn.astype(int))[1:] / 30000, 1 / 3, atol=0.01)
    values = space.physical(np.random.default_rng(1).random((50, 2)))
    assert_allclose(space.physical(space.unit(values)), values)
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        space.physical(np.array([1.1, 0.0]))
    with pytest.raises(ValueError, match="expected"):
        space.physical(np.array([0.5]))


def test_cameras_and_colours_are_several_parameters() -> None:
    config = RandomizeConfig(camera_position=(-0.1, 0.1), camera_fovy=(0.9, 1.1), table_color=(-0.1, 0.1))
    space = ParameterSpace(config, ["front", "side"], [])
    assert space.dim == 6 + 2 + 3
    assert {"camera_position.side.x", "camera_fovy.front", "table_color.blue"} <= set(space.names)
    one = ParameterSpace(RandomizeConfig(camera_rotation=(0, 1), cameras=("side",)), ["front", "side"], [])
    assert one.names == tuple(f"camera_rotation.side.{axis}" for axis in "xyz")
    noise = RandomizeConfig(observation_noise={"state": (0.0, 0.01)})
    assert ParameterSpace(noise, [], ["state"]).names == ("observation_noise.state",)
    with pytest.raises(ValueError, match="'top'"):
        ParameterSpace(RandomizeConfig(camera_fovy=(1, 1), cameras=("top",)), ["front"], [])
    with pytest.raises(ValueError, match="the scene has state"):
        ParameterSpace(RandomizeConfig(observation_noise={"stat": (0, 1)}), [], ["state"])


@pytest.mark.parametrize(
    ("ranges", "said"),
    [
        ({"object_mass": (2.0, 1.0)}, "exceed"),
        ({"object_mass": (0.0, 1.0)}, "positive"),
        ({"joint_damping": (-1.0, 1.0)}, "negative"),
        ({"latency_steps": (0.5, 2)}, "whole"),
        ({"latency_steps": (0, 1000)}, "at most"),
        ({"object_mass": (1.0, float("nan"))}, "finite"),
        ({"object_mass": 1.0}, "low, high"),
        ({"object_mass": {"cube": (1, 2)}}, "mapping"),
        ({"observation_noise": {"state": (-1, 1)}}, "negative"),
    ],
)
def test_wrong_ranges_are_refused(ranges: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        RandomizeConfig(**ranges)


def test_a_mapping_becomes_a_config_and_nothing_varying_becomes_none() -> None:
    assert RandomizeConfig.of({"object_mass": [0.5, 2.0]}) == RandomizeConfig(object_mass=[0.5, 2.0])
    assert RandomizeConfig.of(None) is None
    assert RandomizeConfig.of({"object_mass": None}) is None
    with pytest.raises(ValueError, match="did you mean 'object_mass'"):
        RandomizeConfig.of({"object_mas": [1, 2]})


def test_mass_scales_inertia_and_what_the_solver_derives(model: mujoco.MjModel) -> None:
    before = arrays(model)
    target = applied(model, [2.0], object_mass=(0.5, 3.0))
    cube = model.body("cube").id
    assert target.body_mass[cube] == pytest.approx(0.4)
    assert_allclose(target.body_inertia[cube], 2 * model.body_inertia[cube])
    assert_allclose(target.body_invweight0[cube], 0.5 * model.body_invweight0[cube])
    assert target.body_subtreemass[0] == pytest.approx(3.4)
    arm = model.body("arm").id
    assert_array_equal(target.body_invweight0[arm], model.body_invweight0[arm])
    for name, array in arrays(model).items():
        assert_array_equal(array, before[name], err_msg=name)


def test_each_scale_touches_its_own_arrays(model: mujoco.MjModel) -> None:
    friction = applied(model, [0.5], object_friction=(0.1, 2.0))
    assert changed(model, friction) == {"geom_friction"}
    assert_allclose(friction.geom("cube").friction, [0.5, 0.005, 0.00005])
    assert_array_equal(friction.geom("left_pad").friction, model.geom("left_pad").friction)
    pads = applied(model, [2.0], pad_friction=(0.1, 2.0))
    assert_allclose(pads.geom("left_pad").friction, [3.0, 0.04, 0.0002])
    damping = applied(model, [3.0], joint_damping=(0.0, 5.0))
    assert changed(model, damping) == {"dof_damping"}
    assert damping.dof_damping.tolist() == [6.0] + [0.0] * 6


def test_gain_and_bias_of_servos_stay_consistent(model: mujoco.MjModel) -> None:
    target = applied(model, [2.0, 0.5], actuator_kp=(0.5, 2.0), actuator_kv=(0.5, 2.0))
    assert target.actuator_gainprm[0, 0] == 200 and target.actuator_biasprm[0, :3].tolist() == [0, -200, -5]
    assert_array_equal(target.actuator_gainprm[1], model.actuator_gainprm[1])  # the motor isn't a servo
    assert changed(model, target) == {"actuator_gainprm", "actuator_biasprm"}


def test_applying_again_forgets_what_was_before(model: mujoco.MjModel) -> None:
    ranges = {"object_mass": (0.1, 10.0), "pad_friction": (0.1, 10.0), "actuator_kp": (0.1, 10.0)}
    randomizer = ModelRandomizer(model, RandomizeConfig(**ranges), [])
    used, fresh = randomizer.copies(2)
    for value in (7.0, 0.3):
        randomizer.apply(used, np.full(3, value))
    randomizer.apply(fresh, np.full(3, 0.3))
    assert changed(used, fresh) == set()
    randomizer.apply(used, np.ones(3))
    assert changed(used, model) == set()


def test_physics_follow_the_mass(model: mujoco.MjModel) -> None:
    def acceleration(target: mujoco.MjModel) -> float:
        data = mujoco.MjData(target)
        data.qpos[target.jnt_qposadr[1] + 2] = 5.0
        data.xfrc_applied[target.body("cube").id, 0] = 1.0
        mujoco.mj_forward(target, data)
        return float(data.qacc[1])

    assert acceleration(copy.copy(model)) == pytest.approx(5.0)
    assert acceleration(applied(model, [2.0], object_mass=(0.5, 3.0))) == pytest.approx(2.5)


def test_pictures_vary_as_plain_arrays(model: mujoco.MjModel) -> None:
    config = RandomizeConfig(
        camera_position=(-0.1, 0.1), camera_rotation=(-0.2, 0.2), light_position=(-1, 1), light_intensity=(0.5, 3.0),
        object_color=(-0.5, 0.5), cameras=("front",),
    )  # fmt: skip
    randomizer = ModelRandomizer(model, config, [])
    space = randomizer.space
    values = np.zeros((2, space.dim))
    values[:, space.names.index("light_intensity")] = 1.0
    for name, value in (
        ("camera_position.front.x", 0.1), ("camera_rotation.front.z", 0.2), ("light_position.x", 1.0),
        ("light_intensity", 3.0), ("object_color.green", 0.3), ("object_color.red", 0.5),
    ):  # fmt: skip
        values[1, space.names.index(name)] = value
    overrides = randomizer.visual(values)
    assert overrides is not None and overrides.camera_fovy is not None
    assert overrides.camera_position is not None and overrides.camera_position.shape == (2, 2, 3)
    seen = overrides.absolute(model, 2)
    assert set(seen) == {"cam_pos", "cam_quat", "cam_fovy", "light_pos", "light_diffuse", "geom_rgba"}
    for name, array in seen.items():
        assert_allclose(array[0], getattr(model, name), atol=1e-7, err_msg=name)
    assert_allclose(seen["cam_pos"][1, 0], [1, 0.1, 1], atol=1e-7)  # the camera's x axis is the world's y
    assert_array_equal(seen["cam_pos"][1, 1], model.cam_pos[1])
    expected = np.zeros(4)
    turn = np.array([np.cos(0.1), 0, 0, np.sin(0.1)])
    mujoco.mju_mulQuat(expected, model.cam_quat[0], turn)
    assert_allclose(seen["cam_quat"][1, 0], expected)
    assert_allclose(seen["light_pos"][1, 0], [1, 0, 2])
    assert_allclose(seen["light_diffuse"][1, 0], 1.0)  # 1.5 clipped
    assert_allclose(seen["geom_rgba"][1, model.geom("cube").id], [1.0, 0.5, 0.2, 1.0], atol=1e-6)
    wide = ModelRandomizer(model, RandomizeConfig(camera_fovy=(0.5, 1.5), cameras=("side",)), [])
    fovy = wide.visual(np.array([[1.2]]))
    assert fovy is not None
    assert_allclose(fovy.absolute(model, 1)["cam_fovy"], [[40, 60]])
    assert ModelRandomizer(model, RandomizeConfig(object_mass=(1, 2)), []).visual(np.ones((1, 1))) is None


def test_what_the_scene_lacks_is_named() -> None:
    bare = mujoco.MjModel.from_xml_string("<mujoco><worldbody><geom size='1'/></worldbody></mujoco>")
    for name in ("object_mass", "pad_friction", "actuator_kp", "table_color", "light_intensity"):
        with pytest.raises(ValueError, match=f"{name} is set, but the scene has no"):
            ModelRandomizer(bare, RandomizeConfig(**{name: (0.5, 1.0)}), [])
