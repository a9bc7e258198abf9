"""When the normaliser of a policy without data may move."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from robopo.train.nan_guard import NanGuard
from robopo.types import RolloutBatch

from .toys import on_policy_stage


def test_bounds_move_after_the_update_and_before_the_next_rollout(tmp_path: Any) -> None:
    """A rollout and its update see one normaliser, so the ratio of the first minibatch is 1."""
    stage = on_policy_stage(statistics=True)
    seen: list[tuple[str, list[float]]] = []

    def watch(owner: Any, name: str) -> None:
        call = getattr(owner, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            seen.append((name, stage._modules["normalizer"].bounds("state")[0].tolist()))
            return call(*args, **kwargs)

        setattr(owner, name, watched)

    watch(stage._collector, "collect")
    watch(stage._algorithm, "update")
    guard = NanGuard(tmp_path)
    for _ in range(2):
        stage.step(guard)
    names, bounds = zip(*seen, strict=True)
    assert names == ("collect", "update", "collect", "update")
    assert bounds[0] == bounds[1] == [-1.0, -1.0]
    assert bounds[2] == bounds[3] != bounds[0]
    assert stage.state()["observation_stats"]["count"] == 2 * 4 * 3
    assert torch.equal(stage._modules["normalizer"].bounds("state")[0], stage.state()["modules"]["normalizer"]["low_0"])


def test_what_waiting_environments_see_is_not_counted(tmp_path: Any) -> None:
    """A collector that lets environments wait repeats their first observation: that would draw the mean to it."""
    stage, use = on_policy_stage(statistics=True), torch.ones(4, 3, dtype=torch.bool)
    use[1:, 2] = False
    collect, batches = stage._collector.collect, []

    def waiting(*args: Any) -> RolloutBatch:
        batches.append(dataclasses.replace(collect(*args), extras={"use": use}))
        return batches[-1]

    stage._collector.collect = waiting  # type: ignore[method-assign]
    stage.step(NanGuard(tmp_path))
    statistics = stage.state()["observation_stats"]
    assert statistics["count"] == int(use.sum()) == 9
    expected = batches[0].obs["state"][use][:, -1].double().mean(0)
    torch.testing.assert_close(statistics["mean"]["state"], expected)
