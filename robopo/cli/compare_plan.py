"""From a study to jobs: who starts from what, for how many iterations, and where everything lies.

``<out>/<task>/seed<seed>/`` holds ``demos``, a run per start and a run per method; each run has its evaluation under
``report``. Names of jobs are these paths.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from robopo.cli.compare_config import MethodSettings, Study, TaskSettings
from robopo.cli.configs import load_config, to_object
from robopo.cli.jobs import Job
from robopo.cli.schema import COLLECT, TRAIN
from robopo.deploy.checkpoint_spec import read_policy_spec
from robopo.errors import ConfigError
from robopo.train.checkpoint import find_checkpoint, latest_checkpoint

DEMOS = "demos"
REPORT = "report"


@dataclass(frozen=True, slots=True)
class Plan:
    """All jobs of a study below ``root``."""

    study: Study
    root: Path

    def jobs(self) -> list[Job]:
        """Seed by seed, so that a study that is cut short has whole seeds.

        Every configuration is composed and checked here, before anything runs.
        """
        made = {name: _TaskPlan(self, name, task) for name, task in self.study.tasks.items()}
        return [job for seed in self.study.config.seeds for plan in made.values() for job in plan.jobs(seed)]

    def run(self, task: str, seed: int, name: str) -> Path:
        """Folder of a method or a start."""
        return self.root / _name(task, seed, name)

    def report(self, task: str, seed: int, name: str) -> Path:
        """Folder of the evaluation of a method or a start."""
        return self.run(task, seed, name) / REPORT

    def starts(self) -> list[str]:
        """Starts that some method uses."""
        used = [method.start for method in self.study.methods.values() if method.start is not None]
        return list(dict.fromkeys(used))


class _TaskPlan:
    """The jobs of one task; composing them checks their overrides."""

    def __init__(self, plan: Plan, task: str, settings: TaskSettings) -> None:
        if DEMOS in (*plan.study.starts, *plan.study.methods):
            raise ConfigError(f"a start or a method can't be called {DEMOS!r}: that folder holds the demonstrations")
        self._plan, self._task, self._settings = plan, task, settings
        self._common = plan.study.config
        known = load_config("collect", [*settings.sim], COLLECT)
        one_thread = ["sim.num_threads=1"] if OmegaConf.select(known, "sim.num_threads", default="") != "" else []
        self._sim = [*one_thread, *settings.sim]
        self._checkpoints = settings.checkpoints
        to_object(load_config("collect", [*self._sim, *settings.collect], COLLECT))
        self._start_nodes = {name: self._composed(self._cloning(name)) for name in plan.starts()}
        self._training = {name: self._method(name, method) for name, method in plan.study.methods.items()}

    def jobs(self, seed: int) -> Iterator[Job]:
        """Demonstrations, starts, methods; each run is evaluated right after it."""
        made = [start for start in self._plan.starts() if start not in self._checkpoints]
        if made and self._settings.demos is None:
            yield self._collect(seed)
        for start in self._plan.starts():
            if start in made:
                yield self._clone(start, seed)
            if seed == self._common.seeds[0] or "{seed}" in self._checkpoints.get(start, "{seed}"):
                # a checkpoint that all seeds share is evaluated once
                yield self._evaluate(start, seed, self._start_folder(start, seed), needs=start in made)
        for method, overrides in self._training.items():
            yield self._train(method, overrides, seed)
            yield self._evaluate(method, seed, self._plan.run(self._task, seed, method), needs=True)

    def _cloning(self, start: str) -> list[str]:
        return ["algo=bc", "torch_threads=1", *self._sim, *self._plan.study.starts[start]]

    def _composed(self, overrides: Sequence[str]) -> Any:
        node = load_config("train", overrides, TRAIN)
        to_object(node)
        return node

    def _method(self, name: str, method: MethodSettings) -> list[str]:
        """Overrides of its training, with the iterations that the budget allows."""
        overrides = ["torch_threads=1", *self._sim, *self._common.train, *self._settings.train, *method.train]
        node = self._composed(overrides)
        size = method.steps_per_iteration or self._iteration_steps(name, method, node)
        return [*overrides, f"loop.iterations={-(-self._common.env_steps // size)}"]

    def _iteration_steps(self, name: str, method: MethodSettings, node: Any) -> int:
        """E · T · Ta: environments, decisions of each, executed rows of a decision."""
        envs = OmegaConf.select(node, "sim.num_envs")
        decisions = OmegaConf.select(node, "finetune.num_decisions")
        rows = OmegaConf.select(node, "policy.action_steps")
        if method.start in self._checkpoints:
            folder = find_checkpoint(self._start_folder(str(method.start), self._common.seeds[0]))
            rows = read_policy_spec(folder).action_steps
        elif method.start is not None:
            rows = OmegaConf.select(self._start_nodes[method.start], "policy.action_steps")
        if not (envs and decisions and rows):
            raise ConfigError(
                f"how many control steps an iteration of {name} takes is unknown (sim.num_envs={envs}, "
                f"finetune.num_decisions={decisions}, policy.action_steps={rows}); say it: "
                f"study.methods.{name}.steps_per_iteration=…"
            )
        return int(envs) * int(decisions) * int(rows)

    def _start_folder(self, start: str, seed: int) -> Path:
        given = self._checkpoints.get(start)
        return self._plan.run(self._task, seed, start) if given is None else Path(given.replace("{seed}", str(seed)))

    def _collect(self, seed: int) -> Job:
        folder = self._plan.run(self._task, seed, DEMOS)
        overrides = [*self._sim, *self._settings.collect, f"seed={seed}"]
        name = _name(self._task, seed, DEMOS)
        return Job(name, _robopo("collect", *overrides, f"out={folder}"), tuple(overrides), folder, kind=DEMOS)

    def _clone(self, start: str, seed: int) -> Job:
        given = self._settings.demos
        demos = self._plan.run(self._task, seed, DEMOS) if given is None else Path(given.replace("{seed}", str(seed)))
        needs = (_name(self._task, seed, DEMOS),) if given is None else ()
        settings = [*self._cloning(start), f"seed={seed}", *([] if given is None else [f"demos={given}"])]
        return self._trained(start, seed, settings, f"demos={demos}", needs)

    def _train(self, method: str, overrides: Sequence[str], seed: int) -> Job:
        start = self._plan.study.methods[method].start
        settings = [*overrides, f"seed={seed}"]
        if start is None:
            return self._trained(method, seed, settings, "", ())
        given = self._checkpoints.get(start)
        needs = (_name(self._task, seed, start),) if given is None else ()
        settings.append(f"start={start if given is None else given}")
        return self._trained(method, seed, settings, f"checkpoint={self._start_folder(start, seed)}", needs)

    def _trained(self, name: str, seed: int, settings: list[str], source: str, needs: tuple[str, ...]) -> Job:
        folder = self._plan.run(self._task, seed, name)
        overrides = [text for text in settings if not text.startswith(("start=", "demos="))]
        return Job(
            name=_name(self._task, seed, name),
            command=_robopo("train", *overrides, *([source] if source else []), f"run_dir={folder}"),
            settings=tuple(settings),
            folder=folder,
            needs=needs,
            kind=f"{self._task}/{name}",
            resume=_robopo("train", f"resume={folder}"),
            can_resume=lambda: latest_checkpoint(folder) is not None,
        )

    def _evaluate(self, name: str, seed: int, run: Path, *, needs: bool) -> Job:
        folder = self._plan.report(self._task, seed, name)
        common = self._common
        settings = ["torch_threads=1", *self._sim, "videos=0", *common.evaluate, f"n={common.n}"]
        return Job(
            name=f"{_name(self._task, seed, name)}/{REPORT}",
            command=_robopo("eval", *settings, f"checkpoint={run}", f"out={folder}"),
            settings=tuple(settings),
            folder=folder,
            needs=(_name(self._task, seed, name),) if needs else (),
            kind=f"{self._task}/{REPORT}",
        )


def _name(task: str, seed: int, name: str) -> str:
    return f"{task}/seed{seed}/{name}"


def _robopo(command: str, *overrides: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "robopo.cli.main", command, *overrides)
