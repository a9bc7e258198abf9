"""A policy as a folder: ``model.safetensors`` and ``config.json``, enough to build it again on its own.

config.json holds the schema version, the spec, the configurations of network, process and policy (with the sampler, K'
and the floors), the SHA-256 of the weights file, and where the weights come from. The normaliser's statistics are among
the weights.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from robopo.errors import CheckpointError, RobopoError
from robopo.nn.dit import DiTConfig
from robopo.nn.mlp import DiffusionMLPConfig
from robopo.nn.unet1d import UNet1DConfig
from robopo.policies.base import PolicySpec
from robopo.policies.build import NetConfig, build_chunk_policy
from robopo.policies.chunk_policy import ChunkPolicy
from robopo.policies.config import ChunkPolicyConfig
from robopo.policies.config_json import plain, restore
from robopo.policies.gaussian_build import DirectPolicy, describe, rebuild
from robopo.policies.normalizer import MinMaxNormalizer
from robopo.policies.vision import describe_vision, restore_vision
from robopo.processes.base import DiffusionConfig, ProcessKind
from robopo.processes.flow import FlowConfig

SCHEMA = "robopo.policy/1"
WEIGHTS, CONFIG = "model.safetensors", "config.json"
CHUNK = "chunk"
"""Value of ``kind`` in config.json for a policy with a denoising chain."""

type SavedPolicy = ChunkPolicy | DirectPolicy
"""What a folder may hold: a policy with a denoising chain, or one that draws its chunk at once."""

_NETS: dict[str, type[NetConfig]] = {"diffusion_mlp": DiffusionMLPConfig, "unet1d": UNet1DConfig, "dit": DiTConfig}


def save_policy(folder: Path, policy: SavedPolicy, provenance: Mapping[str, Any]) -> None:
    """Write ``policy`` into ``folder``; provenance: JSON values (revision, seed, data, ...).

    A new folder appears complete or not at all. In an existing folder each file is replaced whole, the configuration
    last; a stop between the two is found by ``load_policy``, since the configuration names the weights' hash.
    """
    folder = Path(folder)
    # Exploration noise is for training: acting never needs it.
    kept = {name: value for name, value in policy.state_dict().items() if not name.startswith("noise_net.")}
    weights = save_tensors({name: value.detach().cpu().contiguous() for name, value in kept.items()})
    text = json.dumps(_describe(policy, weights, provenance), indent=2, sort_keys=True) + "\n"
    if folder.exists():
        _write(folder / WEIGHTS, weights)
        _write(folder / CONFIG, text.encode())
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        _write(temporary / WEIGHTS, weights)
        _write(temporary / CONFIG, text.encode())
        temporary.chmod(0o755)
        os.replace(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def load_policy(folder: Path, device: torch.device | str = "cpu") -> SavedPolicy:
    """Build the policy of ``folder``, in evaluation mode, on ``device``.

    Raises CheckpointError when a file is missing, cut short, of another schema, or doesn't fit the configuration.
    """
    folder = Path(folder)
    config = read_config(folder)
    raw = _read(folder / WEIGHTS)
    if (found := hashlib.sha256(raw).hexdigest()) != config.get("weights_sha256"):
        raise CheckpointError(
            f"{folder / WEIGHTS} ({len(raw)} bytes, sha256 {found[:12]}...) isn't the file that {CONFIG} was written "
            "with: it was cut short, replaced, or saving was interrupted; copy the folder again or use an earlier one"
        )
    try:
        state = load_tensors(raw)
        policy = _build(config)
    except (RobopoError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{folder / CONFIG} doesn't describe a policy: {error!r}") from error
    _check_state(folder, policy, state)
    policy.load_state_dict(state, strict=True)
    return policy.to(device).eval()


def read_config(folder: Path) -> dict[str, Any]:
    """Parse ``config.json`` and check its schema. Raises CheckpointError."""
    path = Path(folder) / CONFIG
    try:
        config = json.loads(_read(path))
    except ValueError as error:
        raise CheckpointError(f"{path} isn't JSON ({error}); it was cut short or edited") from error
    schema = cast("dict[str, Any]", config).get("schema") if isinstance(config, dict) else None
    if schema != SCHEMA:
        raise CheckpointError(f"{path} has schema {schema!r}, expected {SCHEMA!r}; was it written by another robopo?")
    return cast("dict[str, Any]", config)


def _describe(policy: SavedPolicy, weights: bytes, provenance: Mapping[str, Any]) -> dict[str, Any]:
    common = {
        "schema": SCHEMA,
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
        "provenance": dict(provenance),
    }
    if not isinstance(policy, ChunkPolicy):
        return {**describe(policy), **common}
    net_config = getattr(policy.net, "config", None)
    kind = next((name for name, cls in _NETS.items() if isinstance(net_config, cls)), None)
    if kind is None:
        raise CheckpointError(
            f"a policy with a {type(policy.net).__name__} can't be saved: known networks are {', '.join(_NETS)}"
        )
    return {
        "kind": CHUNK,
        "spec": plain(policy.spec),
        "net": {"kind": kind, **plain(net_config)},
        "process": plain(policy.process.config),
        "policy": plain(policy.config),
        **describe_vision(policy.net),
        **common,
    }


def _build(config: Mapping[str, Any]) -> SavedPolicy:
    if config.get("kind", CHUNK) != CHUNK:  # folders from before there were others name no kind
        return rebuild(config)
    spec = PolicySpec(**config["spec"])
    net = dict(config["net"])
    net_config = restore(_NETS[net.pop("kind")], net)
    # The statistics' shapes are the spec's; their values come with the weights.
    sizes = {**spec.obs, "action": spec.action_dim}
    normalizer = MinMaxNormalizer({key: (torch.zeros(n), torch.ones(n)) for key, n in sizes.items()})
    return build_chunk_policy(
        spec,
        net_config,
        restore(FlowConfig if config["process"]["kind"] == ProcessKind.FLOW else DiffusionConfig, config["process"]),
        restore(ChunkPolicyConfig, config["policy"]),
        normalizer,
        restore_vision(config),
    )


def _check_state(folder: Path, policy: SavedPolicy, state: Mapping[str, Tensor]) -> None:
    expected = {name: list(value.shape) for name, value in policy.state_dict().items()}
    found = {name: list(value.shape) for name, value in state.items()}
    if missing := sorted(expected.keys() - found.keys()):
        raise CheckpointError(f"{folder / WEIGHTS} lacks {len(missing)} tensors, first {missing[0]!r}; see {CONFIG}")
    if unknown := sorted(found.keys() - expected.keys()):
        raise CheckpointError(
            f"{folder / WEIGHTS} holds {len(unknown)} tensors that the policy of {CONFIG} lacks, first {unknown[0]!r}"
        )
    for name, shape in expected.items():
        if found[name] != shape:
            raise CheckpointError(f"{folder / WEIGHTS}: {name!r} is {found[name]}, {CONFIG} says {shape}")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise CheckpointError(
            f"{path} can't be read ({reason}); a policy folder holds {CONFIG} and {WEIGHTS}"
        ) from error


def _write(path: Path, data: bytes) -> None:
    """Replace ``path`` by ``data`` in one step that survives a crash."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
