"""The UR5e and the SO-101: published geometry and limits, tracking, and a grip that lifts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import mujoco
import numpy as np
import pytest

import sims
from hardware.kinematics import SerialChain, rotation_error, rotation_from_quaternion, rotation_from_vector, track_delta
from sims.demonstrations import collect_demonstrations
from sims.experts import make_expert
from sims.mujoco_vec import MujocoVec

ASSETS = Path(sims.__file__).parent / "assets"
PI = np.pi


@dataclass(frozen=True)
class ArmCase:
    """What one arm promises. home_tool: tool position above the table at home, m; opening_scale: m per rad or m."""

    name: str
    home: tuple[float, ...]
    home_tool: tuple[float, float, float]
    velocity: float
    low: tuple[float, ...]
    high: tuple[float, ...]
    torque: tuple[float, ...]
    opening_scale: float
    openings: tuple[float, ...]
    opening_tolerance: float


UR5E = ArmCase(
    name="ur5e",
    home=(-0.259240137092, -1.523390548232, 1.742953932093, -1.790359710656, -1.570796326795, -0.259240137092),
    home_tool=(0.52, 0.0, 0.25),
    velocity=PI,
    low=(-2 * PI, -2 * PI, -PI, -2 * PI, -2 * PI, -2 * PI),
    high=(2 * PI, 2 * PI, PI, 2 * PI, 2 * PI, 2 * PI),
    torque=(150.0, 150.0, 150.0, 28.0, 28.0, 28.0),
    opening_scale=1.0,
    openings=(0.0, 0.03, 0.085),
    opening_tolerance=0.001,
)
SO101 = ArmCase(
    name="so101",
    home=(-0.001191971305, -0.380352469958, 0.499857654831, 1.451291141921, 0.047487528694),
    home_tool=(0.195, 0.0, 0.065),
    velocity=3.14,
    low=(-1.91986, -1.74533, -1.69, -1.65806, -2.74385),
    high=(1.91986, 1.74533, 1.69, 1.65806, 2.84121),
    torque=(2.94,) * 5,
    opening_scale=0.0765,
    openings=(0.0, 0.02, 0.04, 0.06, 0.08),
    opening_tolerance=0.002,
)
ARMS = pytest.mark.parametrize("arm", [UR5E, SO101], ids=lambda arm: arm.name)


@cache
def compiled(name: str, *, table: bool = True, extra: str = "") -> mujoco.MjModel:
    files = {f"{part}.xml": (ASSETS / f"{part}.xml").read_bytes() for part in ("table", name)}
    include = '<include file="table.xml"/>' if table else ""
    scene = f'<mujoco>{include}<include file="{name}.xml"/><worldbody>{extra}</worldbody></mujoco>'
    return mujoco.MjModel.from_xml_string(scene, files)


def chain_of(model: mujoco.MjModel, arm: ArmCase) -> SerialChain:
    """The joints' bodies in sequence, and the tool site through the bodies welded to the last one."""
    joints = [model.joint(f"joint{i + 1}") for i in range(len(arm.home))]
    bodies = [int(joint.bodyid[0]) for joint in joints]
    site, body = model.site("tcp"), int(model.site("tcp").bodyid[0])
    offset, rotation = np.array(site.pos), rotation_from_quaternion(np.array(site.quat))
    while body != bodies[-1]:
        turn = rotation_from_quaternion(model.body_quat[body])
        offset, rotation, body = turn @ offset + model.body_pos[body], turn @ rotation, int(model.body_parentid[body])
    limits = np.array([joint.range for joint in joints])
    return SerialChain(
        offset=model.body_pos[bodies],
        rotation=rotation_from_quaternion(model.body_quat[bodies]),
        tool_offset=offset,
        tool_rotation=rotation,
        low_rad=limits[:, 0],
        high_rad=limits[:, 1],
        velocity_rad_s=np.full(len(bodies), arm.velocity),
    )


