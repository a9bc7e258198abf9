"""Settings of ``robopo demo``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omegaconf import MISSING

from robopo.errors import ConfigError


@dataclass(frozen=True, slots=True)
class DemoConfig:
    """The pipeline's sizes. How it trains is said by the configurations of ``robopo train``."""

    sim: Any = MISSING
    """Simulator (group ``sim``); ``sim.*`` settings reach every step."""
    seed: int = 0
    """Root of every random number of the whole pipeline."""
    n: int = 200
    """Evaluation episodes before and after fine-tuning, on the same reserved seeds."""
    demonstrations: int = 120
    """Successful demonstrations to record."""
    imperfection: float = 0.93
    """Of the scripted expert, 0 to 1; chosen so that a clone of ``lift`` succeeds about half the time."""
    cloning_steps: int = 3000
    """Gradient steps of behaviour cloning."""
    iterations: int = 110
    """DPPO iterations."""
    films: int = 3
    """Episodes to film, before and after."""
    deploy_episodes: int = 5
    """Episodes on the simulated arm, before the one whose link is cut."""
    out: str | None = None
    """New folder; null: runs/demo/<time>."""

    def __post_init__(self) -> None:
        for name in ("n", "demonstrations", "cloning_steps", "iterations", "deploy_episodes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: at least 1 is needed")
        if self.films < 0:
            raise ConfigError(f"films={self.films}: expected 0 or more")


DEMO = {("", "demo_schema"): DemoConfig}
