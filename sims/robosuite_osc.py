"""The arithmetic of the operational-space controller (Khatib 1987) for one arm, compiled by numba.

Import this only where robosuite is installed: numba comes with it. Functions are compiled at their first call, once per
installation.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

compiled: Any = importlib.import_module("numba").njit(cache=True)

STIFFNESS = 150.0
DAMPING = 2.0 * STIFFNESS**0.5
POSTURE_STIFFNESS = 10.0
POSTURE_DAMPING = 2.0 * POSTURE_STIFFNESS**0.5


@compiled
def factor(matrix: Any, start: int, lower: Any) -> bool:
    """Cholesky factor [n, n] of the block of ``matrix`` that begins at ``start``; False where there is none."""
    for i in range(len(lower)):
        for j in range(i + 1):
            total = matrix[start + i, start + j]
            for k in range(j):
                total -= lower[i, k] * lower[j, k]
            if i > j:
                lower[i, j] = total / lower[j, j]
            elif total > 0.0:
                lower[i, i] = np.sqrt(total)
            else:
                return False
    return True


@compiled
def solve(lower: Any, vector: Any) -> None:
    """Solve in place with a Cholesky factor [n, n]."""
    n = len(lower)
    for i in range(n):
        for k in range(i):
            vector[i] -= lower[i, k] * vector[k]
        vector[i] /= lower[i, i]
    for i in range(n - 1, -1, -1):
        for k in range(i + 1, n):
            vector[i] -= lower[k, i] * vector[k]
        vector[i] /= lower[i, i]


@compiled
def multiply(left: Any, right: Any) -> Any:
    """Left [a, n] times right [b, n] transposed; loops, since BLAS may sum in another order on another machine."""
    out = np.zeros((len(left), len(right)))
    for i in range(len(left)):
        for j in range(len(right)):
            for k in range(left.shape[1]):
                out[i, j] += left[i, k] * right[j, k]
    return out


@compiled
def efforts(  # noqa: C901  loops over small matrices
    jacobian: Any, inertia: Any, dofs: Any, speed: Any, lean: Any, bias: Any, pull: Any, axes: Any, goal: Any, out: Any
) -> bool:
    """Joint torques [n] into ``out``; False where a matrix is not positive definite, as after an explosion.

    jacobian [6, nv], inertia [nv, nv], speed [nv], bias [nv] of the whole scene; dofs [n] are the arm's columns. lean
    [n]: how far the joints are from the posture that the redundant joint leans to (rad). pull [3]: from the tool to its
    goal (m); axes, goal [3, 3]: its orientation now and wanted.
    """
    n = len(dofs)
    mass, reach, motion = np.zeros((n, n)), np.zeros((6, n)), np.zeros(n)
    for i in range(n):
        motion[i] = speed[dofs[i]]
        for j in range(n):
            mass[i, j] = inertia[dofs[i], dofs[j]]
        for j in range(6):
            reach[j, i] = jacobian[j, dofs[i]]
    lower, whole, moving, turning = np.zeros((n, n)), np.zeros((6, 6)), np.zeros((3, 3)), np.zeros((3, 3))
    if not factor(mass, 0, lower):
        return False
    spread = reach.copy()
    for row in range(6):
        solve(lower, spread[row])
    mobility = multiply(reach, spread)  # J M⁻¹ Jᵀ
    if not (factor(mobility, 0, whole) and factor(mobility, 0, moving) and factor(mobility, 3, turning)):
        return False
    # Half the sum of the cross products of the axes is the antisymmetric part of goal times axes transposed.
    twist = multiply(goal, axes)
    error = (pull[0], pull[1], pull[2], twist[2, 1] - twist[1, 2], twist[0, 2] - twist[2, 0], twist[1, 0] - twist[0, 1])
    posture = POSTURE_STIFFNESS * lean - POSTURE_DAMPING * motion
    wrench, blocked = np.zeros(6), np.zeros(6)
    for i in range(6):
        wrench[i] = STIFFNESS * (error[i] if i < 3 else 0.5 * error[i])
        for k in range(n):
            wrench[i] -= DAMPING * reach[i, k] * motion[k]
            blocked[i] += reach[i, k] * posture[k]
    # Translation and rotation are decoupled (uncouple_pos_ori): each is solved with its own block.
    solve(moving, wrench[:3])
    solve(turning, wrench[3:])
    # The posture's torques act in the null space of the task: M x - Jᵀ (J M⁻¹ Jᵀ)⁻¹ J x.
    solve(whole, blocked)
    for i in range(n):
        out[i] = bias[dofs[i]]
        for k in range(n):
            out[i] += mass[i, k] * posture[k]
        for k in range(6):
            out[i] += reach[k, i] * (wrench[k] - blocked[k])
    return True
