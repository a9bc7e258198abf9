"""``robopo doctor``: can the main job run here, and if not, what to do."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path

from rich.console import Console
from rich.table import Table

from robopo.errors import ConfigError, did_you_mean
from sims.cores import usable_cores


class Status(StrEnum):
    """How a check went."""

    OK = "ok"
    NOTE = "note"
    """Works, with a reservation."""
    FAIL = "fail"
    """The main job can't run."""


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the table."""

    name: str
    status: Status
    found: str
    advice: str = ""


RENDER_PROGRAM = """
import mujoco
from sims.render import Renderer
model = mujoco.MjModel.from_xml_string(
    '<mujoco><worldbody><light pos="0 0 3"/><camera name="c" pos="0 0 2"/>'
    '<geom type="box" size=".3 .3 .3" rgba="1 0 0 1"/></worldbody></mujoco>')
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
frame = Renderer(model, width=64, height=64).frame(data, "c")
raise SystemExit(0 if frame[32, 32, 0] > frame[32, 32, 1] + 50 else "the frame has no red box in it")
"""
DEBIAN_PACKAGES = {"egl": "libegl1 libgl1-mesa-dri", "osmesa": "libosmesa6"}
FLAGS = ("--json", "--replay")


def main(argv: Sequence[str]) -> int:
    """Print the table (or JSON) and return 0, or 1 when something fails. ``--replay DIR`` looks at a NaN dump."""
    arguments = list(argv)
    for argument in arguments:
        if argument.startswith("-") and argument not in FLAGS:
            raise ConfigError(f"robopo doctor: unknown option {argument!r}{did_you_mean(argument, FLAGS)}")
    if "--replay" in arguments:
        where = arguments.index("--replay") + 1
        if where >= len(arguments):
            raise ConfigError("--replay needs the folder of a dump, for example runs/train/x/nan/step_00000012")
        from robopo.cli.replay import replay

        return replay(Path(arguments[where]))
    checks = run_checks()
    if "--json" in arguments:
        sys.stdout.write(json.dumps([asdict(check) for check in checks], indent=1) + "\n")
    else:
        _print_table(checks)
    return int(any(check.status is Status.FAIL for check in checks))


def run_checks() -> list[Check]:
    """All checks, the slow ones (importing torch, rendering) included: a few seconds."""
    return [
        check_python(sys.version_info[:2]),
        *check_versions(),
        *check_torch(),
        *check_rendering(),
        *check_extras(),
        check_disk(shutil.disk_usage(Path.cwd()).free),
        check_cores(),
    ]


def check_python(version: tuple[int, int]) -> Check:
    """version: (major, minor)."""
    found = f"{platform.python_version()} at {sys.executable}"
    if version in ((3, 12), (3, 13)):
        return Check("Python", Status.OK, found)
    return Check("Python", Status.FAIL, found, "use Python 3.12: pyenv install 3.12, then make setup")


def check_versions() -> list[Check]:
    """Every core dependency of the installed robopo, against the range that it declares."""
    rows: list[Check] = []
    for text in _requirements():
        if "extra ==" in text:
            continue
        name, wanted = _name(text), re.sub(r"^[\w.-]+(\[[^]]*\])?\s*", "", text.partition(";")[0]).strip()
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            rows.append(Check(name, Status.FAIL, "missing", "make setup"))
            continue
        good = in_range(found, wanted)
        advice = "" if good else f"robopo is tested with {name}{wanted}: make setup"
        rows.append(Check(name, Status.OK if good else Status.FAIL, f"{found} ({wanted})", advice))
    return rows or [Check("robopo", Status.FAIL, "not installed as a package", "make setup")]


def in_range(found: str, wanted: str) -> bool:
    """Whether version ``found`` fulfils ``>=a,<b``; only the release numbers count."""
    compare = {
        ">=": lambda a, b: a >= b,
        "<=": lambda a, b: a <= b,
        "==": lambda a, b: a == b,
        "<": lambda a, b: a < b,
        ">": lambda a, b: a > b,
    }
    for part in filter(None, wanted.split(",")):
        match = re.fullmatch(r"\s*(>=|<=|==|<|>)\s*([\w.+-]+)\s*", part)
        if match and not compare[match[1]](_release(found), _release(match[2])):
            return False
    return True


def check_torch() -> list[Check]:
    """Version, device and thread count of torch."""
    try:
        import torch
    except Exception as error:  # noqa: BLE001 - a broken install fails in its own way
        return [Check("torch import", Status.FAIL, str(error).splitlines()[0], "make setup")]
    if torch.cuda.is_available():
        device = Check("torch device", Status.OK, f"CUDA {torch.version.cuda}: {torch.cuda.get_device_name(0)}")
    else:
        device = Check("torch device", Status.OK, "CPU (no CUDA device): enough for state observations")
    threads = torch.get_num_threads()
    advice = "small networks run faster with one thread each: torch_threads=1 (the default of robopo train)"
    return [
        device,
        Check("torch threads", Status.NOTE if threads > 1 else Status.OK, str(threads), advice * (threads > 1)),
    ]


def check_rendering() -> list[Check]:
    """Render one frame with each headless back end, in a process of its own: a GL driver may end it."""
    rows: list[Check] = []
    for backend, packages in DEBIAN_PACKAGES.items():
        problem = _render_problem(backend)
        advice = f"apt-get install {packages}" if problem else ""
        rows.append(Check(f"MUJOCO_GL={backend}", Status.NOTE if problem else Status.OK, problem or "renders", advice))
    if all(row.status is not Status.OK for row in rows):
        both = f"apt-get install {' '.join(DEBIAN_PACKAGES.values())}; everything but videos works without"
        rows.append(Check("rendering", Status.FAIL, "no back end works", both))
    chosen = os.environ.get("MUJOCO_GL")
    if chosen in DEBIAN_PACKAGES and _status(rows, chosen) is not Status.OK:
        rows.append(Check("MUJOCO_GL", Status.FAIL, f"set to {chosen}, which does not work", "unset MUJOCO_GL"))
    return rows


def check_extras() -> list[Check]:
    """Which optional extras are complete."""
    needed: dict[str, list[str]] = {}
    for text in _requirements():
        match = re.search(r"extra == ['\"]([\w-]+)['\"]", text)
        if match:
            needed.setdefault(match[1], []).append(text.partition(";")[0].strip())
    rows: list[Check] = []
    for extra, names in sorted(needed.items()):
        missing = sorted({miss for name in names for miss in _missing(name)})
        found = f"missing: {', '.join(missing)}" if missing else "installed"
        advice = f"only if you need it: pip install 'robopo[{extra}]'" if missing else ""
        rows.append(Check(f"extra {extra}", Status.OK, found, advice))
    return rows


def check_disk(free_bytes: int) -> Check:
    """free_bytes: where runs/ would be written."""
    found = f"{free_bytes / 2**30:.1f} GiB free in {Path.cwd()}"
    if free_bytes < 2**28:
        return Check("disk", Status.FAIL, found, "checkpoints and videos need about 0.25 GiB: free some space")
    low = free_bytes < 5 * 2**30
    return Check("disk", Status.NOTE if low else Status.OK, found, "long runs may need 5 GiB" if low else "")


def check_cores() -> Check:
    """Cores this process may use: fewer than the machine's inside a container."""
    cores = usable_cores()
    advice = "" if cores >= 2 else "robopo demo takes more than ten minutes on one core"
    return Check("CPU cores", Status.OK if cores >= 2 else Status.NOTE, str(cores), advice)


