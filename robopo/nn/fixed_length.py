"""Convolutions over a short, fixed length, applied as the matrices they are.

A convolution of a chunk of 2 to 4 rows does so little arithmetic that library calls cost several times the work. Over
a fixed length L it is a linear map of C_in * L numbers, and one matrix product applies it: 4 us against 20 to 70 us for
the 64- and 128-channel layers of the published U-Net (one thread, batch 1).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

LONGEST = 4
"""Above this length the matrix, which grows with its square, costs more than the convolution."""

type Conv = nn.Conv1d | nn.ConvTranspose1d


def fixed_length(conv: Conv, length: int) -> Callable[[Tensor], Tensor]:
    """``conv`` for inputs [B, C_in, length] without a graph: the same function up to rounding.

    Undilated, ungrouped convolutions with a bias. The weights are read now: later changes of ``conv`` don't arrive.
    """
    if length > LONGEST or conv.bias is None:
        if isinstance(conv, nn.Conv1d) and conv.stride[0] == 1:
            return partial(_unfolded, conv=conv)
        return conv
    matrix = conv_matrix(conv, length)
    out_length = matrix.shape[0] // conv.out_channels
    bias = conv.bias.detach().repeat_interleave(out_length)  # [C_out * L']
    return partial(_apply, matrix=matrix, bias=bias, channels=conv.out_channels)


@torch.no_grad()
def conv_matrix(conv: Conv, length: int) -> Tensor:
    """[C_out * L', C_in * L] matrix of the linear part of ``conv`` over inputs of ``length`` (L) rows."""
    kernel, stride, pad = conv.kernel_size[0], conv.stride[0], int(conv.padding[0])
    weight = conv.weight
    if isinstance(conv, nn.ConvTranspose1d):
        out_length = (length - 1) * stride - 2 * pad + kernel
        weight = weight.transpose(0, 1)  # [C_out, C_in, kernel]
    else:
        out_length = (length + 2 * pad - kernel) // stride + 1
    matrix = weight.new_zeros(conv.out_channels, out_length, conv.in_channels, length)
    if isinstance(conv, nn.ConvTranspose1d):
        for row in range(length):  # input row r reaches the outputs r * stride - pad + tap
            start = row * stride - pad
            low, high = max(0, start), min(out_length, start + kernel)
            matrix[:, low:high, :, row] = weight[:, :, low - start : high - start].transpose(1, 2)
    else:
        for row in range(out_length):  # output row r reads the inputs r * stride - pad + tap
            start = row * stride - pad
            low, high = max(0, start), min(length, start + kernel)
            matrix[:, row, :, low:high] = weight[:, :, low - start : high - start]
    return matrix.view(conv.out_channels * out_length, conv.in_channels * length)


def _apply(x: Tensor, *, matrix: Tensor, bias: Tensor, channels: int) -> Tensor:
    return functional.linear(x.flatten(1), matrix, bias).view(x.shape[0], channels, -1)


def _unfolded(x: Tensor, *, conv: nn.Conv1d) -> Tensor:
    """For a few rows, gather every window and multiply once: a third of the library's time for 128 channels."""
    B, length = x.shape[0], x.shape[2]
    if B * length > 8:
        return conv(x)
    pad, kernel = int(conv.padding[0]), conv.kernel_size[0]
    windows = functional.pad(x, (pad, pad)).unfold(2, kernel, 1)  # [B, C_in, L, kernel]
    rows = windows.permute(0, 2, 1, 3).reshape(B * length, -1)
    out = functional.linear(rows, conv.weight.view(conv.out_channels, -1), conv.bias)
    return out.view(B, length, -1).transpose(1, 2)
