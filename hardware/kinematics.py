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
    return 0.5 * np.cross(current, target, axisa=-2, axisb=-2, axisc=-2).sum(axis=-1)


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
        rotations, positions = np.empty((count + 1, batch, 3, 3)), np.empty((count + 1, batch, 3))
        cos, sin = np.cos(q)[..., None], np.sin(q)[..., None]
        current = np.broadcast_to(np.eye(3), (batch, 3, 3))
        origin = np.zeros((batch, 3))
        for joint in range(count):
            origin = origin + current @ self.offset[joint]
            placed = current @ self.rotation[joint]
            turned = rotations[joint]
            # Turning about z mixes the first two columns only.
            turned[..., 0] = cos[:, joint] * placed[..., 0] + sin[:, joint] * placed[..., 1]
            turned[..., 1] = cos[:, joint] * placed[..., 1] - sin[:, joint] * placed[..., 0]
            turned[..., 2] = placed[..., 2]
            positions[joint] = origin
            current = turned
        positions[count] = origin + current @ self.tool_offset
        rotations[count] = current @ self.tool_rotation
        return rotations, positions

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
        jacobian[:, :3] = np.cross(axes, lever).transpose(1, 2, 0)
        jacobian[:, 3:] = axes.transpose(1, 2, 0)
        return positions[-1], rotations[-1], jacobian


def dls_step(
    chain: SerialChain, q: Array, target_position: Array, target_rotation: Array, *, damping: float = 0.02
) -> Array:
    """One damped-least-squares step from q [B, n] toward a tool pose; the result respects the joint limits.

    dq = Jᵀ(JJᵀ + λ²I)⁻¹ e (Wampler 1986; Nakamura and Hanafusa 1986): the 6x6 form, exact for redundant arms too.
    """
    position, rotation, jacobian = chain.forward_and_jacobian(q)
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
    move faster than ``velocity_rad_s``; a motion that would need more is cut short joint by joint.
    """
    position, rotation = chain.forward(q)
    target_position = position + delta[:, :3]
    target_rotation = rotation_from_vector(delta[:, 3:]) @ rotation
    target = q
    for _ in range(iterations):
        target = dls_step(chain, target, target_position, target_rotation, damping=damping)
    reach = chain.velocity_rad_s * dt_s
    return np.clip(target, q - reach, q + reach)
