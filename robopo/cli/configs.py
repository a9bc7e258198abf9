"""Hydra configurations: where they lie, how overrides are checked, and how they become frozen dataclasses.

YAML under ``configs/`` chooses values; dataclasses registered in Hydra's store give types and ranges. Hydra's compose
API is used instead of its decorator, so that mistakes are answered in robopo's own words.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args, get_type_hints

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from hydra.utils import instantiate
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from robopo.errors import ConfigError, RobopoError, did_you_mean

CFG_FLAGS = ("--cfg", "-c")
OWN_CONFIGS = "ROBOPO_CONFIG_DIR"
"""Environment variable: folders of your own YAML files, laid out as ``configs/`` and separated as in PATH."""


class SavedRun(NamedTuple):
    """What an earlier run was started with: group -> option, and all its values."""

    choices: Mapping[str, str]
    values: Mapping[str, Any]


def config_dir() -> Path:
    """The folder of YAML files: inside an installed package, or at the root of a clone."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "configs", package.parent / "configs"):
        if (folder / "train.yaml").is_file():
            return folder
    raise ConfigError(f"no configs folder beside {package}; reinstall robopo, or run it from a complete clone")


def own_config_dirs() -> list[Path]:
    """Folders of ROBOPO_CONFIG_DIR; a name that robopo has itself stays robopo's. ConfigError for a missing one."""
    folders = [Path(text).resolve() for text in os.environ.get(OWN_CONFIGS, "").split(os.pathsep) if text]
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"{OWN_CONFIGS}: {folder} is no folder; name the one that holds algo/, sim/, ...")
    return folders


def _search_path() -> list[str]:
    """Hydra's override that adds those folders."""
    paths = [f"file://{folder}" for folder in own_config_dirs()]
    return [f"hydra.searchpath={json.dumps(paths)}"] if paths else []


def writable(config: Any) -> DictConfig:
    """A structured node of a frozen dataclass that overrides may change; ``to_object`` gives the frozen object back.

    OmegaConf marks nodes of frozen dataclasses read-only, which would refuse every override.
    """
    node = OmegaConf.structured(config)
    for part in _containers(node):
        OmegaConf.set_readonly(part, False)
    return node


def _containers(node: Any) -> Iterator[DictConfig | ListConfig]:
    if isinstance(node, DictConfig | ListConfig):
        yield node
        keys: Any = list(node) if isinstance(node, DictConfig) else range(len(node))
        for key in keys:
            if not OmegaConf.is_missing(node, key):
                yield from _containers(node[key])


def load_config(name: str, overrides: Sequence[str], register: Mapping[tuple[str, str], Any]) -> DictConfig:
    """Compose ``configs/<name>.yaml`` with ``overrides``.

    register: (group, name) -> dataclass; group "" is the root. Raises ConfigError naming the nearest known option or
    key.
    """
    store = ConfigStore.instance()
    for (group, schema), node in register.items():
        store.store(group=group or None, name=schema, node=writable(node))
    with initialize_config_dir(version_base=None, config_dir=str(config_dir())):
        chosen = [text for text in overrides if _check_group(text)]
        known = _composed(name, chosen)
        values = [_check_key(text, known) for text in overrides if text not in chosen]
        return _composed(name, [*chosen, *values]) if values else known


def load_saved(
    name: str, saved: SavedRun, overrides: Sequence[str], register: Mapping[tuple[str, str], Any]
) -> DictConfig:
    """The configuration of an earlier run with a few values changed. ConfigError when a group is among them."""
    for text in overrides:
        if _check_group(text):
            raise ConfigError(f"{text}: a run that is resumed keeps its {_split(text)[0]}; leave it out")
    config = load_config(name, [f"{group}={option}" for group, option in saved.choices.items()], register)
    config = cast("DictConfig", OmegaConf.merge(config, OmegaConf.create(dict(saved.values))))
    values = [_check_key(text, config) for text in overrides]
    try:
        return cast("DictConfig", OmegaConf.merge(config, OmegaConf.from_dotlist(values)))
    except OmegaConfBaseException as error:
        raise ConfigError(_first_line(error)) from error