def at_home(model: mujoco.MjModel, arm: ArmCase, opening: float = 0.0) -> mujoco.MjData:
    data, count = mujoco.MjData(model), len(arm.home)
    data.qpos[:count] = data.ctrl[:count] = arm.home
    fingers = [i for i in range(model.njnt) if model.joint(i).name.startswith("finger_joint")]
    data.qpos[model.jnt_qposadr[fingers]] = opening / arm.opening_scale / len(fingers)
    data.ctrl[count] = opening / arm.opening_scale
    mujoco.mj_forward(model, data)
    return data


def frame(rotation: np.ndarray, x: float, y: float, z: float) -> np.ndarray:
    out = np.eye(4)
    out[:3, :3], out[:3, 3] = rotation, (x, y, z)
    return out


def about(axis: int, angle: float) -> np.ndarray:
    return rotation_from_vector(np.eye(3)[axis] * angle)


def ur5e_flange(q: np.ndarray) -> np.ndarray:
    """The maker's DH table, classical convention: Rz(q) Tz(d) Tx(a) Rx(alpha); our base looks along +x."""
    table = (
        (0.1625, 0.0, PI / 2),
        (0.0, -0.425, 0.0),
        (0.0, -0.3922, 0.0),
        (0.1333, 0.0, PI / 2),
        (0.0997, 0.0, -PI / 2),
        (0.0996, 0.0, 0.0),
    )
    pose = frame(about(2, PI), 0, 0, 0)
    for angle, (d, a, alpha) in zip(q, table, strict=True):
        pose = pose @ frame(about(2, angle), 0, 0, 0) @ frame(about(0, alpha), a, 0, d)
    return pose


def so101_gripper(q: np.ndarray) -> np.ndarray:
    """The URDF's joint origins (xyz, rpy), its 1.5708 and 3.14159 read as pi/2 and pi; joint axes are z."""
    origins = (
        ((0.0388353, 0.0, 0.0624), (PI, 0.0, -PI)),
        ((-0.0303992, -0.0182778, -0.0542), (-PI / 2, -PI / 2, 0.0)),
        ((-0.11257, -0.028, 0.0), (0.0, 0.0, PI / 2)),
        ((-0.1349, 0.0052, 0.0), (0.0, 0.0, -PI / 2)),
        ((0.0, -0.0611, 0.0181), (PI / 2, 0.0486795, PI)),
        ((0.0202, 0.0188, -0.0234), (PI / 2, 0.0, 0.0)),
    )
    pose = np.eye(4)
    for angle, (xyz, (roll, pitch, yaw)) in zip(q, origins, strict=False):
        pose = pose @ frame(about(2, yaw) @ about(1, pitch) @ about(0, roll), *xyz) @ frame(about(2, angle), 0, 0, 0)
    return pose


@ARMS
def test_compiles_alone_and_on_the_table(arm: ArmCase) -> None:
    alone, scene = compiled(arm.name, table=False), compiled(arm.name)
    assert alone.nu == scene.nu == len(arm.home) + 1
    names = [scene.actuator(i).name for i in range(scene.nu)]
    assert names == [*(f"actuator{i + 1}" for i in range(len(arm.home))), "gripper"]
    assert scene.ncam == alone.ncam + 3 and scene.camera("wrist").bodyid[0] > 0
    assert scene.body("link0").pos.tolist() == [0, 0, 0]
    moving = [i for i in range(1, scene.nbody) if scene.body(i).name not in ("link0", "world")]
    assert (scene.body_gravcomp[moving] == 1).all()


@ARMS
def test_joints_follow_the_convention_of_the_chain(arm: ArmCase) -> None:
    model = compiled(arm.name)
    parent = model.body("link0").id
    for i in range(len(arm.home)):
        joint = model.joint(f"joint{i + 1}")
        body = int(joint.bodyid[0])
        assert joint.type[0] == mujoco.mjtJoint.mjJNT_HINGE and joint.qposadr[0] == i
        np.testing.assert_array_equal(joint.axis, [0, 0, 1])
        np.testing.assert_array_equal(joint.pos, [0, 0, 0])
        assert model.body_parentid[body] == parent
        parent = body


