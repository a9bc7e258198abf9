"""Drawing several chunks and taking the critic's favourite, also after saving."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from robopo.algos.best_of_n_io import CRITIC_CONFIG, CRITIC_WEIGHTS, load_acting, save_best_of_n
from robopo.critics.q_ensemble import QConfig, QEnsemble
from robopo.errors import CheckpointError, ConfigError
from robopo.nn.activation import Activation
from robopo.policies.best_of_n import BestOfN
from robopo.policies.io import load_policy, save_policy
from tests.unit.algos.off_policy_kit import make_policy, rng


class FirstNumber(nn.Module):
    """Two heads: the first number of the chunk, and one more than it."""

    def each_of(self, obs: dict[str, Tensor], actions: Tensor) -> Tensor:
        return torch.stack([actions[..., 0, 0], actions[..., 0, 0] + 1.0])


def observations(batch: int = 3) -> dict[str, Tensor]:
    return {key: torch.randn(batch, 1, 2, generator=rng(8)) for key in ("state", "environment_state")}


def saved(folder: Path) -> BestOfN:
    policy = make_policy().eval()
    config = QConfig(heads=3, hidden=(8, 8), layer_norm=True, activation=Activation.RELU)
    critic = QEnsemble(policy.spec.obs, 1, 2, 2, config, policy.normalizer)
    acting = BestOfN(policy, critic, 5)
    save_best_of_n(folder, acting, {"seed": 3})
    return acting


def test_the_favourite_of_each_observation_is_taken() -> None:
    acting = BestOfN(make_policy(), FirstNumber(), 6)
    obs = observations()
    proposals = acting.propose(obs, deterministic=True, generator=rng())
    assert proposals.shape == (6, 3, 3, 2)
    q = acting.judge(obs, proposals)
    torch.testing.assert_close(q, proposals[..., 0, 0])  # the smaller head
    chunk = acting.act(obs, generator=rng())
    expected = torch.stack([proposals[q[:, b].argmax(), b] for b in range(3)])
    torch.testing.assert_close(acting.policy.normalizer.apply("action", chunk), expected, atol=1e-5, rtol=0)


def test_proposals_belong_to_their_observation() -> None:
    """Of one observation, M proposals differ; rows of the batch are not mixed up."""
    acting = BestOfN(make_policy(), FirstNumber(), 4)
    obs = observations()
    seen: dict[str, Tensor] = {}
    original = acting.policy.act

    def spy(obs: dict[str, Tensor], **kwargs) -> Tensor:
        seen.update(obs)
        return original(obs, **kwargs)

    acting.policy.act = spy  # type: ignore[method-assign]
    proposals = acting.propose(obs, deterministic=True, generator=rng())
    assert seen["state"].view(4, 3, 1, 2).equal(obs["state"].expand(4, 3, 1, 2))
    assert not proposals[0].allclose(proposals[1])


def test_one_candidate_is_the_policy_itself() -> None:
    policy = make_policy()
    acting = BestOfN(policy, FirstNumber(), 1)
    obs = observations()
    torch.testing.assert_close(acting.act(obs, generator=rng()), policy.act(obs, generator=rng()), atol=1e-5, rtol=0)
    chunk, chain = acting.sample_chain(obs, generator=rng())
    assert chunk.equal(policy.sample_chain(obs, generator=rng())[0])
    assert chain.latents.shape == (3, 1, 3, 2)
    assert acting.replay(obs, chain.latents).shape == (3, 0)
    with pytest.raises(ConfigError, match="candidates=0"):
        BestOfN(policy, FirstNumber(), 0)


def test_a_saved_one_acts_the_same(tmp_path: Path) -> None:
    acting = saved(tmp_path)
    loaded = load_acting(tmp_path)
    assert isinstance(loaded, BestOfN)
    obs = observations()
    assert loaded.act(obs, generator=rng()).equal(acting.act(obs, generator=rng()))
    assert loaded.spec == acting.spec
    assert not loaded.training


def test_a_plain_policy_is_loaded_as_it_is(tmp_path: Path) -> None:
    policy = make_policy().eval()
    save_policy(tmp_path, policy, {})
    obs = observations()
    assert load_acting(tmp_path).act(obs, generator=rng()).equal(policy.act(obs, generator=rng()))


def test_the_proposing_policy_can_be_loaded_alone(tmp_path: Path) -> None:
    acting = saved(tmp_path)
    obs = observations()
    assert load_policy(tmp_path).act(obs, generator=rng()).equal(acting.policy.act(obs, generator=rng()))


def test_damage_is_found(tmp_path: Path) -> None:
    saved(tmp_path)
    weights = (tmp_path / CRITIC_WEIGHTS).read_bytes()
    (tmp_path / CRITIC_WEIGHTS).write_bytes(weights[:-1] + b"\x00")
    with pytest.raises(CheckpointError, match=CRITIC_WEIGHTS):
        load_acting(tmp_path)
    (tmp_path / CRITIC_WEIGHTS).write_bytes(weights)
    description = json.loads((tmp_path / CRITIC_CONFIG).read_text())
    (tmp_path / CRITIC_CONFIG).write_text(json.dumps(description | {"schema": "other"}))
    with pytest.raises(CheckpointError, match="schema 'other'"):
        load_acting(tmp_path)
    wrong = description | {"critic": description["critic"] | {"heads": 2}}
    (tmp_path / CRITIC_CONFIG).write_text(json.dumps(wrong))
    with pytest.raises(CheckpointError, match="doesn't describe"):
        load_acting(tmp_path)
    (tmp_path / CRITIC_CONFIG).unlink()
    with pytest.raises(CheckpointError, match="must lie beside"):
        load_acting(tmp_path)


def test_another_policys_critic_is_refused(tmp_path: Path) -> None:
    saved(tmp_path / "a")
    save_policy(tmp_path / "a", make_policy(seed=5), {"acts_by": "robopo.best_of_n/1"})
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        load_acting(tmp_path / "a")


def test_only_an_ensemble_can_be_saved(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="FirstNumber"):
        save_best_of_n(tmp_path, BestOfN(make_policy(), FirstNumber(), 2), {})
