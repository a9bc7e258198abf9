"""Heads that share nothing, and see what the value network sees."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from robopo.critics.q_ensemble import QConfig, QEnsemble
from robopo.critics.value import OBS_CLIP
from robopo.errors import ConfigError, ShapeError
from robopo.nn.activation import Activation
from robopo.nn.target import TargetNetwork

OBS = {"state": 3, "environment_state": 2}


def make(config: QConfig | None = None, **kwargs) -> QEnsemble:
    torch.manual_seed(0)
    return QEnsemble(OBS, 2, 2, 2, config or QConfig(hidden=(8, 8)), **kwargs)


def inputs(batch: int = 5, rows: int = 2) -> tuple[dict[str, Tensor], Tensor]:
    generator = torch.Generator().manual_seed(1)
    obs = {key: torch.randn(batch, 2, size, generator=generator) for key, size in OBS.items()}
    return obs, torch.randn(batch, rows, 2, generator=generator)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_each_head_is_a_perceptron_of_its_own(layer_norm: bool) -> None:
    q = make(QConfig(heads=3, hidden=(8, 8), layer_norm=layer_norm, activation=Activation.RELU))
    obs, action = inputs()
    x = torch.cat([obs["environment_state"].flatten(1), obs["state"].flatten(1), action.flatten(1)], 1)
    for head in range(3):
        h = x
        for n, linear in enumerate(q.linears):
            h = functional.linear(h, linear.weight[head].T, linear.bias[head, 0])
            if n < 2:
                h = functional.relu(functional.layer_norm(h, (8,)) if layer_norm else h)
        torch.testing.assert_close(q(obs, action)[head], h[:, 0])


def test_heads_start_apart_and_learn_apart() -> None:
    q = make()
    obs, action = inputs()
    values = q(obs, action)
    assert values.shape == (2, 5)
    assert not torch.allclose(values[0], values[1])
    values[0].sum().backward()
    for parameter in q.parameters():
        assert parameter.grad is not None
        assert bool((parameter.grad[1] == 0).all())


def test_a_start_like_torchs_own() -> None:
    q = make(QConfig(hidden=(256,)))
    torch.manual_seed(0)
    reference = nn.Linear(14, 256)
    assert q.linears[0].weight.std().item() == pytest.approx(reference.weight.std().item(), rel=0.1)


def test_rows_that_never_run_have_no_value() -> None:
    q = make()
    obs, action = inputs(rows=4)
    changed = action.clone()
    changed[:, 2:] += 1.0
    torch.testing.assert_close(q(obs, action), q(obs, changed))


def test_many_actions_of_each_observation() -> None:
    q = make()
    obs, action = inputs()
    actions = torch.stack([action, -action, 2 * action])
    values = q.each_of(obs, actions)
    assert values.shape == (2, 3, 5)
    for m in range(3):
        torch.testing.assert_close(values[:, m], q(obs, actions[m]))


def test_far_observations_are_bounded() -> None:
    class Times100:
        def apply(self, key: str, x: Tensor) -> Tensor:
            return 100.0 * x

    q = make(normalizer=Times100())
    obs, action = inputs()
    cond = q.encode({key: 1e6 * value for key, value in obs.items()})
    assert float(cond.abs().max()) == OBS_CLIP
    assert bool(torch.isfinite(q.score(cond, action)).all())


def test_wrong_inputs_are_named() -> None:
    q = make()
    obs, action = inputs()
    with pytest.raises(ShapeError, match="'state' is missing; did you mean 'stat'"):
        q({"stat": obs["state"], "environment_state": obs["environment_state"]}, action)
    with pytest.raises(ShapeError, match=r"expected \[B, 2, 3\]"):
        q({**obs, "state": obs["state"][:, :1]}, action)
    with pytest.raises(ShapeError, match="2 rows or more"):
        q(obs, action[:, :1])


@pytest.mark.parametrize("bad", [{"heads": 0}, {"hidden": ()}, {"hidden": (8, 0)}])
def test_bad_sizes_are_refused(bad: dict) -> None:
    with pytest.raises(ConfigError):
        QConfig(**bad)


def test_target_follows_slowly_and_resumes() -> None:
    q = make()
    target = TargetNetwork(q, tau=0.25)
    before = [p.detach().clone() for p in target.module.parameters()]
    with torch.no_grad():
        for parameter in q.parameters():
            parameter.add_(1.0)
    target.update()
    for old, new in zip(before, target.module.parameters(), strict=True):
        torch.testing.assert_close(new, old + 0.25)
        assert not new.requires_grad
    other = TargetNetwork(make(), tau=0.25)
    other.load_state_dict(target.state_dict())
    obs, action = inputs()
    assert other.module(obs, action).equal(target.module(obs, action))
    target.reset()
    assert target.module(obs, action).equal(q(obs, action))
    with pytest.raises(ConfigError, match="tau"):
        TargetNetwork(q, tau=0.0)
