"""Names of the activations that configurations may ask for."""

from __future__ import annotations

from enum import StrEnum

from torch import nn


class Activation(StrEnum):
    """Elementwise nonlinearity."""

    MISH = "mish"
    RELU = "relu"
    GELU = "gelu"
    SILU = "silu"
    TANH = "tanh"

    def build(self) -> nn.Module:
        """A new module of this kind."""
        return _MODULES[self]()


_MODULES: dict[Activation, type[nn.Module]] = {
    Activation.MISH: nn.Mish,
    Activation.RELU: nn.ReLU,
    Activation.GELU: nn.GELU,
    Activation.SILU: nn.SiLU,
    Activation.TANH: nn.Tanh,
}