@ARMS
def test_limits_are_the_published_ones(arm: ArmCase) -> None:
    model, count = compiled(arm.name), len(arm.home)
    np.testing.assert_allclose(model.jnt_range[:count, 0], arm.low, atol=1e-9)
    np.testing.assert_allclose(model.jnt_range[:count, 1], arm.high, atol=1e-9)
    np.testing.assert_allclose(model.jnt_actfrcrange[:count, 1], arm.torque)
    np.testing.assert_allclose(model.actuator_forcerange[:count, 1], arm.torque)
    np.testing.assert_allclose(model.actuator_ctrlrange[:count], model.jnt_range[:count])


def test_ur5e_is_the_published_dh_chain() -> None:
    model, rng = compiled("ur5e"), np.random.default_rng(0)
    data, chain = mujoco.MjData(model), chain_of(model, UR5E)
    for q in rng.uniform(UR5E.low, UR5E.high, (50, 6)):
        data.qpos[:6] = q
        mujoco.mj_kinematics(model, data)
        expected = ur5e_flange(q)
        np.testing.assert_allclose(data.body("link6").xpos, expected[:3, 3], atol=1e-6)
        np.testing.assert_allclose(data.body("link6").xmat.reshape(3, 3), expected[:3, :3], atol=1e-6)
        np.testing.assert_allclose(data.site("tcp").xpos, expected[:3, 3] + 0.152 * expected[:3, 2], atol=1e-6)
        np.testing.assert_allclose(chain.forward(q[None])[0][0], data.site("tcp").xpos, atol=1e-9)


def test_so101_is_the_published_urdf_chain() -> None:
    model, rng = compiled("so101"), np.random.default_rng(0)
    data, chain = mujoco.MjData(model), chain_of(model, SO101)
    for q in rng.uniform([*SO101.low, 0.0], [*SO101.high, 1.9], (50, 6)):
        data.qpos[:6] = q
        mujoco.mj_kinematics(model, data)
        gripper, jaw = so101_gripper(q[:5]), so101_gripper([*q[:5], q[5] - 0.174533])
        for body, expected in (("link5", gripper), ("moving_jaw", jaw)):
            np.testing.assert_allclose(data.body(body).xpos, expected[:3, 3], atol=1e-6)
            np.testing.assert_allclose(data.body(body).xmat.reshape(3, 3), expected[:3, :3], atol=1e-6)
        np.testing.assert_allclose(data.site("tcp").xmat.reshape(3, 3)[:, 2], -gripper[:3, 2], atol=1e-6)
        np.testing.assert_allclose(chain.forward(q[None, :5])[0][0], data.site("tcp").xpos, atol=1e-9)


@ARMS
def test_home_points_the_tool_down_away_from_limits_and_singularities(arm: ArmCase) -> None:
    chain = chain_of(compiled(arm.name), arm)
    home = np.array(arm.home)
    position, rotation, jacobian = chain.forward_and_jacobian(home[None])
    np.testing.assert_allclose(position[0], arm.home_tool, atol=1e-4)
    assert np.arccos(min(1.0, -rotation[0, 2, 2])) < 1e-3
    assert np.minimum(home - arm.low, arm.high - home).min() > 0.2
    assert np.linalg.svd(jacobian[0])[1].min() > 0.05


