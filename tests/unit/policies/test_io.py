"""A saved folder gives back the same policy, or says why not."""

from __future__ import annotations

import json
import os

import pytest
import torch
from safetensors.torch import load_file, save_file

from robopo.errors import CheckpointError
from robopo.nn.dit import DiTConfig
from robopo.policies import io
from robopo.policies.config import ChunkPolicyConfig, Reduce
from robopo.policies.io import load_policy, read_config, save_policy

from .toy import DDIM_5, DDPM_20, MLP, UNET, make_obs, make_policy, rng

DIT = DiTConfig(width=8, depth=2, heads=2, state_hidden=(6,))


@pytest.mark.parametrize("net", [MLP, UNET, DIT])
@pytest.mark.parametrize("process", [DDIM_5, DDPM_20])
@pytest.mark.parametrize("ft_steps", [None, 0, 3])
def test_a_loaded_policy_acts_and_scores_the_same(tmp_path, net, process, ft_steps):
    policy = make_policy(net, process, ChunkPolicyConfig(ft_steps=ft_steps, reduce=Reduce.SUM, obs_clip=5.0))
    with torch.no_grad():
        for p in policy.net.parameters():
            p.add_(0.05 * torch.randn_like(p))
    save_policy(tmp_path / "policy", policy, {"seed": 3})
    loaded = load_policy(tmp_path / "policy")
    assert (loaded.spec, loaded.config, loaded.process.config) == (policy.spec, policy.config, policy.process.config)
    assert loaded.net.config == net
    assert torch.equal(loaded.act(make_obs(), generator=rng()), policy.act(make_obs(), generator=rng()))
    (chunk, chain), (other, again) = (p.sample_chain(make_obs(), generator=rng()) for p in (policy, loaded))
    assert torch.equal(chunk, other)
    assert torch.equal(chain.log_probs, again.log_probs)
    assert read_config(tmp_path / "policy")["provenance"] == {"seed": 3}


def test_saving_leaves_two_files_and_overwrites(tmp_path):
    folder = tmp_path / "new" / "policy"
    save_policy(folder, make_policy(), {})
    other = make_policy(UNET, seed=5)
    save_policy(folder, other, {})
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert [p.name for p in folder.parent.iterdir()] == ["policy"]
    assert torch.equal(load_policy(folder).act(make_obs(), generator=rng()), other.act(make_obs(), generator=rng()))


def test_an_interrupted_save_leaves_no_folder(tmp_path, monkeypatch):
    def full(*args):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="disk full"):
        save_policy(tmp_path / "policy", make_policy(), {})
    assert list(tmp_path.iterdir()) == []


def test_an_overwrite_cut_between_the_files_is_found(tmp_path, monkeypatch):
    save_policy(tmp_path, make_policy(), {})
    write = io._write

    def first_only(path, data):
        if path.name == "config.json":
            raise OSError("power cut")
        write(path, data)

    monkeypatch.setattr(io, "_write", first_only)
    with pytest.raises(OSError, match="power cut"):
        save_policy(tmp_path, make_policy(seed=9), {})
    with pytest.raises(CheckpointError, match=r"isn't the file that config.json was written with"):
        load_policy(tmp_path)


def edit(folder, change):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


def rehash(folder):
    import hashlib

    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    edit(folder, lambda c: c.update(weights_sha256=digest))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_missing_files(tmp_path, name):
    save_policy(tmp_path, make_policy(), {})
    (tmp_path / name).unlink()
    with pytest.raises(CheckpointError, match=rf"{name} can't be read.*a policy folder holds"):
        load_policy(tmp_path)


def test_missing_folder(tmp_path):
    with pytest.raises(CheckpointError, match="nowhere"):
        load_policy(tmp_path / "nowhere")


@pytest.mark.parametrize(("name", "message"), [("config.json", "isn't JSON"), ("model.safetensors", "cut short")])
@pytest.mark.parametrize("left", [0, 40])
def test_truncated_files(tmp_path, name, message, left):
    save_policy(tmp_path, make_policy(), {})
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(CheckpointError, match=message):
        load_policy(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(schema="robopo.policy/9"), "schema 'robopo.policy/9', expected 'robopo.policy/1'"),
        (lambda c: c["net"].update(hidden=[64, 64, 64]), r"'net.body.input.weight' is \[32, 34\].*\[64, 34\]"),
        (lambda c: c["policy"].update(ft_steps=2), "lacks 12 tensors, first 'frozen_net"),
        (lambda c: c["policy"].pop("reduce"), "reduce"),
        (lambda c: c["policy"].update(surprise=1), "surprise"),
        (lambda c: c["net"].update(kind="transformer"), "transformer"),
        (lambda c: c["process"].update(kind="euler"), "euler"),
        (lambda c: c.pop("spec"), "spec"),
        (lambda c: c["spec"].update(action_steps=9), "action_steps=9"),
    ],
)
def test_configurations_that_do_not_fit(tmp_path, change, message):
    save_policy(tmp_path, make_policy(), {})
    edit(tmp_path, change)
    with pytest.raises(CheckpointError, match=message):
        load_policy(tmp_path)


def test_foreign_tensors(tmp_path):
    save_policy(tmp_path, make_policy(), {})
    path = tmp_path / "model.safetensors"
    save_file({**load_file(path), "extra": torch.zeros(1)}, path)
    rehash(tmp_path)
    with pytest.raises(CheckpointError, match="first 'extra'"):
        load_policy(tmp_path)


def test_unknown_networks_are_refused_before_writing(tmp_path):
    policy = make_policy()
    policy.net = torch.nn.Linear(1, 1)
    with pytest.raises(CheckpointError, match="Linear can't be saved"):
        save_policy(tmp_path / "policy", policy, {})
    assert not (tmp_path / "policy").exists()
