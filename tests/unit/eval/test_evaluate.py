"""Episodes on a line, counted by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from robopo.errors import ConfigError, DataError, NonFiniteError, ShapeError
from robopo.eval.evaluate import evaluate
from robopo.eval.records import EpisodeRow, EvalReport, compare, compare_returns
from sims.gymnasium_vec import GymnasiumVec

from .fakes import Constant, Drawing, LineSim, Noisy


def test_rows_by_hand() -> None:
    # From 9 at speed 2: 11, 13 > 12 after 2 steps. From 0: 16 after 8 steps, but 14 > 12 already after 7.
    # From 6 at speed 2: 8, 10, 12, 14 after 4. Speed 1 from 0 reaches 8 only, and time is up.
    report = evaluate(Constant(2.0), LineSim(2), seeds=[9, 10, 6])
    assert [row.steps for row in report.rows] == [2, 7, 4]
    assert report.seeds == (9, 10, 6)
    assert all(row.success and row.success_at_end and row.terminated and row.return_ == 1 for row in report.rows)
    assert (report.n, report.successes, report.env_steps, report.mean_return) == (3, 3, 13, 1.0)
    slow = evaluate(Constant(1.0), LineSim(2), seeds=[0, 9])
    assert slow.rows[0] == EpisodeRow(0, False, False, 8, 0.0, False)
    assert slow.rows[1] == EpisodeRow(9, True, True, 4, 1.0, True)
    assert slow.success.point == 0.5
    assert slow.settings["noise_per_episode"] is False


def test_decisions_see_padded_history_and_nothing_after_the_end() -> None:
    policy = Constant(1.0)
    evaluate(policy, LineSim(2), seeds=[0, 9])
    # Ta=3: decisions at x = 0, 3, 6 in environment 0; environment 1 ends at step 4 (in chunk 2) and is frozen.
    assert [seen[0].flatten().tolist() for seen in policy.seen] == [[0, 0], [2, 3], [5, 6]]
    assert [seen[1].flatten().tolist() for seen in policy.seen] == [[9, 9], [11, 12], [11, 12]]
    assert policy.resets == 1


def test_every_environment_plays_exactly_its_episodes() -> None:
    sim = LineSim(3)
    report = evaluate(Constant(5.0), sim, seeds=[9, 9 + 10, 8 + 20, 0])
    assert [row.steps for row in report.rows] == [1, 1, 1, 3]
    assert sim.calls == 1 + 3, "a batch stops as soon as all of its episodes have ended"


@pytest.mark.parametrize("maskable", [True, False])
def test_outcomes_do_not_depend_on_the_number_of_environments_or_on_the_neighbours(maskable: bool) -> None:
    seeds = list(range(20))
    reference = evaluate(Noisy(), LineSim(1), seeds=seeds)
    assert len({row.steps for row in reference.rows}) > 2
    for num_envs in (3, 20, 32):
        assert evaluate(Noisy(), LineSim(num_envs, maskable=maskable), seeds=seeds).rows == reference.rows
    backwards = evaluate(Noisy(), LineSim(4), seeds=seeds[::-1])
    assert backwards.rows[::-1] == reference.rows
    assert evaluate(Noisy(), LineSim(4), seeds=seeds, noise_seed=1).rows != reference.rows
    assert reference.settings["noise_per_episode"] is True


def test_a_policy_without_a_noise_argument_still_repeats() -> None:
    first, second = (evaluate(Drawing(), LineSim(4), seeds=range(8)) for _ in range(2))
    assert first.rows == second.rows
    assert evaluate(Drawing(), LineSim(4), seeds=range(8), noise_seed=1).rows != first.rows


def test_limits_can_be_lowered() -> None:
    report = evaluate(Constant(2.0), LineSim(2), seeds=[0, 9], max_steps=3, action_steps=1)
    assert [(row.steps, row.success) for row in report.rows] == [(3, False), (2, True)]
    assert evaluate(Constant(1.0), LineSim(1), seeds=[0], max_steps=99).rows[0].steps == 8


def test_training_mode_is_restored() -> None:
    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.modes = Constant(5.0), []
            self.spec, self.reset = self.inner.spec, self.inner.reset

        def act(self, obs, *, deterministic=True, generator=None):
            self.modes.append((self.training, torch.is_grad_enabled()))
            return self.inner.act(obs)

    policy = Module()
    evaluate(policy, LineSim(1), seeds=[9])
    assert policy.modes == [(False, False)]
    assert policy.training


def test_faults_say_what_is_wrong() -> None:
    sim = LineSim(2)
    with pytest.raises(NonFiniteError, match="episode with seed 3"):
        evaluate(Constant(float("nan")), sim, seeds=[3, 4])
    with pytest.raises(ShapeError, match="no 'sate'; did you mean 'state'"):
        evaluate(Constant(obs={"sate": 1}), sim, seeds=[0])
    with pytest.raises(ShapeError, match=r"'state' is \[1\] in line, the policy was trained on \[9\]"):
        evaluate(Constant(obs={"state": 9}), sim, seeds=[0])
    with pytest.raises(ShapeError, match=r"takes actions of \[1\], not \[7\]"):
        evaluate(Constant(action_dim=7), sim, seeds=[0])
    with pytest.raises(ConfigError, match="action_mode='joint_position', the simulator 'ee_delta'"):
        evaluate(Constant(action_mode="joint_position"), sim, seeds=[0])
    with pytest.raises(ConfigError, match=r"acts at 20\.0 Hz, the simulator at 10\.0 Hz"):
        evaluate(Constant(control_hz=20.0), sim, seeds=[0])
    with pytest.raises(ConfigError, match="seeds repeat"):
        evaluate(Constant(), sim, seeds=[1, 1])
    with pytest.raises(ConfigError, match="no evaluation seeds"):
        evaluate(Constant(), sim, seeds=[])
    with pytest.raises(ConfigError, match="action_steps=5"):
        evaluate(Constant(), sim, seeds=[1], action_steps=5)


def make_report(*success: bool) -> EvalReport:
    return EvalReport(
        tuple(EpisodeRow(i, flag, flag, 10 + i, float(flag), flag) for i, flag in enumerate(success)), {"a": 1}, 2.5
    )


def test_files_round_trip(tmp_path: Path) -> None:
    report = make_report(True, False)
    report.write_json(tmp_path / "deep" / "eval.json")
    assert EvalReport.read_json(tmp_path / "deep" / "eval.json") == report
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["eval.json"]
    report.write_jsonl(tmp_path / "rows.jsonl")
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == 2
    report.write_csv(tmp_path / "rows.csv")
    assert (tmp_path / "rows.csv").read_text().splitlines() == [
        "seed,success,success_at_end,steps,return_,terminated,diverged",
        "0,True,True,10,1.0,True,False",
        "1,False,False,11,0.0,False,False",
    ]
    (tmp_path / "bad.json").write_text("[]")
    with pytest.raises(DataError, match=r"bad\.json is not an evaluation report"):
        EvalReport.read_json(tmp_path / "bad.json")
    (tmp_path / "old.json").write_text('{"schema": 0}')
    with pytest.raises(DataError, match="schema 0, expected 1"):
        EvalReport.read_json(tmp_path / "old.json")


def test_paired_comparison() -> None:
    before, after = make_report(True, False, False, False, False), make_report(False, True, True, True, True)
    # 4 gained, 1 lost: 2 (C(5,0) + C(5,1)) / 2^5 = 12/32
    assert compare(before, after) == (4, 1, 0.375)
    with pytest.raises(DataError, match="1 seeds appear in one report alone"):
        compare(before, make_report(True, False, False, False))


def test_means() -> None:
    report = make_report(True, False)
    np.testing.assert_allclose([report.mean_steps, report.mean_return], [10.5, 0.5])
    assert report.summary()["success"]["point"] == 0.5


def test_a_simulator_without_success_is_judged_by_its_returns(tmp_path: Path) -> None:
    """Standing still: every row says False, and the report says that this means nothing."""
    spec = {
        "obs": {"state": 17},
        "action_dim": 6,
        "control_hz": 20.0,
        "action_mode": "native",
        "task": "HalfCheetah-v5",
    }

    class Still(Constant):
        def act(self, obs, *, deterministic=True, generator=None):
            return torch.zeros(len(obs["state"]), self.spec.horizon, 6)

    sim = GymnasiumVec("HalfCheetah-v5", 2, max_episode_steps=10)
    report = evaluate(Still(**spec), sim, seeds=[3, 4, 5])
    assert [row.steps for row in report.rows] == [10, 10, 10]
    assert not report.has_success and report.successes == 0
    assert report.headline == f"return {report.mean_return:.4g} ± {report.return_sem:.2g}"
    alone = evaluate(Still(**spec), GymnasiumVec("HalfCheetah-v5", 1, max_episode_steps=10), seeds=[5])
    assert alone.rows[0] == report.rows[2], "an episode is a function of its seed"
    assert alone.return_sem is None and "±" not in alone.headline
    report.write_json(tmp_path / "report.json")
    assert EvalReport.read_json(tmp_path / "report.json") == report


def test_returns_are_paired_by_seed() -> None:
    def rows(values: dict[int, float]) -> EvalReport:
        return EvalReport(tuple(EpisodeRow(seed, False, False, 1, value, False) for seed, value in values.items()))

    change = compare_returns(rows({1: 0.0, 2: 5.0}), rows({2: 7.0, 1: 4.0}))
    assert change == (3.0, 1.0)  # changes 4 and 2: sd sqrt(2), divided by sqrt(2)
    with pytest.raises(DataError, match="2 seeds"):
        compare_returns(rows({1: 0.0}), rows({2: 0.0}))
    assert rows({1: 1.0, 2: 2.0}).headline.startswith("success 0.00")
