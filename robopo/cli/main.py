"""Entry point: ``robopo COMMAND [key=value ...]``. Imports nothing heavy before the command is known."""

from __future__ import annotations

import errno
import importlib
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from robopo import __version__
from robopo.errors import RobopoError, did_you_mean

USAGE_ERROR = 2


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand: where its ``main(argv) -> exit code`` lives, and its help."""

    module: str
    summary: str
    details: str
    examples: tuple[tuple[str, str], ...]


COMMANDS = {
    "demo": Command(
        "robopo.cli.demo",
        "the whole pipeline on one task, ending with a report page",
        "Demonstrations, cloning, fine-tuning, evaluation and a simulated arm; writes runs/demo/<time>/report.html.",
        (
            ("robopo demo", "about ten minutes on two cores"),
            ("robopo demo seed=3", "another seed"),
            ("robopo demo sim=reach", "another task"),
        ),
    ),
    "collect": Command(
        "robopo.cli.collect",
        "demonstrations of a scripted expert, as a LeRobot dataset",
        "Runs the expert of sim= in the simulator and writes a LeRobotDataset v3 folder to out=.",
        (
            ("robopo collect sim=lift out=data/lift", "successful demonstrations of lift"),
            ("robopo collect sim=push episodes=200 imperfection=0.5 out=data/push", "a clumsy expert"),
            ("robopo collect sim=reach seed=7 out=data/reach", "other starting positions"),
        ),
    ),
    "train": Command(
        "robopo.cli.train",
        "clone demonstrations (algo=bc) or improve a policy by reinforcement (algo=dppo, flow_dppo, fpo, ...)",
        "Writes run_dir= (default runs/train/<time>): checkpoints, metrics.jsonl, TensorBoard files. Ctrl-C saves. "
        "Algorithms: configs/algo, explained in docs/algorithms.md.",
        (
            ("robopo train algo=bc sim=lift demos=data/lift", "clone demonstrations"),
            ("robopo train algo=dppo sim=lift seed=3 checkpoint=runs/train/lift-bc", "fine-tune what was cloned"),
            (
                "robopo train algo=flow_dppo sim=lift checkpoint=runs/train/lift-flow",
                "a flow, cloned with policy=flow_mlp",
            ),
            ("robopo train algo=fpo_plus sim=half_cheetah policy=flow_mlp from_scratch=true", "without demonstrations"),
            ("robopo train resume=runs/train/lift-dppo loop.iterations=200", "continue, and train longer"),
        ),
    ),
    "eval": Command(
        "robopo.cli.evaluate",
        "success rate with its interval on reserved seeds, videos and a report page",
        "Builds the policy from the checkpoint folder alone; checkpoint= is a run or one of its checkpoints.",
        (
            ("robopo eval checkpoint=runs/train/lift-dppo", "200 episodes"),
            ("robopo eval checkpoint=runs/train/lift-dppo n=1000 videos=0", "a tighter interval, no videos"),
            ("robopo eval checkpoint=runs/train/lift-dppo/checkpoints/step_00000010", "one checkpoint of a run"),
        ),
    ),
    "compare": Command(
        "robopo.cli.compare",
        "methods x tasks x seeds from shared starts, at equal control steps, with tables and curves",
        "Studies lie in configs/study. Runs go side by side, one per core; Ctrl-C saves, resume= continues.",
        (
            ("robopo compare study=lift_push", "all of it"),
            ("robopo compare study=lift_push tasks=[lift] methods=[dppo,flow_clip]", "a part of it"),
            ("robopo compare resume=runs/compare/lift-push", "continue"),
        ),
    ),
    "deploy": Command(
        "robopo.cli.deploy",
        "run a policy on an arm behind the safety gate, at its control rate",
        "Inference runs beside the control loop; every command passes the gate; the session is recorded as a dataset.",
        (
            ("robopo deploy checkpoint=runs/train/lift-dppo arm=sim", "on a simulated arm, in real time"),
            ("robopo deploy checkpoint=runs/train/lift-dppo arm=sim seconds=30", "for half a minute"),
            ("robopo deploy checkpoint=runs/train/lift-dppo arm=sim out=data/session", "record elsewhere"),
        ),
    ),
    "doctor": Command(
        "robopo.cli.doctor",
        "check Python, torch, rendering, versions, disk and cores, and say what to do",
        "Exit code 0 when the main job can run here, else 1. --replay looks again at a NaN dump.",
        (
            ("robopo doctor", "all checks"),
            ("robopo doctor --json", "the same for a program"),
            ("robopo doctor --replay runs/train/lift-dppo/nan/step_00000012", "what became NaN, and where"),
        ),
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code, 2 for a mistake in the request (explained without a traceback)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        return _say(_overview())
    if arguments[0] in ("-V", "--version"):
        return _say(f"robopo {__version__}")
    name, *rest = arguments
    if name not in COMMANDS:
        return _fail(f"unknown command {name!r}{did_you_mean(name, COMMANDS)}. See robopo --help")
    command = COMMANDS[name]
    if any(flag in rest for flag in ("-h", "--help")):
        return _say(_help(name, command))
    try:
        return int(importlib.import_module(command.module).main(rest))
    except RobopoError as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(_os_error(error, training=name == "train"))
    except KeyboardInterrupt:
        return _fail("interrupted", code=130)


def _os_error(error: OSError, *, training: bool) -> str:
    """A full disk, a missing permission: what, where, and what is still good."""
    what = error.strerror or str(error) or type(error).__name__
    if error.filename:
        what += f" ({error.filename})"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        what += ": free some space"
    elif error.filename:
        what += ": check the path and its permissions"
    if training:
        what += ". Finished checkpoints are intact; robopo train resume=<run folder> continues from the last one"
    return what


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(
        ("usage: robopo COMMAND [key=value ...]", "", *lines, "", "robopo COMMAND --help shows examples of each.")
    )


def _help(name: str, command: Command) -> str:
    width = max(len(line) for line, _ in command.examples)
    examples = [f"  {line:<{width}}  # {comment}" for line, comment in command.examples]
    settings = () if name == "doctor" else ("", f"robopo {name} --cfg prints every setting with its present value.")
    return "\n".join((f"robopo {name}: {command.summary}", "", command.details, "", "examples:", *examples, *settings))


def _say(text: str) -> int:
    sys.stdout.write(text + "\n")
    return 0


def _fail(text: str, code: int = USAGE_ERROR) -> int:
    sys.stderr.write(f"error: {text}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
