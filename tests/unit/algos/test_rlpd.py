"""RLPD: half and half, targets by hand, exact resume, and that it learns a sparse task from demonstrations."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch

from robopo.algos.mixed_batch import symmetric_batch
from robopo.algos.rlpd import RLPD, RLPDConfig
from robopo.errors import ConfigError, DataError
from tests.unit.algos.off_policy_toy import SPEC, critic, filled, full_state, load_full, make_obs, rng, same, soft_actor

CONFIG = RLPDConfig(batch_size=16, actor_lr=1e-2, critic_lr=1e-2, alpha_lr=1e-2, critic_updates=2)


def make(seed: int = 0, config: RLPDConfig = CONFIG) -> RLPD:
    return RLPD(soft_actor(seed), critic(seed=seed + 1), filled(24, 5), config)


def modules(algorithm: RLPD) -> dict[str, torch.nn.Module]:
    return {"policy": algorithm.policy, "critic": algorithm.critic}


def test_two_updates_are_finite_and_move_everything() -> None:
    algorithm = make()
    before = full_state(algorithm, modules(algorithm))
    for _ in range(2):
        metrics = algorithm.update(filled(), updates=2, generator=rng())
        assert all(torch.isfinite(value) for value in metrics)
    after = full_state(algorithm, modules(algorithm))
    assert algorithm.step == 4
    for part in ("policy", "critic"):
        for name, old in before["modules"][part].items():
            changes = not name.startswith("normalizer")
            assert torch.equal(old, after["modules"][part][name]) != changes, name
    assert float(metrics.alpha) != 1.0


def test_resume_is_exact_from_weights_of_all_heads_and_targets() -> None:
    straight = make()
    generator = rng()
    straight.update(filled(), updates=3, generator=generator)
    saved, state = full_state(straight, modules(straight)), generator.get_state()
    straight.update(filled(), updates=3, generator=generator)
    resumed, generator = make(seed=50), rng()
    load_full(resumed, modules(resumed), saved)
    generator.set_state(state)
    resumed.update(filled(), updates=3, generator=generator)
    assert same(full_state(straight, modules(straight)), full_state(resumed, modules(resumed)))
    heads = {value.shape[0] for name, value in saved["algorithm"]["target"].items() if name.startswith("linears")}
    assert heads == {5}


def test_target_counts_the_entropy_and_stops_at_the_end_of_an_episode() -> None:
    algorithm = make()
    batch = filled(64).sample(64, rng())
    with torch.no_grad():
        for parameter in algorithm.target.module.parameters():
            parameter.zero_()
        for linear in algorithm.target.module.linears:
            linear.bias.zero_()
        algorithm.target.module.linears[-1].bias.copy_(torch.arange(5.0).view(5, 1, 1))  # head n says n
        for parameter in algorithm.critic.parameters():
            parameter.zero_()
    # The critic says 0, so its loss is 5 heads times the mean of target^2; the two drawn heads are found by their min.
    loss, _ = algorithm._critic_step(batch, rng())
    with torch.no_grad():
        _, log_prob = algorithm.policy.rsample(algorithm.policy.encode(batch.next_obs), rng())
    candidates = []
    for head in range(4):  # the smaller of two of five is at most 3
        value = head - log_prob  # alpha is 1
        y = batch.reward + 0.99 * torch.where(batch.terminated, 0.0, value)
        candidates.append(float(5 * y.square().mean()))
    assert min(abs(float(loss) - candidate) / candidate for candidate in candidates) < 1e-5


def test_batches_are_half_and_half() -> None:
    online, offline = filled(8, 1), filled(8, 2)
    online._columns["reward"].fill_(1.0)
    offline._columns["reward"].fill_(2.0)
    batch = symmetric_batch(online, offline, 7, rng())
    assert batch.reward.tolist() == [1.0] * 4 + [2.0] * 3
    assert symmetric_batch(filled(0), offline, 7, rng()).reward.tolist() == [2.0] * 7
    assert symmetric_batch(online, filled(0), 7, rng()).reward.tolist() == [1.0] * 7
    with pytest.raises(DataError, match="demonstration"):
        symmetric_batch(filled(0), filled(0), 7, rng())


def test_extras_that_a_buffer_lacks_are_filled_in() -> None:
    batch = symmetric_batch(filled(8, 1), filled(8, 2, mc_return=True), 6, rng(), extras={"mc_return": -1.0})
    assert batch.extras["mc_return"][:3].tolist() == [-1.0] * 3
    assert (batch.extras["mc_return"][3:] >= 0.0).all()


def test_exploration_is_inside_the_bounds_and_updates_follow_decisions() -> None:
    algorithm = make()
    chunk, action = algorithm.explore(make_obs(6, rng()), rng())
    assert chunk.shape == action.shape == (6, 1, 2)
    assert action.abs().max() < 1.0
    torch.testing.assert_close(chunk, algorithm.policy.normalizer.invert("action", action))
    assert algorithm.spec == SPEC
    assert [algorithm.num_updates(n) for n in (1, 10)] == [3, 30]


@pytest.mark.parametrize(
    "wrong",
    [
        {"gamma": 1.1},
        {"tau": 0.0},
        {"batch_size": 0},
        {"critic_updates": 0},
        {"actor_lr": 0.0},
        {"initial_alpha": 0.0},
        {"updates_per_decision": 0.0},
        {"target_heads": 0},
    ],
)
def test_wrong_settings_are_refused(wrong) -> None:
    assert set(wrong) <= {field.name for field in fields(RLPDConfig)}
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        RLPDConfig(**wrong)


def test_more_target_heads_than_there_are_is_refused() -> None:
    with pytest.raises(ConfigError, match="target_heads=6"):
        make(config=RLPDConfig(target_heads=6))
