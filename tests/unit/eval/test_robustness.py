"""Worst-case figures of synthetic episodes whose truth is known."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from robopo.errors import ConfigError, DataError, NonFiniteError
from robopo.eval.robustness import Robustness, bootstrapped_cvar, cvar, robustness, spearman
from robopo.eval.robustness_plots import headline, plot_parameters, robustness_html
from tests.unit.eval.test_report import VOID, outline


def episodes(n: int = 2000) -> Robustness:
    """Success falls with mass from 1 to 0.2 and doesn't care about friction; the return is the success minus mass."""
    rng = np.random.default_rng(0)
    mass, friction, delay = rng.uniform(0.5, 2.5, n), rng.uniform(0, 1, n), rng.integers(0, 3, n)
    success = rng.random(n) < 1 - 0.4 * (mass - 0.5)
    parameters = {"object_mass": mass, "pad_friction": friction, "latency_steps": delay, "kp": np.ones(n)}
    return robustness(parameters, success - mass, success)


def test_cvar_by_hand() -> None:
    values = np.array([4.0, 1.0, 3.0, 2.0])
    assert cvar(values, 1.0) == 2.5
    assert cvar(values, 0.5) == 1.5
    assert cvar(values, 0.25) == 1.0
    assert cvar(values, 0.1) == 1.0  # less than one setting: the worst
    assert cvar(values, 0.375) == pytest.approx((1 + 0.5 * 2) / 1.5)  # half of the second one
    assert cvar(np.stack([values, -values]), 0.5).tolist() == [1.5, -3.5]


def test_cvar_of_uniform_numbers_and_its_interval() -> None:
    found = [bootstrapped_cvar(np.random.default_rng(k).random(500), 0.1, resamples=300) for k in range(60)]
    assert np.mean([one.value for one in found]) == pytest.approx(0.05, abs=0.004)  # half the 0.1 quantile
    covered = np.mean([one.low <= 0.05 <= one.high for one in found])
    assert covered >= 0.85
    assert bootstrapped_cvar(np.arange(50.0), 0.5) == bootstrapped_cvar(np.arange(50.0), 0.5)


def test_spearman_by_hand_with_ties() -> None:
    x = np.array([1.0, 2.0, 3.0, 4.0])
    assert spearman(x, np.exp(x))[0] == pytest.approx(1.0)
    assert spearman(x, -x)[0] == pytest.approx(-1.0)
    assert spearman(x, np.array([1.0, 3.0, 2.0, 4.0]))[0] == pytest.approx(0.8)  # 1 - 6·2/(4·15)
    # ranks 1.5 1.5 3.5 3.5 against 1 2 3 4: 4 / √(4·5)
    assert spearman(x, np.array([0.0, 0.0, 1.0, 1.0]))[0] == pytest.approx(4 / np.sqrt(20))
    assert spearman(x, np.ones(4)) == (0.0, 1.0)
    noise = [spearman(*np.random.default_rng(k).random((2, 40)))[1] for k in range(200)]
    assert np.mean(np.array(noise) < 0.05) < 0.1


def test_curves_find_the_parameter_that_matters() -> None:
    report = episodes()
    curves = {curve.parameter: curve for curve in report.curves}
    assert list(curves) == ["object_mass", "pad_friction", "latency_steps"]  # kp never varied
    mass = curves["object_mass"]
    assert mass.success_trend < -0.3 and mass.success_p < 1e-6 and mass.return_trend < -0.7
    assert abs(curves["pad_friction"].success_trend) < 0.06 and curves["pad_friction"].success_p > 0.01
    for part in mass.bins:
        truth = 1 - 0.4 * (part.middle - 0.5)
        assert part.success.low - 0.05 <= truth <= part.success.high + 0.05
        assert part.return_sem is not None
        assert part.mean_return == pytest.approx(truth - part.middle, abs=4 * part.return_sem)
    assert sum(part.n for part in mass.bins) == report.n == 2000
    assert [(part.low, part.high) for part in curves["latency_steps"].bins] == [(0, 0), (1, 1), (2, 2)]
    assert report.worst is not None
    name, worst = report.worst
    assert name == "object_mass" and worst is mass.bins[-1]
    assert worst.low == pytest.approx(2.25, abs=0.01)


def test_cvar_is_over_settings_not_episodes() -> None:
    # Two settings, ten episodes each: 90 % and 20 %.
    success = np.array([True] * 9 + [False] + [True] * 2 + [False] * 8)
    report = robustness({"mass": [1.0] * 10 + [2.0] * 10}, success.astype(float), success, alphas=(0.1, 0.5, 1.0))
    assert report.settings == 2
    assert [tail.value for tail in report.success_cvar] == pytest.approx([0.2, 0.2, 0.55])
    # A setting each: max(0, 1 - failures / α)
    alone = robustness({"mass": np.arange(20.0)}, success.astype(float), success, alphas=(0.1, 0.9))
    assert [tail.value for tail in alone.success_cvar] == pytest.approx([0.0, 1 - 0.45 / 0.9])


def test_the_worst_bin_needs_enough_episodes() -> None:
    success = np.array([False] * 4 + [True, False] * 10)
    report = robustness({"delay": [0.0] * 4 + [1.0] * 20}, success.astype(float), success)
    assert report.worst is not None and report.worst[1].low == 1.0
    few = robustness({"delay": [0.0, 1.0]}, [0.0, 1.0], [False, True])
    assert few.worst is None and headline(few).endswith("2 settings.")


def test_json_holds_everything_as_plain_values(tmp_path: Path) -> None:
    report = episodes(200)
    tree = json.loads(report.write_json(tmp_path / "robustness.json").read_text())
    assert tree["n"] == 200 and tree["success"]["point"] == report.success.point
    assert tree["worst"]["parameter"] == "object_mass"
    assert tree["curves"][0]["bins"][0]["success"].keys() == {"low", "high", "point"}
    assert [tail["alpha"] for tail in tree["success_cvar"]] == [0.1, 0.5]


@pytest.mark.parametrize("has_success", [True, False])
def test_pictures_and_section(tmp_path: Path, has_success: bool) -> None:
    success = np.arange(40) % 3 > 0
    report = robustness({"a<b": np.arange(40.0)}, np.arange(40.0), success, has_success=has_success)
    pictures = plot_parameters(report, tmp_path)
    assert pictures["a<b"].read_bytes().startswith(b"\x89PNG")
    VOID.add("img")
    try:
        page = outline(robustness_html(report, pictures))
    finally:
        VOID.discard("img")
    assert "a<b" in page.text and page.all("img")[0]["src"].startswith("data:image/png;base64,")
    assert ("Success, worst 10 %" in page.text) is has_success
    assert "Return, worst 50 %" in page.text
    assert "of 40 episodes" in page.text or "over 40 episodes" in page.text


def test_wrong_arrays_are_refused() -> None:
    with pytest.raises(DataError, match="no parameters"):
        robustness({}, [1.0], [True])
    with pytest.raises(DataError, match="'mass'"):
        robustness({"mass": [1.0, 2.0]}, [1.0], [True])
    with pytest.raises(DataError, match="N > 0"):
        robustness({"mass": []}, [], [])
    with pytest.raises(NonFiniteError, match="episode 1"):
        robustness({"mass": [1.0, 2.0]}, [1.0, float("nan")], [True, False])
    with pytest.raises(ConfigError, match="shares"):
        robustness({"mass": [1.0]}, [1.0], [True], alphas=(0.0,))
