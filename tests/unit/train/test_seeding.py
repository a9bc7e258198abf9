from __future__ import annotations

import pytest
import torch

from robopo.errors import ConfigError
from robopo.train.seeding import SeedTree


def test_streams_depend_on_seed_and_name_alone() -> None:
    tree = SeedTree(3)
    tree.child("other").numpy("x")  # making a sibling first changes nothing
    assert tree.child("sim").int("env") == SeedTree(3, ("sim",)).int("env")
    drawn = {SeedTree(seed).child(name).int("g") for seed in range(3) for name in ("sim", "policy")}
    assert len(drawn) == 6
    assert all(0 <= value < 2**63 for value in drawn)


def test_names_are_not_glued_together() -> None:
    assert SeedTree(0, ("a",)).int("bc") != SeedTree(0, ("ab",)).int("c")


def test_generators_repeat() -> None:
    first, second = (torch.randn(4, generator=SeedTree(1).torch("noise")) for _ in range(2))
    assert torch.equal(first, second)
    assert SeedTree(1).numpy("n").integers(1 << 60) == SeedTree(1).numpy("n").integers(1 << 60)


def test_seed_globals_covers_torch() -> None:
    SeedTree(5).seed_globals()
    first = torch.rand(3)
    SeedTree(5).seed_globals()
    assert torch.equal(first, torch.rand(3))


def test_negative_seed_is_refused() -> None:
    with pytest.raises(ConfigError, match="seed=-1"):
        SeedTree(-1)
