"""Evaluation happens in the simulator that the policy was trained in, unless another is asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from robopo.cli.configs import config_dir, load_config
from robopo.cli.evaluate import evaluate_folder, make_sim
from robopo.cli.pipeline import scratch_policy
from robopo.cli.schema import TRAIN, EvalConfig
from robopo.cli.train import main
from robopo.errors import ConfigError
from robopo.eval.records import EvalReport
from robopo.policies.io import load_policy, save_policy
from sims.mujoco_vec import MujocoVec

SIM = {"_target_": "sims.mujoco_vec.MujocoVec", "task": "lift", "arm": "ur5e", "num_envs": 64, "max_episode_steps": 7}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("policy")
    sim = MujocoVec("lift", 1, arm="ur5e")
    config = load_config("train", ["policy=gaussian_scratch"], TRAIN)
    from robopo.cli.configs import to_object

    policy = scratch_policy(sim.spec, to_object(config).policy, torch.device("cpu"))
    sim.close()
    save_policy(where, policy, {"simulator": SIM})
    return where


def test_the_checkpoint_says_which_simulator_and_arm(folder: Path) -> None:
    sim = make_sim(EvalConfig(), load_policy(folder), folder, 3)
    assert isinstance(sim, MujocoVec)
    assert (sim.num_envs, sim.layout.kind.name, sim.spec.max_episode_steps) == (3, "ur5e", 7)
    sim.close()


def test_another_simulator_can_be_asked_for(folder: Path) -> None:
    sim = make_sim(EvalConfig(sim={**SIM, "max_episode_steps": 9}), load_policy(folder), folder, 2)
    assert sim.spec.max_episode_steps == 9
    sim.close()


def test_a_checkpoint_from_elsewhere_runs_no_code(folder: Path, tmp_path: Path) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    tree = json.loads((tmp_path / "config.json").read_text())
    tree["provenance"]["simulator"] = {"_target_": "os.system", "command": "touch /tmp/never"}
    (tmp_path / "config.json").write_text(json.dumps(tree))
    with pytest.raises(ConfigError, match=r"os\.system.*give sim="):
        make_sim(EvalConfig(), load_policy(tmp_path), tmp_path, 1)


def test_training_writes_it_down(tmp_path: Path) -> None:
    run = tmp_path / "run"
    code = main(
        [
            "sim=reach", "sim.num_envs=2", "sim.max_episode_steps=8", "policy=gaussian_scratch", "algo=ppo_scratch",
            "from_scratch=true", "loop.iterations=1", "finetune.num_decisions=4", "evaluation.n=2", f"run_dir={run}",
        ]
    )  # fmt: skip
    assert code == 0 and config_dir().is_dir()
    (saved,) = run.glob("checkpoints/*/config.json") if (run / "checkpoints").is_dir() else [None]
    assert saved is not None
    assert json.loads(saved.read_text())["provenance"]["simulator"]["max_episode_steps"] == 8


def test_a_randomised_simulator_is_reported_by_parameter(folder: Path, tmp_path: Path) -> None:
    varied = {**SIM, "randomize": {"object_mass": [0.5, 2.0]}, "sampler": {"name": "pdts", "batch_size": 4}}
    config = EvalConfig(sim=varied, n=4, num_envs=2, videos=0, out=str(tmp_path / "report"))
    report, out = evaluate_folder(config, load_policy(folder), folder)
    masses = [row.parameters["object_mass"] for row in report.rows]
    assert len(set(masses)) == 4 and all(0.5 <= mass <= 2.0 for mass in masses)
    again, _ = evaluate_folder(config, load_policy(folder), folder)
    assert [row.parameters for row in again.rows] == [row.parameters for row in report.rows]  # uniform, by seed
    header, first, *_ = (out / "episodes.csv").read_text().splitlines()
    assert header.split(",")[-1] == "object_mass" and float(first.split(",")[-1]) == pytest.approx(masses[0])
    assert "object_mass" in json.loads((out / "robustness.json").read_text())["curves"][0].values()
    page = (out / "report.html").read_text()
    assert "Where the world differs" in page and "data:image/png;base64," in page
    assert EvalReport.read_json(out / "report.json").rows == report.rows
