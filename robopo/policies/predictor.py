"""Which network a sampler step asks, and with how little repeated work."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from robopo.nn.denoiser import Denoiser

type Predict = Callable[[Tensor, int], Tensor]
type Condition = Callable[[nn.Module], Tensor]
"""A network's condition [B, C]: with pictures, each network has its own encoder."""


def predictor(
    net: nn.Module,
    frozen_net: nn.Module | None,
    *,
    cond: Tensor,
    frozen_cond: Condition,
    timesteps: Tensor,
    ft_steps: int,
    exact_tail: bool,
) -> Predict:
    """predict(x, k) that asks the network of step k alone.

    cond [B, C]: of ``net``. frozen_cond: of the frozen copy, asked for only where one of its steps runs. timesteps [S]:
    the network's time of each step. The last ``ft_steps`` steps are ``net``'s, the others the frozen copy's.
    exact_tail: fine-tuned steps run ``forward``, so that scoring them again repeats the arithmetic bit for bit.
    """
    S, first = len(timesteps), len(timesteps) - ft_steps
    if frozen_net is None:
        return _prepared(net, cond, timesteps, 0, S)
    if first == S:
        return _prepared(frozen_net, frozen_cond(frozen_net), timesteps, 0, S)
    tail = _plain(net, cond, timesteps) if exact_tail else _prepared(net, cond, timesteps, first, S)
    if first == 0:
        return tail
    head = _prepared(frozen_net, frozen_cond(frozen_net), timesteps, 0, first)
    return lambda x, k: head(x, k) if k < first else tail(x, k)


def _prepared(net: nn.Module, cond: Tensor, timesteps: Tensor, start: int, stop: int) -> Predict:
    """``net`` for the steps start..stop-1, with all that doesn't depend on x computed once."""
    if not isinstance(net, Denoiser):
        return _plain(net, cond, timesteps)
    context = net.begin_chain(cond, timesteps[start:stop])
    return lambda x, k: net.chain_step(x, context, k - start)


def _plain(net: nn.Module, cond: Tensor, timesteps: Tensor) -> Predict:
    return lambda x, k: net(x, timesteps[k].expand(x.shape[0]), cond)
