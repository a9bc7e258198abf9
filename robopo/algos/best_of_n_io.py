"""A best-of-N policy as a folder: the policy's own two files, and the critic that chooses beside them.

``load_acting`` gives back whatever the folder acts with, ``robopo.policies.io.load_policy`` the proposing policy alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from robopo.critics.q_ensemble import QConfig, QEnsemble
from robopo.errors import CheckpointError, RobopoError
from robopo.nn.activation import Activation
from robopo.policies.best_of_n import BestOfN
from robopo.policies.chunk_policy import ChunkPolicy
from robopo.policies.io import WEIGHTS, SavedPolicy, load_policy, read_config, save_policy

SCHEMA = "robopo.best_of_n/1"
CRITIC_WEIGHTS, CRITIC_CONFIG = "critic.safetensors", "critic.json"

ACTS_BY = "acts_by"
"""Entry of the policy's provenance that says that a critic belongs to it."""


def save_best_of_n(folder: Path, acting: BestOfN, provenance: Mapping[str, Any]) -> None:
    """Write policy and critic into the existing ``folder``. provenance: JSON values, as in ``save_policy``.

    A stop in between leaves a folder that ``load_acting`` refuses: the critic's file names the hashes of both weights.
    """
    critic = acting.critic
    if not isinstance(critic, QEnsemble):
        raise CheckpointError(f"a {type(critic).__name__} can't be saved: expected a QEnsemble as the critic")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    save_policy(folder, acting.policy, {**provenance, ACTS_BY: SCHEMA})
    weights = save_tensors({name: value.detach().cpu().contiguous() for name, value in critic.state_dict().items()})
    (folder / CRITIC_WEIGHTS).write_bytes(weights)
    c = critic.config
    description = {
        "schema": SCHEMA,
        "candidates": acting.candidates,
        "critic": {
            "heads": c.heads,
            "hidden": list(c.hidden),
            "layer_norm": c.layer_norm,
            "activation": c.activation.value,
        },
        "critic_sha256": hashlib.sha256(weights).hexdigest(),
        "policy_sha256": hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest(),
    }
    (folder / CRITIC_CONFIG).write_text(json.dumps(description, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def load_acting(folder: Path, device: torch.device | str = "cpu") -> SavedPolicy | BestOfN:
    """What acts: the policy of ``folder``, or the best of N of its samples when it was saved with a critic.

    In evaluation mode, on ``device``. Raises CheckpointError when a file is missing or belongs to another one.
    """
    folder = Path(folder)
    policy = load_policy(folder, device)
    if read_config(folder).get("provenance", {}).get(ACTS_BY) != SCHEMA:
        return policy
    if not isinstance(policy, ChunkPolicy):
        raise CheckpointError(f"{folder} names a critic, but its policy is a {type(policy).__name__}")
    config = _read_description(folder)
    raw = _read(folder / CRITIC_WEIGHTS)
    for name, data in ((CRITIC_WEIGHTS, raw), (WEIGHTS, _read(folder / WEIGHTS))):
        key = "critic_sha256" if name == CRITIC_WEIGHTS else "policy_sha256"
        if hashlib.sha256(data).hexdigest() != config.get(key):
            raise CheckpointError(
                f"{folder / name} isn't the file that {CRITIC_CONFIG} was written with: it was cut short, replaced, or "
                "saving was interrupted; copy the folder again or use an earlier one"
            )
    try:
        critic = _build(config, policy)
        critic.load_state_dict(load_tensors(raw), strict=True)
        acting = BestOfN(policy, critic.to(device), int(config["candidates"]))
    except (RobopoError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{folder / CRITIC_CONFIG} doesn't describe the critic: {error!r}") from error
    return acting.eval().requires_grad_(False)


def _build(config: Mapping[str, Any], policy: ChunkPolicy) -> QEnsemble:
    sizes = dict(config["critic"])
    sizes |= {"hidden": tuple(sizes["hidden"]), "activation": Activation(sizes["activation"])}
    spec = policy.spec
    return QEnsemble(spec.obs, spec.obs_steps, spec.action_steps, spec.action_dim, QConfig(**sizes), policy.normalizer)


def _read_description(folder: Path) -> dict[str, Any]:
    path = folder / CRITIC_CONFIG
    try:
        config = json.loads(_read(path))
        schema = config["schema"]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} isn't a critic's description ({error}); it was cut short or edited") from error
    if schema != SCHEMA:
        raise CheckpointError(f"{path} has schema {schema!r}, expected {SCHEMA!r}; was it written by another robopo?")
    return config


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"{path} can't be read ({error.strerror or error}): this policy acts by a critic that must lie beside it"
        ) from error
