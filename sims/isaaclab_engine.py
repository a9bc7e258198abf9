"""What is particular to Isaac Lab as a library: importing it, one environment per process, quiet logs, CPU graphs."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import io
import logging
import socket
import threading
import warnings
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

log = logging.getLogger(__name__)

GRAPH_VERSION = "3.0.0"
"""The Isaac Lab whose private methods the CPU graph overrides: with another one steps are launched kernel by kernel."""
NETWORK_S = 5.0
"""How long to wait for an asset server before saying that it can't be reached."""


def load(name: str) -> Any:
    """Import a module of Isaac Lab; ImportError that names the extra where it is missing."""
    for package in ("isaaclab", "isaaclab_newton", "warp"):
        if importlib.util.find_spec(package) is None:
            raise ImportError(
                f"{package} isn't installed: pip install 'robopo[isaaclab]' (Python 3.12, an environment of its own)"
            )
    warp = importlib.import_module("warp")
    # No gradients flow through this physics: their kernels are a third of the first start's compile time.
    warp.config.enable_backward = False
    warp.config.quiet = True
    with quietly():
        return importlib.import_module(name)


@contextlib.contextmanager
def quietly() -> Generator[None]:
    """Keep Isaac Lab's banners off the terminal: it prints them."""
    for name in ("isaaclab", "isaaclab_newton", "isaaclab_tasks", "newton"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def check_free() -> None:
    """RuntimeError while another environment lives in this process: Isaac Lab allows one at a time."""
    context = load("isaaclab.sim").SimulationContext
    if context.instance() is not None:
        raise RuntimeError(
            "an Isaac Lab environment is open in this process and there can only be one: close() it first, or open the "
            "second one in a process of its own"
        )


def close_leftover() -> None:
    """Free the process for the next environment after a construction that failed half-way."""
    load("isaaclab.sim").SimulationContext.clear_instance()


def solver_settings(device: str, *, graph: bool | None, **settings: Any) -> Any:
    """Newton's MuJoCo solver; on the CPU its step is recorded once and replayed (``graph``, default where possible).

    Raises ValueError for ``graph=True`` where it isn't possible.
    """
    newton = load("isaaclab_newton.physics")
    version = importlib.metadata.version("isaaclab")
    possible = device == "cpu" and version == GRAPH_VERSION
    if graph and not possible:
        raise ValueError(
            f"cpu_graph=True needs device='cpu' (found {device!r}) and isaaclab {GRAPH_VERSION} (found {version}); "
            "on CUDA Isaac Lab records graphs by itself"
        )
    cfg = newton.MJWarpSolverCfg(**settings)
    if possible and graph is not False:
        cfg.class_type = cpu_graph_manager()
    return cfg


def cpu_graph_manager() -> Any:
    """A subclass of Newton's manager that records the launches of one physics step and replays them.

    Isaac Lab records graphs on CUDA only; launching ~200 kernels one by one costs ~5 ms a step on a CPU.
    """
    base: Any = load("isaaclab_newton.physics.mjwarp_manager").NewtonMJWarpManager
    warp = importlib.import_module("warp")

    class NewtonCpuGraphManager(base):
        graph: Any = None
        warm = False

        @classmethod
        def _invalidate_graph(cls) -> None:
            super()._invalidate_graph()
            cls.graph, cls.warm = None, False

        @classmethod
        def _simulate_physics_only(cls) -> None:
            if cls.graph is not None:
                warp.capture_launch(cls.graph)
                return
            super()._simulate_physics_only()
            if not cls.warm:  # the first call compiles and allocates
                cls.warm = True
                return
            with warp.ScopedCapture(device="cpu") as capture:
                super()._simulate_physics_only()  # recorded, not run
            cls.graph = capture.graph

    return NewtonCpuGraphManager


# ------------------------------------------------------------------------------------------------ assets


def check_assets(scene: Any) -> None:
    """FileNotFoundError for an asset of a scene configuration that isn't here and can't be fetched.

    Isaac Lab itself would try for most of a minute before it said so.
    """
    hosts: dict[str, bool] = {}
    for path in asset_paths(scene):
        url = urlparse(path)
        if url.scheme in ("http", "https", "omniverse"):
            host = url.hostname or ""
            if host not in hosts:
                hosts[host] = reachable(host, url.port or 443)
            if hosts[host]:
                continue
        elif not path or Path(path).exists():
            continue
        raise FileNotFoundError(
            f"asset {path} isn't on this machine and can't be fetched: point NEWTON_ASSET_DIR at a local copy of the "
            "assets, or name a local file in cfg_overrides, for example "
            "cfg_overrides={'scene.robot.spawn.usd_path': '/path/robot.usd', 'scene.ground': None}"
        )


def asset_paths(scene: Any) -> list[str]:
    """Every ``usd_path`` or ``asset_path`` in a configuration, in order."""
    found: list[str] = []
    seen: set[int] = set()

    def walk(node: Any) -> None:
        fields = node if isinstance(node, dict) else getattr(node, "__dict__", None)
        if fields is None or isinstance(node, type) or id(node) in seen:
            return
        seen.add(id(node))
        for name, value in fields.items():
            if name in ("usd_path", "asset_path") and isinstance(value, str):
                found.append(value)
            else:
                walk(value)

    walk(scene)
    return found


def reachable(host: str, port: int) -> bool:
    """Whether a connection to ``host`` opens within a few seconds, name resolution included."""
    return _within(NETWORK_S, lambda: socket.create_connection((host, port), timeout=NETWORK_S).close())


def _within(seconds: float, attempt: Callable[[], None]) -> bool:
    done = threading.Event()

    def run() -> None:
        with contextlib.suppress(OSError):
            attempt()
            done.set()

    threading.Thread(target=run, daemon=True).start()
    return done.wait(seconds)
