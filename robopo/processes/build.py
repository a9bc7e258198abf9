"""From a configuration to its process."""

from __future__ import annotations

from robopo.processes.base import DiffusionConfig, Process, ProcessKind
from robopo.processes.ddim import DDIM
from robopo.processes.ddpm import DDPM


def build_process(config: DiffusionConfig) -> Process:
    """The DDPM or DDIM that ``config`` names."""
    return DDPM(config) if config.kind is ProcessKind.DDPM else DDIM(config)
