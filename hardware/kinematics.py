"""Batched forward kinematics, Jacobians and damped-least-squares inverse kinematics of a serial arm, in numpy.

The same functions turn end-effector actions into joint targets in the simulator and in front of a real arm, so a policy
meets one controller in both places. Frames are written ``R [..., 3, 3]`` and ``p [..., 3]``; angles are radians,
metres.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]


def rotation_from_quaternion(quaternion: Array) -> Array:
    """Quaternion [..., 4] (wxyz, any non-zero length) → rotation matrices [..., 3, 3]."""
    w, x, y, z = np.moveaxis(quaternion / np.linalg.norm(quaternion, axis=-1, keepdims=True), -1, 0)
    rows = (
        (1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
        (2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
        (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
    )
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)


def rotation_from_vector(vector: Array) -> Array:
    """Rotation vectors [..., 3] (axis times angle, rad) → rotation matrices [..., 3, 3] (Rodrigues)."""
    angle = np.linalg.norm(vector, axis=-1)[..., None, None]
    half = 0.5 * angle
    # sin(a)/a and (1-cos(a))/a² through sinc stay finite at angle 0.
    first, second = np.sinc(angle / np.pi), 0.5 * np.sinc(half / np.pi) ** 2
    cross = skew(vector)
    return np.eye(3) + first * cross + second * (cross @ cross)


def skew(vector: Array) -> Array:
    """[..., 3] → [..., 3, 3] with ``skew(a) @ b == cross(a, b)``."""
    out = np.zeros((*vector.shape[:-1], 3, 3))
    out[..., 0, 1], out[..., 0, 2], out[..., 1, 2] = -vector[..., 2], vector[..., 1], -vector[..., 0]
    out[..., 1, 0], out[..., 2, 0], out[..., 2, 1] = vector[..., 2], -vector[..., 1], vector[..., 0]
    return out


def rotation_error(target: Array, current: Array) -> Array:
    """Rotation vector [..., 3] that turns ``current`` into ``target`` in world axes.

    Exact to second order and bounded by 1 (it is sin(angle)·axis), which is what a damped iteration wants.
    """
    # The sum of the columns' cross products, read off the antisymmetric part of one matrix product.
    both = target @ np.swapaxes(current, -1, -2)
    pairs = ((2, 1), (0, 2), (1, 0))
    return 0.5 * np.stack([both[..., i, j] - both[..., j, i] for i, j in pairs], axis=-1)


@dataclass(frozen=True, slots=True, eq=False)
class SerialChain:
    """Revolute joints about the local z axis. Joint j's frame sits at ``offset[j]``, ``rotation[j]`` in frame j-1.

    offset [n, 3] m; rotation [n, 3, 3]; tool_offset [3], tool_rotation [3, 3] in the last joint's frame;
    low_rad, high_rad, velocity_rad_s [n].
    """

    offset: Array
    rotation: Array
    tool_offset: Array
    tool_rotation: Array
    low_rad: Array
    high_rad: Array
    velocity_rad_s: Array

    @property
    def num_joints(self) -> int:
        """N."""
        return len(self.offset)

    def joint_frames(self, q: Array) -> tuple[Array, Array]:
        """Q [B, n] → rotations [n+1, B, 3, 3] and positions [n+1, B, 3] of the joints, the tool last, in the base
        frame.
        """
        batch, count = q.shape
        cos, sin = np.cos(q.T)[..., None], np.sin(q.T)[..., None]  # [n, B, 1]
        x_axis, y_axis = self.rotation[:, None, :, 0], self.rotation[:, None, :, 1]
        # Each joint's frame in the one before it, as homogeneous matrices; turning about z mixes two columns only.
        local = np.zeros((count, batch, 4, 4))
        local[..., :3, 0] = cos * x_axis + sin * y_axis
        local[..., :3, 1] = cos * y_axis - sin * x_axis
        local[..., :3, 2] = self.rotation[:, None, :, 2]
        local[..., :3, 3] = self.offset[:, None]
        local[..., 3, 3] = 1.0
        tool = np.eye(4)
        tool[:3, :3], tool[:3, 3] = self.tool_rotation, self.tool_offset
        frames = np.empty((count + 1, batch, 4, 4))
        frames[0] = local[0]
        for joint in range(1, count):
            np.matmul(frames[joint - 1], local[joint], out=frames[joint])
        np.matmul(frames[count - 1], tool, out=frames[count])
        return frames[..., :3, :3], frames[..., :3, 3]

    def forward(self, q: Array) -> tuple[Array, Array]:
        """Q [B, n] → tool position [B, 3] and rotation [B, 3, 3] in the base frame."""
        rotations, positions = self.joint_frames(q)
        return positions[-1], rotations[-1]

    def forward_and_jacobian(self, q: Array) -> tuple[Array, Array, Array]:
        """Q [B, n] → tool position [B, 3], rotation [B, 3, 3], geometric Jacobian [B, 6, n] (linear rows first)."""
        rotations, positions = self.joint_frames(q)
        axes = rotations[:-1, ..., 2]  # [n, B, 3]
        lever = positions[-1] - positions[:-1]
        jacobian = np.empty((len(q), 6, self.num_joints))
        for row, (i, j) in enumerate(((1, 2), (2, 0), (0, 1))):  # axis x lever
            jacobian[:, row] = (axes[..., i] * lever[..., j] - axes[..., j] * lever[..., i]).T
        jacobian[:, 3:] = axes.transpose(1, 2, 0)
        return positions[-1], rotations[-1], jacobian


def dls_step(
    chain: SerialChain, q: Array, target_position: Array, target_rotation: Array, *, damping: float = 0.02
) -> Array:
    """One damped-least-squares step from q [B, n] toward a tool pose; the result respects the joint limits.

    dq = Jᵀ(JJᵀ + λ²I)⁻¹ e (Wampler 1986; Nakamura and Hanafusa 1986): the 6x6 form, exact for redundant arms too.
    """
    return _solved(chain, q, chain.forward_and_jacobian(q), target_position, target_rotation, damping)


def _solved(
    chain: SerialChain,
    q: Array,
    found: tuple[Array, Array, Array],
    target_position: Array,
    target_rotation: Array,
    damping: float,
) -> Array:
    position, rotation, jacobian = found
    error = np.concatenate([target_position - position, rotation_error(target_rotation, rotation)], axis=-1)
    gram = jacobian @ jacobian.transpose(0, 2, 1)
    gram[:, range(6), range(6)] += damping**2
    weights = np.linalg.solve(gram, error[..., None])
    dq = (jacobian.transpose(0, 2, 1) @ weights)[..., 0]
    return np.clip(q + dq, chain.low_rad, chain.high_rad)


def track_delta(
    chain: SerialChain, q: Array, delta: Array, *, dt_s: float, damping: float = 0.02, iterations: int = 2
) -> Array:
    """Joint targets [B, n] that move the tool from its pose at q [B, n] by ``delta`` [B, 6] within ``dt_s``.

    delta: translation (m) and rotation vector (rad), both in base axes. Joint limits hold, and no joint is asked to
    move faster than ``velocity_rad_s``; a motion that would need more is cut short joint by joint, with fewer than six
    joints all together.
    """
    found = chain.forward_and_jacobian(q)
    target_position = found[0] + delta[:, :3]
    target_rotation = rotation_from_vector(delta[:, 3:]) @ found[1]
    target = _solved(chain, q, found, target_position, target_rotation, damping)
    for _ in range(iterations - 1):
        target = dls_step(chain, target, target_position, target_rotation, damping=damping)
    reach = chain.velocity_rad_s * dt_s
    if chain.num_joints >= 6:
        return np.clip(target, q - reach, q + reach)
    # Cutting joints one by one tilts the tool, which an arm of five joints can't undo while it moves sideways.
    step = target - q
    return q + step / np.maximum(np.abs(step / reach).max(axis=-1, keepdims=True), 1.0)
