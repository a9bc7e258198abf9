"""Which steps of a chain explore, and with which noise: a kernel and its placement, as tables that a policy reads."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor, nn

from robopo.errors import ConfigError
from robopo.named_choice import named_choice
from robopo.processes.base import Process
from robopo.processes.kernels import StepCoefficients, StepTable, transition_rows
from robopo.processes.transitions import INACTIVE_STD, TransitionKernel


class Placement(StrEnum):
    """Which fine-tuned steps keep the kernel's noise; the others take the noise-free step and are inactive.

    Frozen steps keep the noise of a fixed kernel with ``all`` and ``last_ode``, as DPPO's do; a learned one has none.
    """

    ALL = "all"
    WINDOW = "window"
    """Those of ``window``."""
    ONE_RANDOM = "one_random"
    """One of them, drawn for every chunk."""
    LAST_ODE = "last_ode"
    """All but the last."""


@dataclass(frozen=True, slots=True)
class Exploration:
    """How a policy explores while it is fine-tuned."""

    kernel: TransitionKernel
    """Noise of the steps."""
    placement: Placement = Placement.ALL
    """Where it goes."""
    window: tuple[int, int] = (0, 0)
    """First fine-tuned step with noise, and the first after it; of placement=window."""

    def __post_init__(self) -> None:
        # Configuration files hand over plain strings and lists.
        object.__setattr__(self, "placement", named_choice(Placement, "placement", self.placement))
        object.__setattr__(self, "window", tuple(self.window))
        start, stop = self.window
        if self.placement is Placement.WINDOW and not 0 <= start < stop:
            raise ConfigError(f"window={tuple(self.window)}: expected first and end, 0 <= first < end")


class ExplorationSteps(nn.Module):
    """The S steps of an exploring chain: coefficients to sample with, standard deviations to score with.

    active [S] on the host: whether a step has a likelihood. one_random: only one active step of a chunk has noise.
    """

    def __init__(
        self, sample: StepTable, score: StepTable, plain: StepTable, *, one_random: bool, learned_from: int | None
    ) -> None:
        """learned_from: first step whose standard deviation a network gives; None: the tables' everywhere."""
        super().__init__()
        stds = score.stds()
        self.active = tuple(std > INACTIVE_STD for std in stds)
        self.sample, self.plain = sample, plain
        # Inactive steps are never scored; a std of one keeps gathers over mixed steps finite.
        safe = torch.tensor([std if on else 1.0 for std, on in zip(stds, self.active, strict=True)]).double()
        self.score = score if all(self.active) else score.with_stds(safe)
        self.one_random, self.learned_from = one_random, learned_from

    def learned(self, k: int) -> bool:
        """Whether a network says the standard deviation of step k."""
        return self.learned_from is not None and k >= self.learned_from and self.active[k]

    def draw_places(self, batch: int, generator: torch.Generator | None) -> Tensor | None:
        """[B, S] bool: where each chunk has noise, when only one step has; else None."""
        if not self.one_random:
            return None
        device = self.sample.columns.device
        steps = torch.tensor([k for k, on in enumerate(self.active) if on], device=device)
        chosen = steps[torch.randint(len(steps), (batch,), generator=generator, device=device)]
        return chosen[:, None] == torch.arange(len(self.active), device=device)

    def at(self, k: int, places: Tensor | None, std: Tensor | None) -> StepCoefficients:
        """Step k of a sampled chain; places as drawn; std [B, H, A] where it is learned."""
        step = self.sample.at(k)
        if std is not None:
            step = step._replace(std=std)
        if places is None or not self.active[k]:
            return step
        here = places[:, k, None, None]
        return StepCoefficients(*(torch.where(here, a, b) for a, b in zip(step, self.plain.at(k), strict=True)))


def own_steps(process: Process, sampling_floor: float, logprob_floor: float) -> ExplorationSteps:
    """The process's own noise: a diffusion's with its floors, none for a flow."""
    table = process.train_steps
    if process.step_sizes is not None:
        return ExplorationSteps(table, table, table, one_random=False, learned_from=None)
    sample, score = table.with_std_floor(sampling_floor), table.with_std_floor(logprob_floor)
    return ExplorationSteps(sample, score, process.evaluate_steps, one_random=False, learned_from=None)


def exploration_steps(process: Process, exploration: Exploration, ft_steps: int) -> ExplorationSteps:
    """Tables of ``exploration`` for ``process``, whose last ``ft_steps`` steps learn.

    Raises ConfigError (a ValueError) when kernel and process, or placement and steps, don't go together.
    """
    kernel, S = exploration.kernel, process.num_steps
    clean = (process.clean[0], process.clean[1])
    noisy = transition_rows(process.grid, clean, kernel.coefficients(process.grid))
    quiet = torch.stack([process.grid.signal[1:], process.grid.noise[1:], torch.zeros(S).double()], dim=1)
    plain = transition_rows(process.grid, clean, quiet)
    first = S - ft_steps
    match exploration.placement:
        case Placement.WINDOW:
            start, stop = exploration.window
            if stop > ft_steps:
                raise ConfigError(
                    f"window={exploration.window}: the policy fine-tunes {ft_steps} steps, numbered from 0"
                )
            quiet_steps = [k for k in range(S) if not first + start <= k < first + stop]
        case Placement.LAST_ODE:
            quiet_steps = [S - 1]
        case Placement.ONE_RANDOM:
            quiet_steps = list(range(first))
        case Placement.ALL:
            quiet_steps = []
    if kernel.learned_std:  # the network says the noise of the steps that learn, and of no other
        quiet_steps += range(first)
    noisy[quiet_steps] = plain[quiet_steps]
    table = StepTable(noisy)
    return ExplorationSteps(
        table,
        table,
        StepTable(plain),
        one_random=exploration.placement is Placement.ONE_RANDOM,
        learned_from=first if kernel.learned_std else None,
    )
