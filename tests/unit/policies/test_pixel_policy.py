"""Policies of pictures: where the encoder is asked, who learns it, and what a folder keeps of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from robopo.errors import ConfigError, ShapeError
from robopo.nn.gaussian_mlp import GaussianMLPConfig
from robopo.nn.mlp import DiffusionMLPConfig
from robopo.nn.unet1d import UNet1DConfig
from robopo.nn.vision import vision_of
from robopo.nn.vision_build import VisionNetConfig
from robopo.nn.vision_resnet import ResNetConfig
from robopo.nn.vision_vit import VitConfig
from robopo.policies.base import PolicySpec
from robopo.policies.build import NetConfig, build_chunk_policy
from robopo.policies.chunk_policy import ChunkPolicy
from robopo.policies.config import ChunkPolicyConfig
from robopo.policies.gaussian import GaussianPolicy
from robopo.policies.gaussian_build import build_gaussian, build_gmm
from robopo.policies.io import load_policy, save_policy
from robopo.policies.normalizer import MinMaxNormalizer
from robopo.policies.one_step import OneStepConfig
from robopo.policies.zero_noise import ZeroNoise
from robopo.processes.base import DiffusionConfig, ProcessKind
from robopo.processes.exploration import Exploration
from robopo.processes.flow import FlowConfig
from robopo.processes.transitions import LearnedNoise

VIT = VitConfig(features=8, width=16, shift=2)
RESNET = ResNetConfig(features=8, width=16, keypoints=4, shift=0)
MLP, UNET = DiffusionMLPConfig(hidden=(16, 16, 16), time_dim=4), UNet1DConfig(dim=8, groups=4, time_dim=4)
IMAGES = {"image_wrist": (24, 24, 3), "image_front": (24, 24, 3)}
DDIM = DiffusionConfig(kind=ProcessKind.DDIM, num_train_steps=8, num_steps=4)


def spec(obs: Mapping[str, int] | None = None, *, obs_steps: int = 1) -> PolicySpec:
    numbers = {"state": 3} if obs is None else obs
    return PolicySpec(numbers, 2, ("x", "y"), obs_steps=obs_steps, horizon=4, action_steps=4, images=IMAGES)


def normalizer(of: PolicySpec) -> MinMaxNormalizer:
    sizes = {**of.obs, "action": of.action_dim}
    return MinMaxNormalizer({key: (-torch.ones(n), torch.ones(n)) for key, n in sizes.items()})


def chunk_policy(
    of: PolicySpec | None = None, vision: VisionNetConfig = VIT, net: NetConfig = MLP, *, flow: bool = False
) -> ChunkPolicy:
    torch.manual_seed(0)
    of = of or spec()
    process = FlowConfig(num_steps=4) if flow else DDIM
    return build_chunk_policy(of, net, process, ChunkPolicyConfig(), normalizer(of), vision)


def gaussian(vision: VisionNetConfig = VIT) -> GaussianPolicy:
    torch.manual_seed(0)
    return build_gaussian(spec(), GaussianMLPConfig(hidden=(16, 16, 16)), OneStepConfig(), normalizer(spec()), vision)


def observe(of: PolicySpec, rows: int = 5, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    found = {key: torch.rand(rows, of.obs_steps, n, generator=generator) for key, n in of.obs.items()}
    for key, shape in of.images.items():
        found[key] = torch.randint(0, 256, (rows, of.obs_steps, *shape), dtype=torch.uint8, generator=generator)
    return found


def seeded(n: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(n)


def count_calls(module: torch.nn.Module) -> list[int]:
    calls: list[int] = []
    module.register_forward_hook(lambda *_: calls.append(1))
    return calls


def test_the_encoder_is_asked_once_per_chain_and_by_each_network_for_itself() -> None:
    policy = chunk_policy()
    policy.begin_finetuning(4)
    vision, frozen = vision_of(policy.net), vision_of(policy.frozen_net or policy.net)
    assert vision is not None and frozen is not None and frozen is not vision
    mine, old = count_calls(vision), count_calls(frozen)
    obs = observe(policy.spec)
    _, chain = policy.sample_chain(obs, generator=seeded())
    assert (len(mine), len(old)) == (1, 0)
    policy.replay(obs, chain.latents)
    policy.act(obs, generator=seeded())
    assert (len(mine), len(old)) == (3, 0)

    partly = chunk_policy()
    partly.begin_finetuning(2)
    mine, old = (count_calls(net) for net in (vision_of(partly.net), vision_of(partly.frozen_net or partly.net)) if net)
    partly.sample_chain(obs, generator=seeded())
    assert (len(mine), len(old)) == (1, 1)


def test_a_frozen_step_sees_through_the_frozen_encoder() -> None:
    policy, obs = chunk_policy(), observe(spec())
    policy.begin_finetuning(0)
    before, noise = policy.act(obs, noise=torch.zeros(5, 4, 2)), torch.zeros(5, 4, 2)
    with torch.no_grad():
        for parameter in policy.net.parameters():
            parameter.add_(0.3)
    assert policy.act(obs, noise=noise).equal(before)
    assert policy.sample_differentiable(obs, noise=noise).allclose(policy.normalizer.apply("action", before), atol=1e-6)


@pytest.mark.parametrize("obs_steps", [1, 2])
@pytest.mark.parametrize("vision", [VIT, RESNET])
def test_the_ratio_is_exactly_one_before_an_update(vision: VisionNetConfig, obs_steps: int) -> None:
    policy = chunk_policy(spec(obs_steps=obs_steps), vision)
    policy.begin_finetuning(3)
    obs = observe(policy.spec)
    _, chain = policy.sample_chain(obs, generator=seeded())
    again = policy.rescore(obs, chain.latents)
    assert policy.replay(obs, chain.latents).equal(chain.log_probs)
    assert again.log_probs.equal(chain.log_probs)
    assert chain.means is not None and again.means is not None and again.means.equal(chain.means)


def test_learned_noise_reads_the_features() -> None:
    policy = chunk_policy(flow=True)
    policy.begin_finetuning(4, Exploration(LearnedNoise(hidden=(8,))))
    assert policy.noise_net is not None
    with torch.no_grad():
        for parameter in policy.noise_net.body.parameters():
            parameter.uniform_(-1.0, 1.0)  # a fresh one says the same everywhere
    obs = observe(policy.spec)
    _, chain = policy.sample_chain(obs, generator=seeded())
    assert policy.replay(obs, chain.latents).equal(chain.log_probs)
    assert chain.stds is not None and not chain.stds[0].equal(chain.stds[1])


@pytest.mark.parametrize("kind", ["chunk", "flow", "gaussian"])
def test_gradients_reach_the_encoder_in_cloning_and_in_fine_tuning(kind: str) -> None:
    policy = gaussian() if kind == "gaussian" else chunk_policy(flow=kind == "flow")
    obs, action = observe(policy.spec), torch.rand(5, 4, 2)
    vision = vision_of(policy.net)
    assert vision is not None
    policy.bc_loss(obs, action, seeded()).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0.0 for p in vision.parameters())
    policy.zero_grad()
    if kind == "flow":
        policy.begin_finetuning(4, Exploration(LearnedNoise(hidden=(8,))))
    else:
        policy.begin_finetuning(1)
    _, chain = policy.sample_chain(obs, generator=seeded())
    policy.replay(obs, chain.latents).sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0.0 for p in vision.parameters())
    assert {id(p) for p in vision.parameters()} <= {id(p) for p in policy.trainable()}


def test_cloning_shifts_pictures_and_acting_does_not() -> None:
    policy, still = chunk_policy(vision=VIT), chunk_policy(vision=VitConfig(features=8, width=16, shift=0))
    obs, action = observe(policy.spec), torch.rand(5, 4, 2)
    kept = {key: value.clone() for key, value in obs.items()}
    assert policy.bc_loss(obs, action, seeded(1)).equal(policy.bc_loss(obs, action, seeded(1)))
    assert not policy.bc_loss(obs, action, seeded(1)).equal(still.bc_loss(obs, action, seeded(1)))
    noise = torch.zeros(5, 4, 2)
    assert policy.act(obs, noise=noise).equal(still.act(obs, noise=noise))
    assert all(obs[key].equal(value) for key, value in kept.items())


def test_a_policy_sees_its_own_entries_alone() -> None:
    policy, noise = chunk_policy(), torch.zeros(5, 4, 2)
    obs = observe(policy.spec)
    more = {**obs, "environment_state": torch.full((5, 1, 7), torch.nan)}
    assert policy.act(more, noise=noise).equal(policy.act(obs, noise=noise))
    changed = {**obs, "image_front": 255 - obs["image_front"]}
    assert not policy.act(changed, noise=noise).equal(policy.act(obs, noise=noise))


def test_pictures_alone_are_enough() -> None:
    policy = chunk_policy(spec({}))
    obs = observe(policy.spec)
    assert list(policy.act(obs, generator=seeded()).shape) == [5, 4, 2]
    zero = ZeroNoise(policy).act(obs)
    assert zero.dtype == torch.float32
    assert zero.equal(policy.act(obs, noise=torch.zeros(5, 4, 2)))


@pytest.mark.parametrize("case", ["vit", "resnet", "unet", "gaussian", "gmm", "finetuned"])
def test_a_folder_gives_back_the_same_policy(case: str, tmp_path: Path) -> None:
    if case == "gaussian":
        policy = gaussian()
    elif case == "gmm":
        policy = build_gmm(spec(), GaussianMLPConfig(hidden=(16, 16, 16)), OneStepConfig(), normalizer(spec()), VIT)
    else:
        policy = chunk_policy(vision=RESNET if case == "resnet" else VIT, net=UNET if case == "unet" else MLP)
    if case == "finetuned":
        policy.begin_finetuning(2)
    save_policy(tmp_path / "p", policy, {})
    loaded = load_policy(tmp_path / "p")
    obs = observe(policy.spec)
    assert loaded.spec == policy.spec
    assert loaded.act(obs, generator=seeded()).equal(policy.eval().act(obs, generator=seeded()))
    config = json.loads((tmp_path / "p" / "config.json").read_text())
    assert config["vision"]["kind"] == ("resnet" if case == "resnet" else "vit")
    assert config["spec"]["images"] == {"image_front": [24, 24, 3], "image_wrist": [24, 24, 3]}


def test_specs_of_older_folders_have_no_pictures() -> None:
    old = PolicySpec(obs={"state": 3}, action_dim=2, action_names=("x", "y"))
    assert old.images == {}
    assert spec().cond_dim == 3


def test_mistakes_are_told() -> None:
    policy = chunk_policy()
    obs = observe(policy.spec)
    with pytest.raises(ShapeError, match="picture 'image_front' is missing"):
        policy.act({key: value for key, value in obs.items() if key != "image_front"})
    with pytest.raises(ShapeError, match=r"torch\.float32.*expected torch\.uint8 \[B, 1, 24, 24, 3\]"):
        policy.act({**obs, "image_front": obs["image_front"].float()})
    with pytest.raises(ConfigError, match=r"policy\.vision"):
        build_chunk_policy(spec(), MLP, DDIM, ChunkPolicyConfig(), normalizer(spec()))
    with pytest.raises(ConfigError, match="numbers and pictures at once"):
        PolicySpec({"image_front": 3}, 2, ("x", "y"), images=IMAGES)
    with pytest.raises(ConfigError, match="height, width, 3"):
        PolicySpec({"state": 3}, 2, ("x", "y"), images={"image_front": (24, 24, 1)})
    states = PolicySpec({"state": 3}, 2, ("x", "y"))
    blind = build_chunk_policy(states, MLP, DDIM, ChunkPolicyConfig(), normalizer(states))
    with pytest.raises(ConfigError, match="sees no pictures"):
        ChunkPolicy(spec(), blind.net, policy.process, policy.normalizer)


def test_pictures_of_the_host_follow_the_weights_to_their_device() -> None:
    """The meta device stands in for an accelerator: whatever stays behind on the host is an error there."""
    policy = chunk_policy().to("meta")
    obs = {key: value if value.dtype == torch.uint8 else value.to("meta") for key, value in observe(spec()).items()}
    assert obs["image_front"].device.type == "cpu"
    assert policy.encode(obs).device.type == "meta"
    assert policy.bc_loss(obs, torch.rand(5, 4, 2, device="meta"), None).device.type == "meta"
    alone = chunk_policy(spec({})).to("meta")
    assert alone.encode({key: obs[key] for key in IMAGES}).device.type == "meta"
