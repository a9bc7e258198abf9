"""Settings and results of a deployment."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hardware.gate_config import GateConfig
from robopo.deploy.checkpoint_spec import DeployedPolicy
from robopo.deploy.realtime import Timing
from robopo.errors import ConfigError


@dataclass(frozen=True, slots=True)
class DeployConfig:
    """How often, how long, and how carefully."""

    run_dir: Path = Path("runs/deploy")
    """Events, ticks and report go here."""
    estop_path: Path | None = None
    """File that keeps an emergency stop over restarts; None: one per arm in ``~/.local/state/robopo``."""
    episodes: int = 1
    episode_steps: int = 100
    """Control steps of the policy after which an episode ends."""
    gate: GateConfig = field(default_factory=GateConfig)
    """Limits and interlocks."""
    seed: int = 0
    """Of the policy's initial noise."""
    policy_start_s: float = 90.0
    """Longest time for loading and warming up the policy."""
    hold_rows: int = 2
    """How many rows a late next chunk may take, during which the last row is held."""
    reference_error_rad: float = 0.15
    """Actions are resolved from the last targets, brought this close to the measured joints."""
    settle_s: float = 2.0
    """Longest wait for standstill after an episode."""
    continue_after_hold: bool = False
    """Begin the next episode after one that ended in HOLD, without an operator: for simulated arms."""
    fifo_priority: int = 40
    """Real-time priority of the control loop where permitted; 0 leaves the scheduler alone."""

    def __post_init__(self) -> None:
        if self.episodes < 1 or self.episode_steps < 1:
            raise ConfigError(f"episodes={self.episodes}, episode_steps={self.episode_steps}: at least 1 each")
        if not 0 <= self.hold_rows <= 20:
            raise ConfigError(f"hold_rows={self.hold_rows}: expected 0 to 20")
        if not 0 < self.reference_error_rad <= 0.5:
            raise ConfigError(f"reference_error_rad={self.reference_error_rad}: expected above 0, at most 0.5")
        if not 0 <= self.fifo_priority <= 80:
            raise ConfigError(f"fifo_priority={self.fifo_priority}: expected 0 to 80")
        if not (self.policy_start_s > 0 and self.settle_s > 0):
            raise ConfigError(f"policy_start_s={self.policy_start_s}, settle_s={self.settle_s}: expected above 0")

    def check_policy(self, policy: DeployedPolicy) -> None:
        """ConfigError where the gate's times can't carry this policy's chunks."""
        executed_s, limit_s = policy.action_steps * policy.dt_s, self.gate.open_loop_s
        if executed_s + self.gate.tick_s > limit_s:
            raise ConfigError(
                f"the policy executes {policy.action_steps} rows = {executed_s:.3f} s per decision, the gate allows "
                f"open_loop_s={limit_s} s on one chunk; raise gate.open_loop_s or train with fewer action_steps"
            )
        if policy.dt_s < self.gate.tick_s:
            raise ConfigError(
                f"the policy's step {policy.dt_s:.4f} s is shorter than the gate's tick_s={self.gate.tick_s}"
            )

    def latch_path(self, arm_name: str) -> Path:
        """Where this arm's emergency stop is latched."""
        return self.estop_path or Path.home() / ".local" / "state" / "robopo" / f"estop_{arm_name}.json"


@dataclass(frozen=True, slots=True)
class DeployReport:
    """What happened."""

    episodes: int
    """Episodes begun."""
    successes: int
    steps: int
    """Control steps of the policy, all episodes together."""
    gate_interventions: int
    """Ticks in which the gate changed what was asked for."""
    gate_ticks: int
    rejected_chunks: int
    holds: int
    """Entries into HOLD that the run did not ask for itself."""
    faults: int
    estops: int
    period_p50_ms: float
    period_p99_ms: float
    lateness: Timing
    """How late the control loop woke up."""
    inference: Timing
    """Time of one decision inside the policy's process."""
    delay: Timing
    """From the observation to the chunk's arrival at the gate."""
    realtime: bool
    """Whether the loop ran with real-time priority."""
    stopped_by: str
    """Signal, fault or hold that ended the run early, or POLICY_PROCESS_ENDED; empty when it ran to its end."""
    events_path: Path

    @property
    def clean(self) -> bool:
        """Whether nothing stopped the arm but the run itself or a signal."""
        stopped = self.stopped_by and not self.stopped_by.startswith("SIG")
        return not (stopped or self.holds or self.faults or self.estops)

    @property
    def inference_p50_ms(self) -> float:
        """Median time of a decision."""
        return self.inference.p50_ms

    @property
    def inference_p99_ms(self) -> float:
        """99th percentile of the time of a decision."""
        return self.inference.p99_ms

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        values = asdict(self)
        for name in ("lateness", "inference", "delay"):
            values[name] = getattr(self, name)._asdict()
        return {**values, "events_path": str(self.events_path)}
