"""USD assets written from a compiled MuJoCo model, so that Isaac Lab simulates the arm that ``MujocoVec`` simulates.

Masses, inertias, joint frames, limits, collision bits, friction and contact softness are copied number by number:
standard physics attributes where USD has them, ``mjc:`` and ``newton:`` attributes (which Newton reads) where not.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from hardware.kinematics import rotation_from_quaternion

ROOT = "/asset"
"""Path of every asset's root prim."""
AXES = ("X", "Y", "Z")
GEOMETRY = {
    int(mujoco.mjtGeom.mjGEOM_BOX): "Cube",
    int(mujoco.mjtGeom.mjGEOM_SPHERE): "Sphere",
    int(mujoco.mjtGeom.mjGEOM_CAPSULE): "Capsule",
    int(mujoco.mjtGeom.mjGEOM_CYLINDER): "Cylinder",
}


def write_arm(model: mujoco.MjModel, joint: str, path: Path) -> list[str]:
    """Write the kinematic tree that ``joint`` belongs to, its base fixed to the world; returns its joints' names.

    Raises ValueError for a joint or a geom that this exporter doesn't know.
    """
    stage, pxr = _stage(path)
    root = int(model.body_rootid[model.joint(joint).bodyid[0]])
    bodies = [body for body in range(model.nbody) if model.body_rootid[body] == root]
    top = stage.GetPrimAtPath(ROOT)
    pxr.UsdPhysics.ArticulationRootAPI.Apply(top)
    top.AddAppliedSchema("NewtonArticulationRootAPI")
    # Newton colours collisions itself; in these scenes arm and fingers meet the scene, never each other.
    _custom(top, pxr, "newton:selfCollisionEnabled", "Bool", False)
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    for body in bodies:
        prim = _body(stage, pxr, model, body, data.xpos[body], data.xquat[body])
        _geoms(stage, pxr, model, body, prim)
    names: list[str] = []
    for body in bodies:
        names += _joint(stage, pxr, model, body, root)
    _couplings(stage, pxr, model, names)
    stage.GetRootLayer().Save()
    return names


def write_object(model: mujoco.MjModel, body_name: str, path: Path) -> None:
    """Write one free body."""
    stage, pxr = _stage(path)
    body = int(model.body(body_name).id)
    root = stage.GetPrimAtPath(ROOT)
    _physics(pxr, model, body, root)
    _geoms(stage, pxr, model, body, ROOT)
    stage.GetRootLayer().Save()


def write_world(model: mujoco.MjModel, path: Path) -> None:
    """Write what stands still: the colliding geoms of the world body (a table, but no floor that nothing touches)."""
    stage, pxr = _stage(path)
    _geoms(stage, pxr, model, 0, ROOT)
    stage.GetRootLayer().Save()


# ---------------------------------------------------------------------------------------------------- pieces


def _stage(path: Path) -> tuple[Any, Any]:
    pxr: Any = importlib.import_module("pxr")
    for name in ("Gf", "Sdf", "Usd", "UsdGeom", "UsdPhysics", "UsdShade", "Vt"):
        importlib.import_module(f"pxr.{name}")
    stage = pxr.Usd.Stage.CreateNew(str(path))
    pxr.UsdGeom.SetStageUpAxis(stage, "Z")
    pxr.UsdGeom.SetStageMetersPerUnit(stage, 1.0)
    stage.SetDefaultPrim(pxr.UsdGeom.Xform.Define(stage, ROOT).GetPrim())
    return stage, pxr


def _quaternion(pxr: Any, wxyz: NDArray[np.float64]) -> Any:
    return pxr.Gf.Quatf(*(float(value) for value in wxyz))


def _vector(pxr: Any, xyz: NDArray[np.float64]) -> Any:
    return pxr.Gf.Vec3f(*(float(value) for value in xyz))


def _place(pxr: Any, prim: Any, position: NDArray[np.float64], wxyz: NDArray[np.float64]) -> Any:
    xform = pxr.UsdGeom.Xformable(prim)
    xform.AddTranslateOp().Set(pxr.Gf.Vec3d(*(float(value) for value in position)))
    xform.AddOrientOp().Set(_quaternion(pxr, wxyz))
    return xform


def _custom(prim: Any, pxr: Any, name: str, kind: str, value: Any) -> None:
    prim.CreateAttribute(name, getattr(pxr.Sdf.ValueTypeNames, kind), custom=False).Set(value)


