"""The code and YAML of docs/extending.md, as a reader would copy them: trained with, resumed, evaluated."""

from __future__ import annotations

import importlib
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from robopo.cli.main import main
from robopo.policies.base import PolicySpec
from tests.helpers.point_mass import PointMass

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "extending.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TINY = [
    "sim.num_envs=4",
    "sim.max_episode_steps=8",
    "finetune.num_decisions=4",
    "finetune.critic_hidden=[16,16,16]",
    "algo.batch_size=16",
    "algo.epochs=2",
    "algo.critic_warmup_iterations=0",
    "evaluation.n=2",
    "evaluation.num_envs=2",
    "loop.eval_every=0",
]


def blocks() -> dict[str, str]:
    """Path in its first line -> the block."""
    found = [(text.split("\n", 1)[0], text) for _, text in BLOCK.findall(PAGE.read_text(encoding="utf-8"))]
    return {head.removeprefix("# "): text for head, text in found if re.fullmatch(r"# [\w/]+\.(py|yaml)", head)}


def commands() -> list[list[str]]:
    shell = [text for kind, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")) if kind == "bash"]
    return [shlex.split(line)[1:] for text in shell for line in text.splitlines() if line.startswith("robopo ")]


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, text in blocks().items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (tmp_path / "mine" / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ROBOPO_CONFIG_DIR", "my_configs")
    threads = torch.get_num_threads()
    yield tmp_path
    torch.set_num_threads(threads)
    for name in [name for name in sys.modules if name.split(".")[0] == "mine"]:
        del sys.modules[name]


def test_the_page_has_what_it_promises() -> None:
    expected = {"regions", "noise", "flow", "policy", "learn"}
    assert set(blocks()) == {f"mine/{name}.py" for name in expected} | {
        "my_configs/algo/mine.yaml",
        "my_configs/policy/mine.yaml",
    }
    assert [command[0] for command in commands()] == ["train", "eval"]


def test_the_row_trains_from_the_command_line_resumes_and_is_evaluated(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train, evaluate = commands()
    assert main([*train, *TINY, "loop.iterations=1"]) == 0, capsys.readouterr().err
    assert main(["train", "resume=runs/mine", "loop.iterations=2"]) == 0, capsys.readouterr().err
    assert "2 iterations" in capsys.readouterr().out
    run = (copied / "runs/mine/run.json").read_text()
    assert "mine.regions.KLPenalty" in run
    assert '"weight": 2' in run
    lines = (copied / "runs/mine/metrics.jsonl").read_text()
    assert '"chain_kl"' in lines
    assert main([*evaluate, "n=2", "videos=0", "num_envs=2"]) == 0, capsys.readouterr().err


def test_mistakes_in_your_own_parts_are_explained(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train, _ = commands()
    assert main([*train, *TINY, "algo.trust_region.far=0"]) == 2
    assert "far=0" in capsys.readouterr().err
    assert main(["train", "algo=mina"]) == 2
    assert "did you mean 'mine'" in capsys.readouterr().err
    assert main([*train, *TINY, "policy.make=null"]) == 2
    assert "policy.make is empty" in capsys.readouterr().err
    assert main([*train, *TINY, "policy.make._target_=collections.OrderedDict"]) == 2
    assert "collections.OrderedDict made a OrderedDict" in capsys.readouterr().err


def test_the_policy_of_the_page_learns_in_python(copied: Path) -> None:
    learn = importlib.import_module("mine.learn").learn
    sim = PointMass(8)
    spec = PolicySpec(
        obs={name: feature.shape[0] for name, feature in sim.spec.observation.items()},
        action_dim=2,
        action_names=("vx", "vy"),
        control_hz=10.0,
        action_mode=sim.spec.action_mode,
    )
    metrics = learn(sim, spec, 2)
    assert [m.iteration for m in metrics] == [0, 1]
    assert metrics[1].chain_kl is not None
    assert metrics[1].chain_kl > 0.0
