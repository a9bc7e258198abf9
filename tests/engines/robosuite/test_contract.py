"""The contract of every simulator, held by robosuite's too."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from sims.base import VecSim
from tests.contract.test_vecsim import *  # noqa: F403
from tests.engines.robosuite.factories import SIMS


@pytest.fixture(params=sorted(SIMS))
def make_sim(request: pytest.FixtureRequest) -> Iterator[Callable[..., VecSim]]:
    """In place of the imported one."""
    opened: list[VecSim] = []

    def make(num_envs: int, **kwargs: object) -> VecSim:
        opened.append(SIMS[request.param](num_envs, **kwargs))
        return opened[-1]

    yield make
    for sim in opened:
        sim.close()
