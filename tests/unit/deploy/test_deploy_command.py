"""What the command tells, returns and decides; nothing moves here."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hardware.gate_config import GateConfig
from robopo.cli import deploy as command
from robopo.cli.schema import DeployCommandConfig
from robopo.deploy.config import DeployReport
from robopo.deploy.realtime import timing
from tests.unit.deploy import dummies


def report(events: Path = Path("events.jsonl"), **changes: object) -> DeployReport:
    zeros = dict.fromkeys(("successes", "steps", "gate_interventions", "gate_ticks", "rejected_chunks"), 0)
    nothing = timing([])
    values = {
        "episodes": 1, "holds": 0, "faults": 0, "estops": 0, "period_p50_ms": 10.0, "period_p99_ms": 11.0,
        "lateness": nothing, "inference": nothing, "delay": nothing, "realtime": False, "stopped_by": "",
        "events_path": events, **zeros, **changes,
    }  # fmt: skip
    return DeployReport(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, 0),
        ({"stopped_by": "SIGINT"}, 0),
        ({"holds": 1}, 1),
        ({"faults": 1}, 1),
        ({"estops": 1}, 1),
        ({"stopped_by": "SIGINT", "holds": 1}, 1),
        ({"stopped_by": "STALE_COMMAND"}, 1),
    ],
)
def test_exit_code_and_what_is_said_about_the_recording(tmp_path, monkeypatch, capsys, changes, code):
    monkeypatch.setattr(command, "find_policy", lambda path: path)
    monkeypatch.setattr(command, "run_deployment", lambda *_: report(**changes))
    arguments = [f"checkpoint={tmp_path}", f"out={tmp_path}"]
    assert command.main(arguments) == code
    assert "nothing was recorded" in capsys.readouterr().out
    (tmp_path / "dataset").mkdir()
    command.main(arguments)
    assert f"recorded in {tmp_path / 'dataset'}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("attributes", "goes_on"), [({}, False), ({"simulated": False}, False), ({"simulated": True}, True)]
)
def test_only_a_simulated_cell_goes_on_after_a_hold(tmp_path, monkeypatch, attributes, goes_on):
    def nothing(*_: object) -> None:
        return None

    cell = SimpleNamespace(
        arm=None, observe=nothing, resolver=nothing, success=nothing, reset=nothing, close=nothing,
        gate_config=lambda settings: GateConfig(), **attributes,
    )  # fmt: skip
    seen = []
    monkeypatch.setattr(command, "build", lambda *_, **__: cell)
    monkeypatch.setattr(command, "deploy", lambda settings, **_: seen.append(settings))
    folder = dummies.write_checkpoint(tmp_path / "policy")
    command.run_deployment(DeployCommandConfig(), folder, tmp_path / "out")
    assert [settings.continue_after_hold for settings in seen] == [goes_on]
    assert np.isclose(seen[0].gate.tick_s, 0.01)
