"""Settings of algorithms, as Hydra knows them: rows under ``configs/algo`` choose among these."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from robopo.algos.bc import BCConfig
from robopo.algos.cal_ql import CalQLConfig
from robopo.algos.dawr import DAWRConfig
from robopo.algos.dipo import DIPOConfig
from robopo.algos.dql import DQLConfig
from robopo.algos.drwr import DRWRConfig
from robopo.algos.ibrl import IBRLConfig
from robopo.algos.idql import IDQLConfig
from robopo.algos.podpo import PODPOConfig
from robopo.algos.policy_gradient_config import PolicyGradientConfig
from robopo.algos.qsm import QSMConfig
from robopo.algos.rlpd import RLPDConfig
from robopo.critics.q_ensemble import QConfig
from robopo.errors import ConfigError


@dataclass(frozen=True, slots=True)
class OffPolicySettings:
    """A method that learns from a replay buffer."""

    method: Any = None
    """Its own numbers: a DIPOConfig, IDQLConfig, ..."""
    critic: QConfig = field(default_factory=QConfig)
    """Sizes of the Q functions."""
    capacity: int = 100_000
    """Decisions that the buffer holds; it is part of every checkpoint."""
    start_size: int = 1000
    """Decisions in the buffer before the first update."""
    offline_iterations: int = 0
    """First iterations, on the demonstrations alone and without the simulator: the offline phase of Cal-QL."""
    offline_updates: int = 1000
    """Gradient steps in each of them."""

    def __post_init__(self) -> None:
        if self.capacity < 1 or not 1 <= self.start_size <= self.capacity:
            raise ConfigError(
                f"capacity={self.capacity}, start_size={self.start_size}: expected 1 or more, and 1 to capacity"
            )
        if self.offline_iterations < 0 or self.offline_updates < 1:
            raise ConfigError(
                f"offline_iterations={self.offline_iterations}, offline_updates={self.offline_updates}: expected 0 or "
                "more, and 1 or more"
            )


ALGORITHMS = {
    ("algo", "bc_schema"): BCConfig,
    ("algo", "policy_gradient_schema"): PolicyGradientConfig,
    ("algo", "drwr_schema"): DRWRConfig,
    ("algo", "dawr_schema"): DAWRConfig,
    ("algo", "podpo_schema"): PODPOConfig,
    ("algo", "off_policy_schema"): OffPolicySettings,
    ("algo/method", "dipo_schema"): DIPOConfig,
    ("algo/method", "idql_schema"): IDQLConfig,
    ("algo/method", "dql_schema"): DQLConfig,
    ("algo/method", "qsm_schema"): QSMConfig,
    ("algo/method", "rlpd_schema"): RLPDConfig,
    ("algo/method", "cal_ql_schema"): CalQLConfig,
    ("algo/method", "ibrl_schema"): IBRLConfig,
}
