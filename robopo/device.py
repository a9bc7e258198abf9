"""Choice of the device to compute on."""

from __future__ import annotations

import torch

from robopo.errors import ConfigError


def select_device(name: str = "auto") -> torch.device:
    """Turn ``auto``, ``cpu``, ``cuda``, ``cuda:1`` or ``mps`` into a device that exists.

    ``auto`` is CUDA where there is one, else the CPU: the networks here are too small for MPS to pay.
    Raises ConfigError when the device is unknown or absent.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device={name!r} is not a device; expected auto, cpu, cuda, cuda:<index> or mps") from error
    if device.type == "cuda":
        found = torch.cuda.device_count()
        if (device.index or 0) >= found:
            raise ConfigError(f"device={name!r}: torch {torch.__version__} sees {found} CUDA devices; use device=cpu")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("device='mps': this torch has no MPS; use device=cpu")
    return device
