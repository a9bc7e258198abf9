"""What tasks with doors and drawers share."""

from __future__ import annotations

from sims.tasks.arrays import Array, namespace


def yaw_of_pose(pose: Array) -> Array:
    """[E, 7] pose turned about the vertical only -> [E] rad."""
    xp = namespace(pose)
    return 2 * xp.arctan2(pose[..., 6], pose[..., 3])
