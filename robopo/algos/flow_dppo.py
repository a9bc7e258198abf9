"""The divergence mask of Flow-DPPO: Flow-DPPO, arXiv 2606.11025.

No ratio clip. A step whose KL(old || new) has reached delta no longer contributes if its gradient would raise the KL
further; corrective gradients always pass:

    M = 0  if  KL >= delta  and the sample moves away,  else 1;      J = mean( M r A )

At the first minibatch KL = 0 and the gradient is the plain policy gradient. The mask is no hard bound: parameters are
shared, so other samples can move a masked one.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from robopo.algos.choices import RatioBatch, Surrogate
from robopo.errors import ConfigError
from robopo.losses.divergence import MaskDirection, moves_away
from robopo.losses.surrogates import masked_loss
from robopo.named_choice import named_choice


@dataclass(frozen=True, slots=True)
class DivergenceMask:
    """Stops samples beyond a KL threshold, unless they lead back."""

    delta_chain: float = 0.05
    """KL allowed to the whole denoising chain; each of its active steps gets an equal share. In the units of the
    ratio's divergence: summed over the executed numbers with ``reduce: sum``, (Ta * A) times smaller with ``mean``."""
    delta: float | None = None
    """Threshold of each value itself, instead of a share of ``delta_chain``; the paper's is 1e-5, with ``mean``."""
    direction: MaskDirection = MaskDirection.EXACT
    """Which samples lead away: ``exact`` follows the gradient, ``paper`` is the published test, ``either`` is both."""
    dual_clip: float | None = 3.0
    """Cap on the ratio where the advantage is negative; null: no cap (the paper)."""

    needs_divergence = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "direction", named_choice(MaskDirection, "direction", self.direction))
        check_threshold(self.delta_chain, self.delta)
        if self.dual_clip is not None and self.dual_clip <= 1.0:
            raise ConfigError(f"dual_clip={self.dual_clip}: expected more than 1, or null for no cap")

    def surrogate(self, ratio: RatioBatch, adv: Tensor, *, num_steps: int) -> Surrogate:
        """Mask -A r; adv [B, V]. Raises ConfigError when the ratio has no divergence."""
        divergence = divergence_of(ratio, "DivergenceMask")
        delta = threshold(self.delta_chain, self.delta, ratio, num_steps)
        away = moves_away(
            adv=adv,
            log_ratio=ratio.log_ratio,
            divergence=divergence if ratio.pivot is None else ratio.pivot,
            direction=self.direction,
        )
        outside = divergence >= delta  # as the released code compares; the paper writes >
        blocked = outside & away
        loss = masked_loss(log_ratio=ratio.log_ratio, adv=adv, keep=~blocked, dual_clip=self.dual_clip)
        return Surrogate(loss, blocked, outside)


def check_threshold(delta_chain: float, delta: float | None) -> None:
    """Raise ConfigError unless both are positive (delta may be None)."""
    if not delta_chain > 0.0 or (delta is not None and not delta > 0.0):
        raise ConfigError(f"delta_chain={delta_chain}, delta={delta}: both must be positive (delta may be null)")


def threshold(delta_chain: float, delta: float | None, ratio: RatioBatch, num_steps: int) -> float:
    """KL threshold of one value: delta, else delta_chain, shared among num_steps when units are single steps."""
    if delta is not None:
        return delta
    # A unit that is no single step (a whole chain, a flow-matching pair) speaks for the whole decision.
    return delta_chain / max(1, num_steps) if ratio.step is not None else delta_chain


def divergence_of(ratio: RatioBatch, region: str) -> Tensor:
    """Return the ratio's divergence [B, V], detached. Raises ConfigError when there is none."""
    if ratio.divergence is None:
        raise ConfigError(
            f"trust region {region} needs a divergence, but the ratio gives none; use a ratio with Gaussian moments, "
            "CfmRatio with divergence=true, or a trust region that only looks at the ratio (Clip, SPO, SoftGate)"
        )
    return ratio.divergence.detach()
