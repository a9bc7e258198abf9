"""Types, ranges and meanings of the settings that each command reads. YAML under ``configs/`` chooses among them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from omegaconf import MISSING

from robopo.cli.algo_schema import ALGORITHMS
from robopo.cli.policy_schema import POLICIES
from robopo.errors import ConfigError
from robopo.eval.seeds import SeedPurpose
from robopo.policies.config import Reduce
from robopo.train.logger import LoggerConfig
from robopo.train.loop import LoopConfig


class CriticInputs(StrEnum):
    """What the value network sees."""

    POLICY = "policy"
    """What the policy sees; pictures through an encoder of its own."""
    STATE = "state"
    """All numbers of the simulator, also those hidden from the policy; it scales them by what it has seen."""


@dataclass(frozen=True, slots=True)
class FinetuneConfig:
    """What on-policy fine-tuning needs besides the algorithm."""

    ft_steps: int | None = None
    """K', denoising steps that learn, counted from the last; null: all of the sampler's."""
    num_steps: int | None = None
    """Steps of the sampler, for a flow or DDIM policy that isn't fine-tuned yet; null keeps the policy's own."""
    num_decisions: int = 25
    """T, decisions per environment and iteration."""
    std_floor: float | None = None
    """Least std of a denoising step while exploring and scoring; null keeps the policy's own."""
    reduce: Reduce | None = None
    """Log-probability of a step: mean or sum over the executed numbers; null keeps the policy's own."""
    compat_published: bool = False
    """Score as the published code does: elementwise clamps, and logprob_std_floor may differ from std_floor."""
    logprob_std_floor: float | None = None
    """Least std in log-probabilities when compat_published; null: as std_floor."""
    critic_hidden: tuple[int, ...] = (256, 256, 256)
    """Widths of the value network: an odd number of equal entries."""
    critic_inputs: CriticInputs | None = None
    """See CriticInputs; null: the state for a policy of pictures where the simulator has environment_state to show,
    else what the policy sees."""
    augment: bool = True
    """Shift the pictures of each rollout at random and score its chains again on them, as DPPO does; false: ratios are
    exactly those of the policy that acted. Says nothing about policies without pictures."""

    def __post_init__(self) -> None:
        if (self.ft_steps or 0) < 0 or (self.num_steps or 1) < 1 or self.num_decisions < 1:
            raise ConfigError(
                f"ft_steps={self.ft_steps}, num_steps={self.num_steps}, num_decisions={self.num_decisions}: expected 0 "
                "or more (or null), 1 or more (or null), and 1 or more"
            )
        if self.std_floor is not None and self.std_floor <= 0.0:
            raise ConfigError(f"std_floor={self.std_floor}: must be positive, or null")
        if self.logprob_std_floor is not None and not self.compat_published:
            raise ConfigError("finetune.logprob_std_floor differs from the sampling only with compat_published=true")


