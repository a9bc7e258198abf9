"""Settings of ``robopo compare``: a study names tasks, starts, methods and seeds."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, cast

from omegaconf import MISSING

from robopo.errors import ConfigError, did_you_mean
from robopo.eval.comparison import Measure
from robopo.eval.seeds import check_training_seed

MANAGED = ("seed", "run_dir", "resume", "checkpoint", "demos", "loop.iterations", "out", "study")
"""Settings that the comparison decides; they can't stand among overrides."""


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """One task."""

    sim: tuple[str, ...] = ()
    """Overrides that choose the simulator; they reach every step: [sim=lift, sim.num_envs=64]."""
    collect: tuple[str, ...] = ()
    """Overrides of robopo collect: [episodes=120, imperfection=0.93]."""
    demos: str | None = None
    """Existing demonstrations for all seeds instead; ``{seed}`` stands for the seed."""
    checkpoints: dict[str, str] = field(default_factory=dict[str, str])
    """Start -> existing run or checkpoint folder, instead of cloning one; ``{seed}`` stands for the seed."""
    train: tuple[str, ...] = ()
    """Overrides of robopo train for all methods on this task."""
    measure: Measure | None = None
    """success or return; null: success where the simulator knows it."""
    thresholds: tuple[float, ...] | None = None
    """Values of the measure whose first crossing is reported; null: 0.95 for success, none for return."""

    def __post_init__(self) -> None:
        if self.measure is not None:
            if self.measure not in [*Measure]:
                raise ConfigError(f"measure={self.measure}{did_you_mean(str(self.measure), map(str, Measure))}")
            object.__setattr__(self, "measure", Measure(self.measure))
        if self.thresholds is not None:
            object.__setattr__(self, "thresholds", tuple(float(value) for value in self.thresholds))


@dataclass(frozen=True, slots=True)
class MethodSettings:
    """One method."""

    start: str | None = None
    """Name of the start; null: from scratch."""
    train: tuple[str, ...] = ()
    """Overrides of robopo train: [algo=dppo, finetune.ft_steps=5]."""
    steps_per_iteration: int | None = None
    """Control steps of one iteration; null: num_envs · num_decisions · action_steps."""

    def __post_init__(self) -> None:
        if self.steps_per_iteration is not None and self.steps_per_iteration < 1:
            raise ConfigError(f"steps_per_iteration={self.steps_per_iteration}: at least 1 is needed")


@dataclass(frozen=True, slots=True)
class StudyConfig:
    """What is compared, and how much each run may take."""

    tasks: dict[str, Any] = field(default_factory=dict[str, Any])
    """Task name -> settings of ``TaskSettings``."""
    starts: dict[str, Any] = field(default_factory=dict[str, Any])
    """Start name -> overrides of robopo train algo=bc: {flow: [policy=flow_mlp]}."""
    methods: dict[str, Any] = field(default_factory=dict[str, Any])
    """Method name -> settings of ``MethodSettings``."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Training seeds, the same for every method and task."""
    env_steps: int = 700_000
    """Control steps of training that every run is given, rounded up to whole iterations."""
    train: tuple[str, ...] = ()
    """Overrides of robopo train for all methods on all tasks."""
    evaluate: tuple[str, ...] = ()
    """Overrides of robopo eval for all runs."""
    n: int = 200
    """REPORT episodes per run."""
    reference: str = ""
    """Method that the others are compared with; empty: the first."""
    kl_metric: str = "chain_kl_joint"
    """Logged mean KL between the policies before and after an update; its sum is a run's achieved KL."""

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(f"study.seeds={[*self.seeds]}: expected at least one seed, each of them once")
        for seed in self.seeds:
            check_training_seed(seed)
        if self.env_steps < 1 or self.n < 1:
            raise ConfigError(f"study.env_steps={self.env_steps}, study.n={self.n}: at least 1 each")


@dataclass(frozen=True, slots=True)
class CompareConfig:
    """``robopo compare``."""

    study: Any = MISSING
    """What is compared (group ``study``)."""
    tasks: tuple[str, ...] = ()
    """Only these tasks of the study; empty: all."""
    methods: tuple[str, ...] = ()
    """Only these methods of the study; empty: all."""
    out: str | None = None
    """Folder; null: runs/compare/<time>-<study>. One that holds this comparison already is continued."""
    resume: str | None = None
    """Folder of a comparison to continue, with the settings that it was started with."""
    processes: int | None = None
    """Runs side by side; null: one per usable core."""

    def __post_init__(self) -> None:
        if self.processes is not None and self.processes < 1:
            raise ConfigError(f"processes={self.processes}: at least 1 is needed")


