"""From a configuration to its process."""

from __future__ import annotations

from robopo.processes.base import DiffusionConfig, ProcessKind
from robopo.processes.ddim import DDIM
from robopo.processes.ddpm import DDPM
from robopo.processes.flow import Flow, FlowConfig

type ProcessConfig = DiffusionConfig | FlowConfig


def build_process(config: ProcessConfig) -> DDPM | DDIM | Flow:
    """The DDPM, DDIM or flow that ``config`` names."""
    if isinstance(config, FlowConfig):
        return Flow(config)
    return DDPM(config) if config.kind is ProcessKind.DDPM else DDIM(config)