@ARMS
def test_home_holds_still_and_touches_nothing(arm: ArmCase) -> None:
    model, count = compiled(arm.name), len(arm.home)
    data = at_home(model, arm)
    pairs, solid = 0, [i for i in range(model.ngeom) if model.geom_contype[i] in (2, 4)]
    for i in solid:
        for j in solid:
            bodies = sorted((int(model.geom_bodyid[i]), int(model.geom_bodyid[j])))
            if bodies[1] - bodies[0] > 1:  # neighbours share a joint
                assert mujoco.mj_geomDistance(model, data, i, j, 1.0, None) > 0
                pairs += 1
    assert pairs > 10
    worst = 0.0
    for _ in range(2000):
        mujoco.mj_step(model, data)
        worst = max(worst, float(np.abs(data.qpos[:count] - arm.home).max()))
        assert data.ncon == 0
    assert worst < 1e-3


@ARMS
@pytest.mark.parametrize("distance", [0.6, -0.6])
def test_every_joint_follows_a_ramp_without_ringing(arm: ArmCase, distance: float) -> None:
    table = compiled(arm.name)
    model = compiled(arm.name, table=False)  # nothing in the way
    model.opt.timestep, model.opt.integrator = table.opt.timestep, table.opt.integrator
    count, step = len(arm.home), 0.5 * arm.velocity * table.opt.timestep
    for joint in range(count):
        data, target = at_home(model, arm), np.array(arm.home)
        end = np.clip(arm.home[joint] + distance, arm.low[joint], arm.high[joint])
        overshoot = 0.0
        for _ in range(300):
            target[joint] += np.clip(end - target[joint], -step, step)
            data.ctrl[:count] = target
            mujoco.mj_step(model, data)
            assert np.abs(data.qpos[:count] - target).max() < 0.05
            overshoot = max(overshoot, (data.qpos[joint] - end) * np.sign(distance))
        assert overshoot < 3e-3
        assert np.abs(data.qpos[:count] - target).max() < 1e-4


def measured_opening(model: mujoco.MjModel, data: mujoco.MjData, arm: ArmCase) -> float:
    """Between the pads' inner faces; the rotating jaw's tip counts, across the fixed pad's face."""
    if arm.name == "ur5e":
        apart = np.linalg.norm(data.geom("left_pad").xpos - data.geom("right_pad").xpos)
        return float(apart - 2 * model.geom("left_pad").size[1])
    pad, size = data.geom("moving_pad"), model.geom("moving_pad").size
    tip = pad.xpos + pad.xmat.reshape(3, 3) @ [-size[0], -size[1], 0]
    normal = data.geom("fixed_pad").xmat.reshape(3, 3)[:, 1]
    return float((tip - data.geom("fixed_pad").xpos) @ normal - model.geom("fixed_pad").size[1])


@ARMS
def test_gripper_opens_and_closes_to_the_stated_openings(arm: ArmCase) -> None:
    model = compiled(arm.name)
    data = at_home(model, arm)
    for opening in (*arm.openings, *reversed(arm.openings)):
        data.ctrl[-1] = opening / arm.opening_scale
        for _ in range(300):
            mujoco.mj_step(model, data)
        assert measured_opening(model, data, arm) == pytest.approx(opening, abs=arm.opening_tolerance)


def drive(
    model: mujoco.MjModel, data: mujoco.MjData, arm: ArmCase, place: np.ndarray, rotation: np.ndarray, opening: float
) -> float:
    """2.5 s at 20 Hz toward a tool pose through track_delta; returns the distance left, m."""
    chain, count = chain_of(model, arm), len(arm.home)
    for _ in range(50):
        q = data.ctrl[None, :count].copy()
        position, current = chain.forward(q)
        turn = np.clip(0.5 * rotation_error(rotation[None], current), -0.1, 0.1)
        delta = np.concatenate([np.clip(0.4 * (place - position), -0.015, 0.015), turn], axis=1)
        target = track_delta(chain, q, delta, dt_s=0.05)
        data.ctrl[count] = opening / arm.opening_scale
        for part in range(1, 11):
            data.ctrl[:count] = q[0] + (target[0] - q[0]) * part / 10
            mujoco.mj_step(model, data)
    return float(np.linalg.norm(data.site("tcp").xpos - place))