def _doubles(prim: Any, pxr: Any, name: str, values: Sequence[float]) -> None:
    _custom(prim, pxr, name, "DoubleArray", pxr.Vt.DoubleArray([float(value) for value in values]))


def _body(
    stage: Any,
    pxr: Any,
    model: mujoco.MjModel,
    body: int,
    position: NDArray[np.float64],
    wxyz: NDArray[np.float64],
) -> str:
    path = f"{ROOT}/{model.body(body).name}"
    prim = pxr.UsdGeom.Xform.Define(stage, path).GetPrim()
    _place(pxr, prim, position, wxyz)
    _physics(pxr, model, body, prim)
    return path


def _physics(pxr: Any, model: mujoco.MjModel, body: int, prim: Any) -> None:
    pxr.UsdPhysics.RigidBodyAPI.Apply(prim)
    mass = pxr.UsdPhysics.MassAPI.Apply(prim)
    mass.CreateMassAttr(float(model.body_mass[body]))
    mass.CreateCenterOfMassAttr(_vector(pxr, model.body_ipos[body]))
    mass.CreateDiagonalInertiaAttr(_vector(pxr, model.body_inertia[body]))
    mass.CreatePrincipalAxesAttr(_quaternion(pxr, model.body_iquat[body]))
    _custom(prim, pxr, "mjc:gravcomp", "Double", float(model.body_gravcomp[body]))


def _geoms(stage: Any, pxr: Any, model: mujoco.MjModel, body: int, parent: str) -> None:
    for geom in np.flatnonzero(model.geom_bodyid == body).tolist():
        collides = bool(model.geom_contype[geom] or model.geom_conaffinity[geom])
        if body == 0 and not collides:
            continue
        _geom(stage, pxr, model, geom, f"{parent}/geom_{geom}", collides)


def _geom(stage: Any, pxr: Any, model: mujoco.MjModel, geom: int, path: str, collides: bool) -> None:
    kind = int(model.geom_type[geom])
    if kind not in GEOMETRY:
        known = ", ".join(GEOMETRY.values())
        raise ValueError(f"geom {geom} is a {mujoco.mjtGeom(kind).name}: the USD exporter knows {known}")
    size, shape = model.geom_size[geom], getattr(pxr.UsdGeom, GEOMETRY[kind]).Define(stage, path)
    prim = shape.GetPrim()
    xform = _place(pxr, prim, model.geom_pos[geom], model.geom_quat[geom])
    if GEOMETRY[kind] == "Cube":
        shape.CreateSizeAttr(2.0)
        xform.AddScaleOp().Set(_vector(pxr, size))
    else:
        shape.CreateRadiusAttr(float(size[0]))
        if GEOMETRY[kind] != "Sphere":
            shape.CreateHeightAttr(2.0 * float(size[1]))
            shape.CreateAxisAttr("Z")
    shape.CreateDisplayColorAttr([_vector(pxr, model.geom_rgba[geom, :3])])
    if model.geom_group[geom] == 3:
        pxr.UsdGeom.Imageable(prim).MakeInvisible()
    if collides:
        _contact(stage, pxr, model, geom, prim)


def _contact(stage: Any, pxr: Any, model: mujoco.MjModel, geom: int, prim: Any) -> None:
    """Collision bits and softness on the shape, friction on a material of its own."""
    pxr.UsdPhysics.CollisionAPI.Apply(prim)
    for name in ("contype", "conaffinity", "condim", "priority", "group"):
        _custom(prim, pxr, f"mjc:{name}", "Int", int(getattr(model, f"geom_{name}")[geom]))
    _doubles(prim, pxr, "mjc:solref", model.geom_solref[geom])
    _doubles(prim, pxr, "mjc:solimp", model.geom_solimp[geom])
    _custom(prim, pxr, "mjc:solmix", "Double", float(model.geom_solmix[geom]))
    _custom(prim, pxr, "newton:contactMargin", "Float", float(model.geom_margin[geom]))
    _custom(prim, pxr, "newton:contactGap", "Float", float(model.geom_gap[geom]))
    slide, spin, roll = (float(value) for value in model.geom_friction[geom])
    material = pxr.UsdShade.Material.Define(stage, f"{ROOT}/material_{geom}")
    friction = pxr.UsdPhysics.MaterialAPI.Apply(material.GetPrim())
    friction.CreateStaticFrictionAttr(slide)
    friction.CreateDynamicFrictionAttr(slide)
    _custom(material.GetPrim(), pxr, "newton:torsionalFriction", "Float", spin)
    _custom(material.GetPrim(), pxr, "newton:rollingFriction", "Float", roll)
    strength, purpose = pxr.UsdShade.Tokens.weakerThanDescendants, "physics"
    pxr.UsdShade.MaterialBindingAPI.Apply(prim).Bind(material, strength, purpose)