def _render_problem(backend: str) -> str:
    env = {**os.environ, "MUJOCO_GL": backend}
    # A clone's sims must be found from any working directory.
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(Path(__file__).resolve().parents[2]), env.get("PYTHONPATH"))))
    command = [sys.executable, "-c", RENDER_PROGRAM]
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return ""
    lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
    return lines[-1][:200] if lines else f"the process ended with {done.returncode}"


def _requirements() -> list[str]:
    try:
        return metadata.requires("robopo") or []
    except metadata.PackageNotFoundError:
        return []


def _name(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    return match[0] if match else requirement


def _release(version: str) -> tuple[int, ...]:
    numbers = [int(part) for part in re.findall(r"\d+", re.split(r"[+a-z]", version)[0])]
    while numbers and numbers[-1] == 0:  # 2.11 and 2.11.0 are one version
        numbers.pop()
    return tuple(numbers)


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _missing(requirement: str) -> list[str]:
    """Distributions that ``requirement`` asks for and that are absent; for ``lerobot[feetech]`` also that extra's."""
    name = _name(requirement)
    if not _installed(name):
        return [name]
    inner = re.search(r"\[([\w-]+)\]", requirement)
    if inner is None:
        return []
    parts = [text for text in metadata.requires(name) or [] if re.search(rf"extra == ['\"]{inner[1]}['\"]", text)]
    return [missing for text in parts if _name(text) != name for missing in _missing(text.partition(";")[0])]


def _status(rows: Sequence[Check], backend: str) -> Status:
    return next(row.status for row in rows if row.name == f"MUJOCO_GL={backend}")


def _print_table(checks: Sequence[Check]) -> None:
    table = Table(box=None, pad_edge=False)
    for heading in ("check", "", "found", "what to do"):
        table.add_column(heading, overflow="fold")
    colours = {Status.OK: "green", Status.NOTE: "yellow", Status.FAIL: "red"}
    for check in checks:
        table.add_row(
            check.name,
            f"[{colours[check.status]}]{check.status}",
            check.found.replace("[", r"\["),
            check.advice.replace("[", r"\["),
        )
    console = Console()
    console.print(table)
    failed = [check.name for check in checks if check.status is Status.FAIL]
    console.print(f"\nnot ready: {', '.join(failed)}" if failed else "\nready: robopo demo", highlight=False)
