"""What the control process must know about a policy, read from its folder without loading torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robopo.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class DeployedPolicy:
    """Sizes and timing of a policy: the part of ``PolicySpec`` that deployment needs."""

    obs: Mapping[str, int]
    """Observation key -> D, sorted."""
    action_dim: int
    """A."""
    obs_steps: int
    """To."""
    horizon: int
    """H."""
    action_steps: int
    """Ta, rows executed before the next decision."""
    control_hz: float
    action_mode: str
    task: str = ""
    robot: str = ""
    """The arm that it was trained with, for example ``franka``; empty where the checkpoint doesn't say."""

    @property
    def dt_s(self) -> float:
        """Seconds per row."""
        return 1.0 / self.control_hz

    @property
    def obs_size(self) -> int:
        """Numbers in one decision's observation: To * sum of D."""
        return self.obs_steps * sum(self.obs.values())


def read_policy_spec(folder: Path) -> DeployedPolicy:
    """Read ``config.json`` of a checkpoint folder. CheckpointError says what is missing."""
    path = folder / "config.json"
    try:
        config: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path}: not a readable policy configuration ({error}); is {folder} a checkpoint folder?"
        ) from error
    spec = config.get("spec")
    if not isinstance(spec, dict):
        raise CheckpointError(f"{path} has no 'spec' entry, found {sorted(config)}; save the policy with this version")
    if spec.get("images"):
        raise CheckpointError(
            f"{folder} holds a policy that sees pictures ({', '.join(sorted(spec['images']))}); robopo deploy feeds "
            "numbers alone, so use a policy of states there"
        )
    try:
        return DeployedPolicy(
            obs={str(key): int(spec["obs"][key]) for key in sorted(spec["obs"])},
            action_dim=int(spec["action_dim"]),
            obs_steps=int(spec["obs_steps"]),
            horizon=int(spec["horizon"]),
            action_steps=int(spec["action_steps"]),
            control_hz=float(spec["control_hz"]),
            action_mode=str(spec["action_mode"]),
            task=str(spec.get("task", "")),
            robot=str(((config.get("provenance") or {}).get("simulator") or {}).get("arm", "")),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: the 'spec' entry is incomplete ({error!r})") from error