@dataclass(frozen=True, slots=True)
class EvaluationConfig:
    """Evaluations during training; their seeds choose checkpoints and are never those of a report."""

    n: int = 100
    """Episodes per evaluation."""
    num_envs: int = 50
    """Environments side by side."""

    def __post_init__(self) -> None:
        if self.n < 1 or self.num_envs < 1:
            raise ConfigError(f"evaluation.n={self.n}, evaluation.num_envs={self.num_envs}: at least 1 each")


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """``robopo train``."""

    sim: Any = MISSING
    """Simulator (group ``sim``)."""
    policy: Any = MISSING
    """Policy to clone (group ``policy``); fine-tuning takes the checkpoint's."""
    algo: Any = MISSING
    """Algorithm (group ``algo``)."""
    seed: int = 0
    """Root of every random number; outside the range reserved for evaluation."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:<index>."""
    torch_threads: int = 1
    """Threads of one torch operation; small networks are fastest with 1."""
    run_dir: str | None = None
    """Folder of this run; null: runs/train/<time>-<task>-<algo>."""
    resume: str | None = None
    """Run or checkpoint folder to continue, bit for bit."""
    demos: str | None = None
    """What to clone: a LeRobotDataset folder, a robomimic .hdf5 or a DPPO .npz file."""
    checkpoint: str | None = None
    """Run or checkpoint folder whose policy is fine-tuned."""
    from_scratch: bool = False
    """Train the policy of ``policy=`` without demonstrations; its normaliser follows what it sees."""
    updates_per_iteration: int = 100
    """Gradient steps of cloning between two lines of the log."""
    finetune: FinetuneConfig = field(default_factory=FinetuneConfig)
    """Of on-policy algorithms."""
    loop: LoopConfig = field(default_factory=LoopConfig)
    """Iterations, evaluations, checkpoints."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """Episodes of evaluations during training."""
    logger: LoggerConfig = field(default_factory=LoggerConfig)
    """Weights & Biases."""

    def __post_init__(self) -> None:
        if self.torch_threads < 1 or self.updates_per_iteration < 1:
            raise ConfigError(
                f"torch_threads={self.torch_threads}, updates_per_iteration={self.updates_per_iteration}: "
                "at least 1 each"
            )


@dataclass(frozen=True, slots=True)
class CollectConfig:
    """``robopo collect``."""

    sim: Any = MISSING
    """Simulator (group ``sim``)."""
    out: str | None = None
    """New dataset folder, or <name>.npz for transitions with rewards (of a checkpoint); null: data/<task>."""
    episodes: int = 100
    """Demonstrations to write."""
    imperfection: float = 0.0
    """0 is the clean expert, 1 a hurried novice."""
    checkpoint: str | None = None
    """Run or checkpoint folder whose policy acts instead of an expert; needed where there is none (gymnasium)."""
    deterministic: bool = False
    """Of the checkpoint's policy: as little noise as its sampler allows; false explores as training does."""
    keep_failures: bool = False
    """Also keep demonstrations that failed; simulators without success keep all."""
    overwrite: bool = False
    """Replace an existing dataset."""
    seed: int = 0
    """Of starting positions and of the expert's imperfections."""

    def __post_init__(self) -> None:
        if self.episodes < 1 or not 0.0 <= self.imperfection <= 1.0:
            raise ConfigError(
                f"episodes={self.episodes}, imperfection={self.imperfection}: expected 1 or more, and 0 to 1"
            )


@dataclass(frozen=True, slots=True)
class EvalConfig:
    """``robopo eval``."""

    checkpoint: str | None = None
    """Run or checkpoint folder."""
    sim: Any = None
    """Simulator (group ``sim``); null: the task and action mode that the checkpoint names."""
    n: int = 200
    """Episodes."""
    purpose: SeedPurpose = SeedPurpose.REPORT
    """Which reserved seeds: report, or selection (those that training looks at)."""
    num_envs: int = 50
    """Environments side by side."""
    noise_seed: int = 0
    """Of the policy's initial noise."""
    deterministic: bool = True
    """As little noise as the sampler allows; false explores as training does."""
    num_steps: int | None = None
    """Sampler steps of a flow or DDIM policy that wasn't fine-tuned; null: the policy's own."""
    zero_noise: bool = False
    """Start every chain at zero instead of at random noise: seeks a mode; report it beside the usual number."""
    videos: int = 4
    """Episodes to film; 0 none."""
    out: str | None = None
    """Report folder; null: <run>/eval/<checkpoint>."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:<index>."""
    torch_threads: int = 1
    """Threads of one torch operation."""

    def __post_init__(self) -> None:
        if self.n < 1 or self.num_envs < 1 or self.videos < 0 or self.torch_threads < 1:
            raise ConfigError(
                f"n={self.n}, num_envs={self.num_envs}, torch_threads={self.torch_threads}: at least 1 each; "
                f"videos={self.videos}: 0 or more"
            )


@dataclass(frozen=True, slots=True)
class DeployCommandConfig:
    """``robopo deploy``."""

    checkpoint: str | None = None
    """Run or checkpoint folder."""
    arm: Any = MISSING
    """Arm and its scene (group ``arm``)."""
    episodes: int = 1
    """Episodes, each from a new start."""
    seconds: float = 10.0
    """Longest time of an episode."""
    out: str | None = None
    """New folder for events, ticks, report and the recorded dataset; null: runs/deploy/<time>."""
    seed: int = 0
    """Of the policy's initial noise and of a simulated scene."""
    gate: dict[str, float] = field(default_factory=dict[str, float])
    """Settings of the safety gate that differ from its defaults for this kind of arm."""

    def __post_init__(self) -> None:
        if self.episodes < 1 or self.seconds <= 0.0:
            raise ConfigError(f"episodes={self.episodes}, seconds={self.seconds}: expected 1 or more, and above 0")


TRAIN = {("", "train_schema"): TrainConfig, **ALGORITHMS, **POLICIES}
COLLECT = {("", "collect_schema"): CollectConfig}
EVAL = {("", "eval_schema"): EvalConfig}
DEPLOY = {("", "deploy_schema"): DeployCommandConfig}
