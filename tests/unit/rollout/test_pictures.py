"""Pictures through the collectors: bytes on the host, the critic's own entries, and shifted rollouts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from robopo.errors import ShapeError
from robopo.eval.evaluate import evaluate
from robopo.nn.mlp import DiffusionMLPConfig
from robopo.nn.vision_vit import VitConfig
from robopo.policies.base import PolicySpec
from robopo.policies.build import build_chunk_policy
from robopo.policies.chunk_policy import ChunkPolicy
from robopo.policies.config import ChunkPolicyConfig
from robopo.policies.running_stats import scratch_normalizer
from robopo.processes.base import DiffusionConfig, ProcessKind
from robopo.rollout.augmented import AugmentedRollouts
from robopo.rollout.collector import Collector
from robopo.rollout.history import ObsHistory
from robopo.types import RolloutBatch
from tests.helpers.picture_point import PicturePoint

FRONT = "image_front"


def policy_for(sim: PicturePoint, *, obs_steps: int = 2, shift: int = 2) -> ChunkPolicy:
    torch.manual_seed(0)
    shape = sim.spec.observation[FRONT].shape
    spec = PolicySpec(
        {"state": 2}, 2, ("vx", "vy"), obs_steps, 2, 2, 10.0, "velocity", images={FRONT: (shape[0], shape[1], 3)}
    )
    policy = build_chunk_policy(
        spec,
        DiffusionMLPConfig(hidden=(8, 8, 8), time_dim=4),
        DiffusionConfig(kind=ProcessKind.DDIM, num_train_steps=8, num_steps=4),
        ChunkPolicyConfig(),
        scratch_normalizer(spec.obs, (-1.0, -1.0), (1.0, 1.0)),
        VitConfig(features=8, width=16, shift=shift),
    )
    policy.begin_finetuning(2)
    return policy


def collect(source: Collector | AugmentedRollouts, decisions: int = 6) -> RolloutBatch:
    return source.collect(decisions, torch.Generator().manual_seed(0))


def collector(sim: PicturePoint, policy: ChunkPolicy, also: tuple[str, ...] = ()) -> Collector:
    made = Collector(sim, policy, also=also)
    made.reset(3)
    return made


def test_windows_hold_bytes() -> None:
    history = ObsHistory({"state": 2}, num_envs=2, obs_steps=2, images={FRONT: (4, 4, 3)})
    everywhere, picture = np.ones(2, bool), np.full((2, 4, 4, 3), 7, np.uint8)
    history.reset({"state": np.zeros((2, 2)), FRONT: picture}, everywhere)
    history.push({"state": np.ones((2, 2)), FRONT: picture + 1}, np.array([True, False]))
    seen = history.torch("cpu")[FRONT]
    assert seen.dtype == torch.uint8
    assert seen[:, :, 0, 0, 0].tolist() == [[7, 8], [7, 7]]
    assert sum(window.nbytes for window in history.state_dict().values()) == 2 * 2 * (2 * 4 + 4 * 4 * 3)


def test_a_batch_keeps_one_byte_per_number_and_what_the_critic_asks_for() -> None:
    sim = PicturePoint(3, max_episode_steps=7)
    batch = collect(collector(sim, policy_for(sim), also=("environment_state",)))
    assert list(batch.obs) == ["state", "environment_state", FRONT]
    for entries in (batch.obs, batch.next_obs):
        assert entries[FRONT].dtype == torch.uint8 and entries[FRONT].shape == (6, 3, 2, 32, 32, 3)
        assert entries[FRONT].untyped_storage().nbytes() == 6 * 3 * 2 * 32 * 32 * 3
    assert batch.next_obs[FRONT][0].equal(batch.obs[FRONT][1])  # no episode ended there
    shown = (batch.obs[FRONT][..., 0] > 0).flatten(3).any(-1)
    assert shown.all()  # the goal is drawn everywhere


def test_shifted_rollouts_start_with_ratio_one_and_leave_the_rest() -> None:
    sim, policy = PicturePoint(3, max_episode_steps=7), policy_for(PicturePoint(3))
    clean = collect(collector(sim, policy))
    batch = collect(AugmentedRollouts(collector(PicturePoint(3, max_episode_steps=7), policy), policy))
    assert batch.obs[FRONT].dtype == torch.uint8 and not batch.obs[FRONT].equal(clean.obs[FRONT])
    assert batch.latents.equal(clean.latents) and batch.obs["state"].equal(clean.obs["state"])
    assert not batch.log_probs.equal(clean.log_probs)
    flat = {key: value.flatten(0, 1) for key, value in batch.obs.items()}
    again = policy.replay(flat, batch.latents.flatten(0, 1))
    torch.testing.assert_close(again, batch.log_probs.flatten(0, 1))
    assert batch.means is not None and clean.means is not None and batch.means.shape == clean.means.shape
    assert batch.stds is not None and clean.stds is not None and batch.stds.equal(clean.stds)


def test_without_a_shift_the_batch_is_the_collectors() -> None:
    sim, policy = PicturePoint(3), policy_for(PicturePoint(3), shift=0)
    source = AugmentedRollouts(collector(sim, policy), policy)
    batch = collect(source, 2)
    plain = collect(collector(PicturePoint(3), policy), 2)
    assert batch.log_probs.equal(plain.log_probs) and batch.obs[FRONT].equal(plain.obs[FRONT])
    assert source.stats.env_steps > 0


def test_inactive_steps_keep_their_numbers() -> None:
    policy = policy_for(PicturePoint(3))
    batch = collect(collector(PicturePoint(3), policy), 2)
    active = torch.zeros_like(batch.log_probs, dtype=torch.bool)
    active[..., -1] = True
    marked = replace(batch, active=active, log_probs=torch.where(active, batch.log_probs, 0.0))

    class Given:
        stats = None

        def collect(self, num_decisions: int, generator: torch.Generator) -> RolloutBatch:
            return marked

        def state_dict(self) -> None: ...

        def load_state_dict(self, state_dict: object, /) -> None: ...

    out = AugmentedRollouts(Given(), policy).collect(2, torch.Generator().manual_seed(0))
    assert (out.log_probs[..., 0] == 0.0).all() and not out.log_probs[..., 1].equal(marked.log_probs[..., 1])


def test_episodes_are_evaluated_on_pictures() -> None:
    report = evaluate(policy_for(PicturePoint(3)), PicturePoint(3, max_episode_steps=5), seeds=[1, 2, 3, 4])
    assert report.n == 4


def test_a_simulator_without_the_pictures_is_refused() -> None:
    policy = policy_for(PicturePoint(2))
    with pytest.raises(ShapeError, match=r"add sim\.cameras=\[front\] sim\.image_size=32"):
        Collector(PicturePoint(2, cameras=("wrist",)), policy)
    with pytest.raises(ShapeError, match=r"use sim\.image_size=32"):
        Collector(PicturePoint(2, image_size=48), policy)
