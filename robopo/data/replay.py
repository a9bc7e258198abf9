"""A ring of decisions that off-policy methods learn from, and demonstrations in the same form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robopo.data.demo import DemoData
from robopo.errors import CheckpointError, ConfigError, DataError, ShapeError, did_you_mean
from robopo.policies.base import PolicySpec
from robopo.types import RolloutBatch, pick_rows

type Columns = dict[str, Tensor]

_OBS, _NEXT, _IMPROVED = "obs.", "next_obs.", "improved_action"


@dataclass(frozen=True, slots=True)
class Transitions:
    """n decisions: obs and next_obs entries [n, To, D], physical, or pictures; action [n, H, A], normalised.

    reward [n], summed over the executed rows, unscaled. terminated [n] bool: the true end of an episode; a time limit
    is not one, next_obs is then its last observation. index [n] long: rows of the buffer, empty if it isn't from one.
    extras: further columns by name.
    """

    obs: dict[str, Tensor]
    action: Tensor
    reward: Tensor
    terminated: Tensor
    next_obs: dict[str, Tensor]
    extras: dict[str, Tensor]
    index: Tensor

    def __len__(self) -> int:
        return self.reward.shape[0]


class ReplayBuffer:
    """The last ``capacity`` decisions, in tensors allocated once: on ``device``, pictures as uint8 on the host."""

    def __init__(
        self,
        spec: PolicySpec,
        capacity: int,
        *,
        extras: Mapping[str, tuple[int, ...]] | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        """extras: further columns, name -> shape of one row (float); every ``add`` must then bring them."""
        if capacity < 1:
            raise ConfigError(f"capacity={capacity}: at least 1 decision is needed")
        self.spec, self.capacity, self.device = spec, capacity, torch.device(device)
        self.size = 0
        """Decisions held."""
        self._cursor = 0  # the row that the next decision overwrites
        self._extras = dict(extras or {})
        shapes: dict[str, tuple[int, ...]] = {}
        for prefix in (_OBS, _NEXT):
            shapes |= {prefix + key: (spec.obs_steps, size) for key, size in spec.obs.items()}
            shapes |= {prefix + key: (spec.obs_steps, *size) for key, size in spec.images.items()}
        shapes |= {"action": (spec.horizon, spec.action_dim), "reward": (), "terminated": ()}
        if taken := shapes.keys() & self._extras.keys():
            raise ConfigError(f"extras {sorted(taken)} are the buffer's own columns; use other names")
        shapes |= self._extras
        pictures = {prefix + key for prefix in (_OBS, _NEXT) for key in spec.images}
        kinds = {"terminated": torch.bool, **dict.fromkeys(pictures, torch.uint8)}
        self._columns: Columns = {
            name: torch.empty(
                (capacity, *shape),
                device="cpu" if name in pictures else self.device,
                dtype=kinds.get(name, torch.float32),
            )
            for name, shape in shapes.items()
        }

    def __len__(self) -> int:
        return self.size

    def add(
        self,
        *,
        obs: Mapping[str, Tensor],
        action: Tensor,
        reward: Tensor,
        terminated: Tensor,
        next_obs: Mapping[str, Tensor],
        extras: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Append n decisions (shapes as in Transitions); the oldest make room. Raises ShapeError naming the column."""
        given: dict[str, Tensor] = {"action": action, "reward": reward, "terminated": terminated, **(extras or {})}
        given |= {_OBS + key: value for key, value in obs.items()}
        given |= {_NEXT + key: value for key, value in next_obs.items()}
        given[_IMPROVED] = action
        n = reward.shape[0] if reward.ndim == 1 else -1
        for name, column in self._columns.items():
            if name not in given:
                raise ShapeError(f"column {name!r} is missing{did_you_mean(name, given)}")
            expected = (n, *column.shape[1:])
            if given[name].shape != expected:
                raise ShapeError(
                    f"column {name!r} is {list(given[name].shape)}, expected [n, {', '.join(map(str, expected[1:]))}] "
                    f"with the n of reward, which is {list(reward.shape)}"
                )
        kept = min(n, self.capacity)  # of more decisions than fit only the newest stay
        start = self._cursor + n - kept
        rows = torch.arange(start, start + kept, device=self.device) % self.capacity
        for name, column in self._columns.items():
            column[rows.to(column.device)] = given[name][n - kept :].detach().to(column.device, column.dtype)
        self._cursor = (self._cursor + n) % self.capacity
        self.size = min(self.size + n, self.capacity)

    def add_rollout(self, batch: RolloutBatch, *, extras: Mapping[str, Tensor] | None = None) -> None:
        """Append the T * E decisions of ``batch``, in time order. extras: entries [T, E, ...]."""
        flat = {name: value.flatten(0, 1) for name, value in (extras or {}).items()}
        wanted = {*self.spec.obs, *self.spec.images}
        self.add(
            obs={key: value.flatten(0, 1) for key, value in batch.obs.items() if key in wanted},
            action=batch.latents[:, :, -1].flatten(0, 1),
            reward=batch.reward.flatten(),
            terminated=batch.terminated.flatten(),
            next_obs={key: value.flatten(0, 1) for key, value in batch.next_obs.items() if key in wanted},
            extras=flat,
        )

    def sample(self, n: int, generator: torch.Generator) -> Transitions:
        """Draw n decisions with replacement, all equally likely. The generator may live on another device."""
        if self.size == 0:
            raise DataError("the replay buffer is empty: collect decisions or add demonstrations first")
        if n < 1:
            raise ConfigError(f"n={n}: at least 1 decision can be drawn")
        index = torch.randint(self.size, (n,), generator=generator, device=generator.device)
        return self.rows(index.to(self.device))

    def rows(self, index: Tensor) -> Transitions:
        """The decisions ``index`` [n] long, copied."""
        c, keys = pick_rows(self._columns, index), [*self.spec.obs, *self.spec.images]
        return Transitions(
            obs={key: c[_OBS + key] for key in keys},
            action=c["action"],
            reward=c["reward"],
            terminated=c["terminated"],
            next_obs={key: c[_NEXT + key] for key in keys},
            extras={name: c[name] for name in self._extras},
            index=index,
        )

    def improved_actions(self, index: Tensor) -> Tensor:
        """The better actions that were stored for the rows ``index`` [n] -> [n, H, A]; those taken, where none was."""
        return self._improved().index_select(0, index)

    def improve_actions(self, index: Tensor, action: Tensor) -> None:
        """Store better actions [n, H, A] (normalised) for the rows ``index`` [n], beside those that were taken.

        The taken ones stay: they are what the rewards belong to.
        """
        self._improved()[index] = action.detach().to(self.device, torch.float32)

    def _improved(self) -> Tensor:
        """The column of better actions; it exists from the first request on."""
        if _IMPROVED not in self._columns:
            self._columns[_IMPROVED] = self._columns["action"].clone()
        return self._columns[_IMPROVED]

    def state_dict(self) -> dict[str, Any]:
        """The filled rows, as views, and where the next one goes; in a full run this is most of a checkpoint."""
        return {
            "capacity": self.capacity,
            "size": self.size,
            "cursor": self._cursor,
            "columns": {name: column[: self.size] for name, column in self._columns.items()},
        }

    def snapshot(self) -> dict[str, Any]:
        """``state_dict()`` that ``improve_actions`` doesn't change afterwards; only ``add`` may, so read it before."""
        state = self.state_dict()
        columns: Columns = state["columns"]
        kept = {name: column.clone() if name == _IMPROVED else column for name, column in columns.items()}
        return state | {"columns": kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly from ``state_dict()``. Raises CheckpointError when it belongs to another buffer."""
        if int(state["capacity"]) != self.capacity:
            raise CheckpointError(
                f"the saved replay buffer had capacity {state['capacity']}, this one {self.capacity}; "
                "resume with the same capacity"
            )
        columns: Mapping[str, Tensor] = state["columns"]
        if _IMPROVED in columns:
            self._improved()
        else:
            self._columns.pop(_IMPROVED, None)
        found = {name: tuple(value.shape[1:]) for name, value in columns.items()}
        expected = {name: tuple(value.shape[1:]) for name, value in self._columns.items()}
        if found != expected:
            different = sorted(set(found.items()) ^ set(expected.items()))[:2]
            raise CheckpointError(f"the saved replay buffer has other columns, first differences: {different}")
        self.size, self._cursor = int(state["size"]), int(state["cursor"])
        for name, column in self._columns.items():
            column[: self.size] = columns[name].to(column.device)


def demo_transitions(
    data: DemoData,
    spec: PolicySpec,
    normalize: Callable[[Tensor], Tensor],
    *,
    success_reward: float = 1.0,
    gamma: float | None = None,
) -> Transitions:
    """Every frame of the demonstrations as the start of one decision, with a sparse reward for success.

    normalize: physical actions [n, H, A] -> normalised. The decision that reaches the last frame of a successful
    episode gets ``success_reward`` and terminates; rows past the end repeat the last action. Episodes of unknown
    success count as successes. Of failed ones, decisions that reach past the last observation are left out: what
    followed isn't known. With ``gamma`` the extra ``mc_return`` [n] is the discounted reward to go, per decision.
    """
    data.require(spec.obs, spec.action_dim, spec.images)
    keys = [*spec.obs, *spec.images]
    success = np.ones(data.num_episodes, bool) if data.success is None else data.success
    lengths = data.lengths[data.episode_index]  # [N] of each frame's episode
    starts = data.starts[data.episode_index]
    frame = np.arange(data.num_frames)
    left = starts + lengths - frame  # [N] frames to the end, this one included
    good = success[data.episode_index]
    ends = left <= spec.action_steps
    keep = np.flatnonzero(good | (left > spec.action_steps))
    if len(keep) == 0:
        raise DataError(
            f"no failed demonstration is longer than action_steps={spec.action_steps} frames: nothing to learn from"
        )
    first, last, frame = starts[keep, None], (starts + lengths - 1)[keep, None], frame[keep, None]
    history = np.arange(-spec.obs_steps + 1, 1)
    before = np.maximum(frame + history, first)  # [n, To]
    after = np.clip(frame + spec.action_steps + history, first, last)
    rows = np.minimum(frame + np.arange(spec.horizon), last)  # [n, H]
    reward = np.where(ends & good, success_reward, 0.0)[keep].astype(np.float32)
    extras: dict[str, Tensor] = {}
    if gamma is not None:
        decisions = -(-left // spec.action_steps)  # to the end, rounded up
        returns = np.where(good, success_reward * gamma ** (decisions - 1.0), 0.0)[keep]
        extras["mc_return"] = torch.from_numpy(returns.astype(np.float32))
    return Transitions(
        obs={key: torch.from_numpy(data.obs[key][before]) for key in keys},
        action=normalize(torch.from_numpy(data.action[rows])),
        reward=torch.from_numpy(reward),
        terminated=torch.from_numpy((ends & good)[keep]),
        next_obs={key: torch.from_numpy(data.obs[key][after]) for key in keys},
        extras=extras,
        index=torch.empty(0, dtype=torch.long),
    )


def seed_with(buffer: ReplayBuffer, transitions: Transitions) -> None:
    """Put ``transitions`` into ``buffer``. Raises ConfigError when they don't all fit: the first would be lost."""
    n = transitions.reward.shape[0]
    if n > buffer.capacity - buffer.size:
        raise ConfigError(
            f"{n} decisions don't fit into the buffer, which has {buffer.capacity - buffer.size} of {buffer.capacity} "
            "rows free; use a larger capacity or fewer demonstrations"
        )
    buffer.add(
        obs=transitions.obs,
        action=transitions.action,
        reward=transitions.reward,
        terminated=transitions.terminated,
        next_obs=transitions.next_obs,
        extras=transitions.extras,
    )
