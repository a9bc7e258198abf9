from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from robopo.cli.compare import progress_line
from robopo.cli.compare_config import COMPARE, CompareConfig, StudyConfig, read_study
from robopo.cli.compare_plan import Plan
from robopo.cli.configs import load_config, to_object
from robopo.cli.jobs import Job, Progress
from robopo.errors import ConfigError, RobopoError

TASK = {"sim": ["sim=reach", "sim.num_envs=8"], "collect": ["episodes=6"]}


def study(**more: Any) -> CompareConfig:
    given: dict[str, Any] = {
        "tasks": {"reach": TASK},
        "starts": {"clone": ["policy=diffusion_mlp"], "unused": []},
        "methods": {
            "a": {"start": "clone", "train": ["algo=dppo"]},
            "b": {"start": "clone", "train": ["algo.epochs=1"]},
        },
        "seeds": (3, 4),
        "env_steps": 1601,
    }
    return CompareConfig(study=StudyConfig(**{**given, **more}))


def jobs(config: CompareConfig, root: Path = Path("/out")) -> dict[str, Job]:
    return {job.name: job for job in Plan(read_study(config), root).jobs()}


def test_methods_share_one_start_per_task_and_seed() -> None:
    found = jobs(study())
    assert list(found)[:7] == [
        "reach/seed3/demos",
        "reach/seed3/clone",
        "reach/seed3/clone/report",
        "reach/seed3/a",
        "reach/seed3/a/report",
        "reach/seed3/b",
        "reach/seed3/b/report",
    ]
    assert len(found) == 14
    for name in "ab":
        job = found[f"reach/seed4/{name}"]
        assert "checkpoint=/out/reach/seed4/clone" in job.command and job.needs == ("reach/seed4/clone",)
        assert "seed=4" in job.command and "sim.num_threads=1" in job.command and "torch_threads=1" in job.command
        # 8 environments, 25 decisions, 4 rows: 800 control steps an iteration; 1601 need three.
        assert "loop.iterations=3" in job.command
        assert job.resume[-1] == f"resume=/out/reach/seed4/{name}" and not job.can_resume()
    assert found["reach/seed3/clone"].needs == ("reach/seed3/demos",)
    assert "demos=/out/reach/seed3/demos" in found["reach/seed3/clone"].command
    assert "sim.num_envs=8" in found["reach/seed3/a/report"].command
    assert not any("/out" in text for job in found.values() for text in job.settings)  # a moved folder can be resumed


def test_budget_and_overrides() -> None:
    methods = {
        "short": {"start": "clone", "train": ["algo=dppo", "finetune.num_decisions=5"]},
        "said": {"start": "clone", "train": ["algo=dppo"], "steps_per_iteration": 1000},
    }
    found = jobs(study(methods=methods, seeds=(3,), train=["algo.epochs=2"]))
    counts = {name: found[f"reach/seed3/{name}"].command for name in methods}
    assert "loop.iterations=11" in counts["short"]
    assert "loop.iterations=2" in counts["said"]
    command = counts["short"]
    assert command.index("algo.epochs=2") < command.index("finetune.num_decisions=5")  # the method has the last word


def test_existing_demonstrations_and_no_start() -> None:
    methods = {"a": {"start": "clone", "train": ["algo=dppo"]}, "blank": {"train": ["algo=dppo"]}}
    found = jobs(study(tasks={"reach": {**TASK, "demos": "data/reach-{seed}"}}, methods=methods))
    assert "reach/seed3/demos" not in found
    clone = found["reach/seed4/clone"]
    assert "demos=data/reach-4" in clone.command and clone.needs == ()
    blank = found["reach/seed3/blank"]
    assert blank.needs == () and not any(text.startswith("checkpoint=") for text in blank.command)


def test_a_shipped_study_can_be_planned() -> None:
    config: CompareConfig = to_object(load_config("compare", ["study=reach_epochs"], COMPARE))
    assert len(jobs(config)) == 14
    part: CompareConfig = to_object(
        load_config("compare", ["study=lift_push", "tasks=[lift]", "methods=[dppo]"], COMPARE)
    )
    assert {name.split("/")[0] for name in jobs(part)} == {"lift"}
    assert len(jobs(part)) == 15


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"tasks": {}}, "has no tasks"),
        ({"seeds": (1, 1)}, "each of them once"),
        ({"seeds": (1_000_000_000,)}, "reserved"),
        ({"env_steps": 0}, "study.env_steps=0"),
        ({"reference": "c"}, "study.reference=c"),
        ({"methods": {"a b": {"train": []}}}, "become folders"),
        ({"methods": {"clone": {"train": []}}}, "name a start and a method"),
        ({"methods": {"a": {"start": "clown"}}}, "did you mean 'clone'"),
        ({"methods": {"a": {"strat": "clone"}}}, "did you mean 'start'"),
        ({"methods": {"a": ["algo=dppo"]}}, "expected settings"),
        ({"methods": {"a": {"train": "algo=dppo"}}}, "expected a list of overrides"),
        ({"methods": {"a": {"train": ["seed=3"]}}}, "'seed=3' is decided by the comparison"),
        ({"methods": {"a": {"steps_per_iteration": 0}}}, "steps_per_iteration=0"),
        ({"tasks": {"reach": {"sim": []}}}, "must choose a simulator"),
        ({"tasks": {"reach": {**TASK, "sim": ["sim=reach", "algo=dppo"]}}}, "are no settings of a simulator"),
        ({"tasks": {"reach": {**TASK, "measure": "retrun"}}}, "did you mean 'return'"),
        ({"tasks": {"reach": {**TASK, "checkpoints": {"clown": "x"}}}}, "did you mean 'clone'"),
        ({"train": ["out=x"]}, "study.train"),
    ],
)
def test_mistakes_of_a_study_say_where_they_are(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_study(study(**more))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"methods": {"demos": {"train": []}}}, "can't be called 'demos'"),
        ({"methods": {"a": {"start": "clone", "train": ["algo=dpo"]}}}, "did you mean 'dppo'"),
        ({"methods": {"a": {"start": "clone", "train": ["algo.epoch=3"]}}}, "did you mean 'algo.epochs'"),
        ({"tasks": {"reach": {**TASK, "checkpoints": {"clone": "nowhere"}}}}, "nowhere does not exist"),
    ],
)
def test_overrides_are_composed_before_anything_runs(more: dict[str, Any], message: str) -> None:
    with pytest.raises(RobopoError, match=message):
        jobs(study(**more))


def test_a_chosen_part_must_exist() -> None:
    with pytest.raises(ConfigError, match="methods: c;"):
        read_study(CompareConfig(study=study().study, methods=("c",)))


def test_progress_line() -> None:
    line = progress_line(Progress(9, 3, ("x/seed1/a",), 1, 600.0))
    assert line == "1 running (x/seed1/a)  1 failed  eta 10 min"
    assert progress_line(Progress(9, 3, (), 0, None)).endswith("eta ?")
    assert progress_line(Progress(2, 2, (), 0, 0.0)) == "0 running  0 failed"