def _joint(stage: Any, pxr: Any, model: mujoco.MjModel, body: int, root: int) -> list[str]:
    """The joint between a body and its parent; welded bodies get a fixed one."""
    physics, name = pxr.UsdPhysics, model.body(body).name
    first, count = int(model.body_jntadr[body]), int(model.body_jntnum[body])
    if count > 1:
        raise ValueError(f"body {name!r} has {count} joints: the USD exporter knows one per body")
    if count == 0:
        joint = physics.FixedJoint.Define(stage, f"{ROOT}/fixed_{name}")
        _frames(pxr, model, joint, body, root, np.zeros(3))
        return []
    kind, axis = int(model.jnt_type[first]), model.jnt_axis[first]
    along = int(np.argmax(np.abs(axis)))
    if kind not in (int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE)) or axis[along] != 1.0:
        raise ValueError(f"joint {model.joint(first).name!r}: the USD exporter knows hinges and slides along x, y or z")
    hinge = kind == int(mujoco.mjtJoint.mjJNT_HINGE)
    define = physics.RevoluteJoint.Define if hinge else physics.PrismaticJoint.Define
    joint = define(stage, f"{ROOT}/{model.joint(first).name}")
    joint.CreateAxisAttr(AXES[along])
    _frames(pxr, model, joint, body, root, model.jnt_pos[first])
    low, high = np.degrees(model.jnt_range[first]) if hinge else model.jnt_range[first]
    joint.CreateLowerLimitAttr(float(low))
    joint.CreateUpperLimitAttr(float(high))
    physics.DriveAPI.Apply(joint.GetPrim(), "angular" if hinge else "linear").CreateTypeAttr("force")
    prim, dof = joint.GetPrim(), int(model.jnt_dofadr[first])
    _custom(prim, pxr, "mjc:armature", "Double", float(model.dof_armature[dof]))
    _doubles(prim, pxr, "mjc:solreflimit", model.jnt_solref[first])
    _doubles(prim, pxr, "mjc:solimplimit", model.jnt_solimp[first])
    return [model.joint(first).name]


def _frames(pxr: Any, model: mujoco.MjModel, joint: Any, body: int, root: int, anchor: NDArray[np.float64]) -> None:
    """Attach ``joint`` to the body and its parent (the world for the root) at ``anchor`` in the body's frame."""
    rotation = rotation_from_quaternion(model.body_quat[body])
    if body != root:
        joint.CreateBody0Rel().SetTargets([f"{ROOT}/{model.body(int(model.body_parentid[body])).name}"])
    joint.CreateBody1Rel().SetTargets([f"{ROOT}/{model.body(body).name}"])
    joint.CreateLocalPos0Attr(_vector(pxr, model.body_pos[body] + rotation @ anchor))
    joint.CreateLocalRot0Attr(_quaternion(pxr, model.body_quat[body]))
    joint.CreateLocalPos1Attr(_vector(pxr, anchor))
    joint.CreateLocalRot1Attr(pxr.Gf.Quatf(1.0))


def _couplings(stage: Any, pxr: Any, model: mujoco.MjModel, names: Sequence[str]) -> None:
    """Joints that mirror another one (a gripper's second finger)."""
    for row in range(model.neq):
        if model.eq_type[row] != mujoco.mjtEq.mjEQ_JOINT:
            continue
        follower, leader = (model.joint(int(joint[row])).name for joint in (model.eq_obj1id, model.eq_obj2id))
        if follower not in names:
            continue
        prim = stage.GetPrimAtPath(f"{ROOT}/{follower}")
        prim.AddAppliedSchema("NewtonMimicAPI")
        prim.AddAppliedSchema("MjcEqualityJointAPI")
        prim.CreateRelationship("newton:mimicJoint", custom=False).SetTargets([f"{ROOT}/{leader}"])
        _custom(prim, pxr, "newton:mimicCoef0", "Float", float(model.eq_data[row, 0]))
        _custom(prim, pxr, "newton:mimicCoef1", "Float", float(model.eq_data[row, 1]))
        _doubles(prim, pxr, "mjc:solref", model.eq_solref[row])
        _doubles(prim, pxr, "mjc:solimp", model.eq_solimp[row])