@ARMS
@pytest.mark.parametrize("corner", [(-1, -1, -0.7), (-1, 1, 0.7), (1, -1, 0.4), (1, 1, -0.4), (0, 0, 0.0)])
def test_lifts_a_cube_anywhere_in_the_workspace(arm: ArmCase, corner: tuple[float, float, float]) -> None:
    half, mass, centre, reach, high, wide = (
        (0.02, 0.06, (0.52, 0.0), (0.10, 0.18), 0.25, 0.075)
        if arm.name == "ur5e"
        else (0.0125, 0.03, (0.195, 0.0), (0.05, 0.09), 0.06, 0.05)
    )
    cube = (
        f'<body name="cube" pos="0 0 {half}"><freejoint/><geom type="box" size="{half} {half} {half}" mass="{mass}" '
        f'condim="4" friction="1 0.01 0.0001"/></body>'
    )
    model = compiled(arm.name, extra=cube)
    data = at_home(model, arm, wide)
    x, y, yaw = centre[0] + reach[0] * corner[0], reach[1] * corner[1], corner[2]
    address = model.nq - 7
    data.qpos[address : address + 7] = (x, y, half, np.cos(yaw / 2), 0, 0, np.sin(yaw / 2))
    rotation = about(2, yaw) @ data.site("tcp").xmat.reshape(3, 3)
    above, at, up = (np.array([x, y, z]) for z in (high, half, high))
    assert drive(model, data, arm, above, rotation, wide) < 0.002
    assert drive(model, data, arm, at, rotation, wide) < 0.002
    drive(model, data, arm, at, rotation, 0.0)
    drive(model, data, arm, up, rotation, 0.0)
    cube_at, tool = data.qpos[address : address + 3], data.site("tcp").xpos
    assert cube_at[2] > high - 0.01
    assert np.linalg.norm(cube_at - tool) < 0.01
    assert np.arccos(min(1.0, -data.site("tcp").xmat[8])) < 0.02


def test_five_joints_keep_the_tool_upright_on_long_fast_moves() -> None:
    chain, rng = chain_of(compiled("so101"), SO101), np.random.default_rng(0)
    q, reach = np.array([SO101.home]), SO101.velocity * 0.05
    for _ in range(60):
        place = rng.uniform((0.145, -0.09, 0.01), (0.245, 0.09, 0.065))
        for _ in range(40):
            delta = np.zeros((1, 6))
            delta[0, :3] = np.clip(0.4 * (place - chain.forward(q)[0][0]), -0.015, 0.015)
            before, q = q, track_delta(chain, q, delta, dt_s=0.05)
            assert (np.abs(q - before) <= reach + 1e-12).all()
        position, rotation = chain.forward(q)
        np.testing.assert_allclose(position[0], place, atol=1e-4)
        assert np.arccos(min(1.0, -rotation[0, 2, 2])) < 0.01


@pytest.mark.parametrize(
    ("arm", "task", "rate"),
    [
        ("ur5e", "lift", 0.95),
        ("ur5e", "push", 0.9),
        ("so101", "lift", 0.8),
        ("so101", "push", 0.9),
        ("so101", "reach", 0.95),
    ],
)
def test_demonstrators_work_with_other_arms(arm: str, task: str, rate: float) -> None:
    sim = MujocoVec(task, 32, arm=arm)
    demos = collect_demonstrations(sim, make_expert(task, 32), 32, seed=4, keep_failures=True)
    assert demos.attempted_successes >= rate * demos.attempted
    assert sim.diverged_count == 0


def test_an_arm_too_small_for_a_task_is_refused() -> None:
    with pytest.raises(ValueError, match=r"too small for 'door'; it can do reach, push, lift"):
        MujocoVec("door", 1, arm="so101")
    with pytest.raises(ValueError, match="known are franka"):
        MujocoVec("lift", 1, arm="panda")
