"""Collect, remember, update: the loop's contract with a method that has a replay buffer."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from robopo.algos.dipo import DIPO, DIPOConfig
from robopo.algos.idql import IDQL, IDQLConfig
from robopo.algos.off_policy import Explorer
from robopo.data.replay import ReplayBuffer
from robopo.errors import ConfigError, NonFiniteError
from robopo.rollout.collector import Collector
from robopo.train.nan_guard import NanGuard
from robopo.train.off_policy import OffPolicyStage
from robopo.train.tree import decode_tree, encode_tree
from tests.helpers.point_mass import PointMass
from tests.unit.algos.off_policy_kit import SPEC, make_critic, make_policy, make_value, rng, same, weights


def make(kind: str = "idql", *, capacity: int = 40, decisions: int = 3, **options: Any) -> OffPolicyStage:
    policy = make_policy()
    critic = make_critic(policy)
    modules = {"policy": policy, "critic": critic}
    if kind == "idql":
        modules["value"] = make_value(policy)
        config = IDQLConfig(batch_size=8, replay_ratio=1.0, candidates=2, actor_lr=1e-3)
        algorithm: Any = IDQL(policy, critic, modules["value"], config)
    else:
        algorithm = DIPO(policy, critic, DIPOConfig(batch_size=8, replay_ratio=1.0, actor_lr=1e-3, action_lr=1e-2))
    collector = Collector(PointMass(4, max_episode_steps=7, radius=0.75), Explorer(algorithm))
    collector.reset(0)
    return OffPolicyStage(
        collector=collector,
        algorithm=algorithm,
        buffer=ReplayBuffer(SPEC, capacity),
        modules=modules,
        num_decisions=decisions,
        sample_generator=rng(1),
        update_generator=rng(2),
        export=lambda folder: (folder / "policy").write_text("here") and None,
        **options,
    )


@pytest.fixture
def guard(tmp_path: Path) -> NanGuard:
    return NanGuard(tmp_path)


def test_one_iteration(guard: NanGuard, tmp_path: Path) -> None:
    stage = make()
    before = weights(stage._modules["policy"])
    metrics = stage.step(guard)
    assert metrics["buffer"] == 12
    assert metrics["updates"] == 2  # 12 new decisions, each used once in batches of 8
    assert 12 <= metrics["env_steps"] <= 24
    names = {"steps_per_s", "train/episodes", "train/success", "return", "train/length", "time/collect_s"}
    assert names | {"time/update_s", "train/diverged", "actor_loss", "q_loss"} <= metrics.keys()
    assert not same(before, weights(stage._modules["policy"]))
    assert stage.step(guard)["env_steps"] > metrics["env_steps"]
    assert stage.evidence() == {}
    stage.export(tmp_path)
    assert (tmp_path / "policy").read_text() == "here"


def test_updates_wait_until_the_buffer_is_full_enough(guard: NanGuard) -> None:
    stage = make(start_size=20)
    before = weights(stage._modules["policy"])
    metrics = stage.step(guard)
    assert metrics["updates"] == 0
    assert "actor_loss" not in metrics
    assert same(before, weights(stage._modules["policy"]))
    assert stage.step(guard)["updates"] == 2


@pytest.mark.parametrize("kind", ["idql", "dipo"])
def test_resume_is_exact_through_the_files(kind: str, guard: NanGuard) -> None:
    """Also once the ring has wrapped, and with a method that rewrites it."""
    whole = make(kind, capacity=30)
    for _ in range(3):
        whole.step(guard)
    state = decode_tree(*encode_tree(whole.state()))
    again = make(kind, capacity=30)
    again.step(guard)  # whatever it did before is forgotten
    again.restore(state)
    left, right = [whole.step(guard) for _ in range(2)], [again.step(guard) for _ in range(2)]
    for a, b in zip(left, right, strict=True):
        timing = {name for name in a if name.startswith("time/") or name == "steps_per_s"}
        for name in a.keys() - timing:
            assert a[name] == b[name] or (math.isnan(a[name]) and math.isnan(b[name])), name
    for name, module in whole._modules.items():
        assert same(weights(module), weights(again._modules[name]))
    index = torch.arange(30)
    assert whole._buffer.improved_actions(index).equal(again._buffer.improved_actions(index))


class Poisoned:
    """A collector whose second batch holds a NaN."""

    def __init__(self, inner: Collector) -> None:
        self.inner, self.calls = inner, 0

    @property
    def stats(self) -> Any:
        return self.inner.stats

    def collect(self, num_decisions: int, generator: torch.Generator) -> Any:
        batch = self.inner.collect(num_decisions, generator)
        self.calls += 1
        if self.calls == 2:
            batch.reward[1, 2] = torch.nan
        return batch

    def state_dict(self) -> Any:
        return self.inner.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.inner.load_state_dict(state)


def test_a_nan_never_enters_the_buffer(guard: NanGuard) -> None:
    stage = make()
    stage._collector = Poisoned(stage._collector)
    stage.step(guard)
    with pytest.raises(NonFiniteError, match=r"batch.reward \(1 of 12"):
        stage.step(guard)
    assert stage._buffer.size == 12
    evidence = decode_tree(*encode_tree(stage.evidence()))
    with pytest.raises(NonFiniteError, match=r"batch.reward"):
        make().replay(evidence, guard)


@pytest.mark.parametrize("kind", ["idql", "dipo"])
def test_a_failed_update_can_be_done_again(kind: str, guard: NanGuard, monkeypatch: pytest.MonkeyPatch) -> None:
    """The evidence is of before the update, even where the update rewrote the buffer."""
    stage = make(kind)
    stage.step(guard)
    found: dict[str, dict[str, float]] = {}
    original = guard.check

    def fail_once(name: str, tree: Any) -> None:
        if name == "metrics" and not found:
            found["metrics"] = dict(tree)
            raise NonFiniteError("metrics are what the test wants")
        original(name, tree)

    monkeypatch.setattr(guard, "check", fail_once)
    with pytest.raises(NonFiniteError, match="the test wants"):
        stage.step(guard)
    evidence = decode_tree(*encode_tree(stage.evidence()))
    assert make(kind).replay(evidence, guard) == found["metrics"]


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_decisions=0"):
        make(decisions=0)
    with pytest.raises(ConfigError, match="capacity 40"):
        make(start_size=41)