class Study(NamedTuple):
    """A study with its parts read, and only the chosen ones of them."""

    config: StudyConfig
    tasks: dict[str, TaskSettings]
    starts: dict[str, tuple[str, ...]]
    methods: dict[str, MethodSettings]


def read_study(config: CompareConfig) -> Study:
    """Read and check the parts of the study. Raises ConfigError with the place of the mistake."""
    raw: StudyConfig = config.study
    tasks = {name: _read(TaskSettings, f"study.tasks.{name}", value) for name, value in raw.tasks.items()}
    methods = {name: _read(MethodSettings, f"study.methods.{name}", value) for name, value in raw.methods.items()}
    starts = {name: _words(f"study.starts.{name}", value) for name, value in raw.starts.items()}
    study = Study(raw, _chosen("tasks", config.tasks, tasks), starts, _chosen("methods", config.methods, methods))
    for name in (*tasks, *starts, *methods):
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
            raise ConfigError(f"{name!r}: names of tasks, starts and methods become folders; use a-z, 0-9, _ and -")
    if both := set(starts) & set(methods):
        raise ConfigError(f"{sorted(both)} name a start and a method; give them different names")
    if raw.reference and raw.reference not in methods:
        raise ConfigError(f"study.reference={raw.reference}{did_you_mean(raw.reference, methods)}")
    for name, method in study.methods.items():
        _check_method(f"study.methods.{name}", method, study)
    for name, task in study.tasks.items():
        _check_task(f"study.tasks.{name}", task, study)
    for name, overrides in starts.items():
        _check_overrides(f"study.starts.{name}", overrides)
    _check_overrides("study.train", raw.train)
    _check_overrides("study.evaluate", raw.evaluate)
    return study


def _chosen[T](what: str, names: Sequence[str], known: Mapping[str, T]) -> dict[str, T]:
    if not known:
        raise ConfigError(f"the study has no {what}; configs/study/lift_push.yaml is an example")
    for name in names:
        if name not in known:
            raise ConfigError(f"{what}: {name}{did_you_mean(name, known)}")
    return {name: known[name] for name in (names or known)}


def _read[T](kind: type[T], where: str, value: Any) -> T:
    """The dataclass ``kind`` from a mapping of the YAML file."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: expected settings such as {{train: [algo=dppo]}}, found {value!r}")
    hints = {entry.name: entry.type for entry in fields(kind)}  # pyright: ignore[reportArgumentType] - a dataclass
    given = cast("Mapping[str, Any]", value)
    for key in given:
        if key not in hints:
            raise ConfigError(f"{where}: unknown setting {key!r}{did_you_mean(key, hints)}")
    read = {key: _words(f"{where}.{key}", v) if hints[key] == "tuple[str, ...]" else v for key, v in given.items()}
    try:
        return kind(**read)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {error}") from error


def _words(where: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ConfigError(f"{where}: expected a list of overrides such as [algo=dppo, seed=3], found {value!r}")
    return tuple(str(text) for text in cast("Sequence[Any]", value))


def _check_method(where: str, method: MethodSettings, study: Study) -> None:
    _check_overrides(f"{where}.train", method.train)
    if method.start is not None and method.start not in study.starts:
        raise ConfigError(f"{where}.start={method.start}{did_you_mean(method.start, study.starts)}")


def _check_task(where: str, task: TaskSettings, study: Study) -> None:
    if not any(text.startswith("sim=") for text in task.sim):
        raise ConfigError(f"{where}.sim={[*task.sim]}: must choose a simulator, for example [sim=lift]")
    if strange := [text for text in task.sim if not text.startswith(("sim=", "sim."))]:
        raise ConfigError(f"{where}.sim: {strange} are no settings of a simulator; put them under train or collect")
    for key in ("collect", "train"):
        _check_overrides(f"{where}.{key}", getattr(task, key))
    for start in task.checkpoints:
        if start not in study.starts:
            raise ConfigError(f"{where}.checkpoints.{start}{did_you_mean(start, study.starts)}")


def _check_overrides(where: str, overrides: Sequence[str]) -> None:
    for text in overrides:
        if text.partition("=")[0] in MANAGED:
            raise ConfigError(f"{where}: {text!r} is decided by the comparison; leave it out")


COMPARE = {("", "compare_schema"): CompareConfig, ("study", "study_schema"): StudyConfig}