def choices(name: str, overrides: Sequence[str]) -> dict[str, str]:
    """Group -> chosen option, after ``load_config``."""
    with initialize_config_dir(version_base=None, config_dir=str(config_dir())):
        chosen = [text for text in overrides if _check_group(text)]
        config = compose(config_name=name, overrides=[*_search_path(), *chosen], return_hydra_config=True)
    return {g: str(option) for g, option in config.hydra.runtime.choices.items() if g in groups() and option}


def to_object(config: DictConfig) -> Any:
    """The frozen dataclass behind a composed configuration, checked by its ``__post_init__``; its lists are tuples."""
    try:
        return _with_tuples(OmegaConf.to_object(config))
    except RobopoError:
        raise
    except (OmegaConfBaseException, ValueError, TypeError) as error:
        raise ConfigError(_first_line(error)) from error


def _with_tuples(value: Any) -> Any:
    """OmegaConf turns tuples into lists; turn them back, so that equal configurations compare equal."""
    if isinstance(value, list):
        return tuple(_with_tuples(item) for item in cast("list[Any]", value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        now = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        changed = {name: new for name, old in now.items() if (new := _with_tuples(old)) is not old}
        return dataclasses.replace(value, **changed) if changed else value
    return value


def build(node: Any, **extra: Any) -> Any:
    """Call the ``_target_`` of a configuration node with its values and ``extra``."""
    if isinstance(node, DictConfig) and (missing := sorted(OmegaConf.missing_keys(node))):
        raise ConfigError(f"{node['_target_']} needs {', '.join(missing)}: for example sim.{missing[0]}=Ant-v5")
    try:
        return instantiate(node, **extra)
    except HydraException as error:
        cause = error.__cause__
        if isinstance(cause, RobopoError):
            raise cause from error
        if isinstance(cause, ValueError | TypeError | OSError | ImportError):
            raise ConfigError(f"{node['_target_']}: {cause}") from error
        raise


def build_for_evaluation(sim: Any, num_envs: int) -> Any:
    """The simulator of a configuration node with other environments side by side; one that is randomised draws its
    settings uniformly, whoever chooses those of training.
    """
    extra = {"sampler": "uniform"} if "sampler" in sim else {}
    return build(sim, num_envs=num_envs, **extra)


def handle_cfg_flag(name: str, argv: Sequence[str], register: Mapping[tuple[str, str], Any]) -> str | None:
    """The composed YAML when ``argv`` asks for it with ``--cfg``, else None."""
    if not any(flag in argv for flag in CFG_FLAGS):
        return None
    overrides = [text for text in argv if text not in CFG_FLAGS]
    return OmegaConf.to_yaml(load_config(name, overrides, register)).rstrip()


def groups() -> dict[str, tuple[str, ...]]:
    """Group name -> its options, from the YAML files."""
    found: dict[str, set[str]] = {}
    for root in (config_dir(), *own_config_dirs()):
        for path in root.glob("*/*.yaml"):
            found.setdefault(path.parent.name, set()).add(path.stem)
    return {name: tuple(sorted(options)) for name, options in sorted(found.items())}


def _split(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"can't read {text!r}: expected key=value, for example seed=3")
    return key.lstrip("+~"), value


def _check_group(text: str) -> bool:
    """Whether the override chooses an option of a group; ConfigError when the option does not exist."""
    key, value = _split(text)
    options = groups().get(key)
    if options is None:
        return False
    if value not in options:
        raise ConfigError(f"{key}={value}: unknown {key}{did_you_mean(value, options)}")
    return True


def _check_key(text: str, known: DictConfig) -> str:
    """The override as Hydra wants it; ConfigError with the nearest known key."""
    key, value = _split(text)
    paths = set(_paths(known))
    if key in paths or any(_is_free(known, key.rsplit(".", depth)[0]) for depth in range(1, key.count(".") + 1)):
        return f"{key}={_enum_name(known, key, value)}" if key in paths else f"+{key}={value}"
    parent, _, leaf = key.rpartition(".")
    siblings = [path for path in paths if path.rpartition(".")[0] == parent]
    target = OmegaConf.select(known, f"{parent}._target_") if parent else None
    settings = sorted({path.rpartition(".")[2] for path in siblings} - {"_target_"})
    if target is not None and not difflib.get_close_matches(leaf, settings, n=1):
        # A choice of the algorithm: a setting of that name that belongs to another one is no help.
        name = target.rpartition(".")[2]
        raise ConfigError(f"unknown setting {key!r}: {name} has {', '.join(settings) or 'no settings'}")
    same_leaf = sorted(path for path in paths if path.rpartition(".")[2] == leaf)
    if same_leaf:
        raise ConfigError(f"unknown setting {key!r}; did you mean {same_leaf[0]!r}?")
    below = {path.rpartition(".")[2]: path for path in paths if parent and path.startswith(f"{parent}.")}
    close = difflib.get_close_matches(leaf, below, n=1)
    if close:  # perhaps inside a choice of the algorithm
        raise ConfigError(f"unknown setting {key!r}; did you mean {below[close[0]]!r}?")
    if not siblings:
        raise ConfigError(f"unknown setting {key!r}{did_you_mean(key, [p for p in paths if '.' not in p])}")
    raise ConfigError(f"unknown setting {key!r}{did_you_mean(key, siblings)}")


def _is_free(known: DictConfig, key: str) -> bool:
    """Whether ``key`` is a mapping without fixed keys, such as ``gate``."""
    node = OmegaConf.select(known, key)
    return isinstance(node, DictConfig) and OmegaConf.get_type(node) is dict and "_target_" not in node


def _enum_name(known: DictConfig, key: str, value: str) -> str:
    """OmegaConf reads enums by name; people write their values, in any case."""
    kind = _enum_type(known, key)
    wanted = value.strip("'\"").lower()
    if kind is None or wanted == "null":
        return value
    members = {str(member.value): member.name for member in kind}
    for text, name in members.items():
        if wanted in (text.lower(), name.lower()):
            return name
    raise ConfigError(f"{key}={value}{did_you_mean(value, members)}")


def _enum_type(known: DictConfig, key: str) -> type[Enum] | None:
    """The enum that a setting takes: of its value, or, where that is null, of its dataclass field."""
    if OmegaConf.is_missing(known, key):
        return None
    current = OmegaConf.select(known, key)
    if isinstance(current, Enum):
        return type(current)
    parent, _, leaf = key.rpartition(".")
    owner = OmegaConf.get_type(OmegaConf.select(known, parent) if parent else known)
    hint = get_type_hints(owner).get(leaf) if current is None and dataclasses.is_dataclass(owner) else None
    return next((kind for kind in get_args(hint) if isinstance(kind, type) and issubclass(kind, Enum)), None)


def _paths(node: DictConfig, prefix: str = "") -> Iterator[str]:
    for key in node:
        path = f"{prefix}{key}"
        yield path
        if not OmegaConf.is_missing(node, key) and isinstance(node[key], DictConfig):
            yield from _paths(node[key], f"{path}.")


def _composed(name: str, overrides: Sequence[str]) -> DictConfig:
    try:
        return compose(config_name=name, overrides=[*_search_path(), *overrides])
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(
            f"{_first_line(error)} (in {name}.yaml with {' '.join(overrides) or 'no overrides'})"
        ) from error


def _first_line(error: BaseException) -> str:
    """The innermost message: Hydra wraps OmegaConf's, which has the facts."""
    cause = error.__cause__ or error
    return str(cause).strip().splitlines()[0]
