"""Sets of continuations: objective, diversity and advantages worked out by hand."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from robopo.losses.polychromic import cluster_labels, diversity, polychromic_advantage


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]  # [N, 1]


def labels(*values: int) -> Tensor:
    return torch.tensor(values)[:, None]


def sets(*members: tuple[int, ...]) -> Tensor:
    return torch.tensor(members)[..., None]  # [M, n, 1]


def test_by_hand() -> None:
    # g0 = {0, 1}: returns 1, 1, same way: f = 1 * 1/2. g1 = {1, 2}: 1, 0, two ways: f = 1/2 * 1. g2 = {0, 3}: 1, 1,
    # two ways: f = 1. Mean 2/3: A = -1/6, -1/6, 1/3. Continuation 0 is in g0 and g2: 1/12.
    out = polychromic_advantage(
        returns=column(1, 1, 0, 1, 5), labels=labels(0, 0, 2, 3, 4), sets=sets((0, 1), (1, 2), (0, 3))
    )
    torch.testing.assert_close(out.advantage, column(1 / 12, -1 / 6, -1 / 6, 1 / 3, 0))
    assert out.member[:, 0].tolist() == [True, True, True, True, False]


def test_equal_sets_and_failures_have_no_advantage() -> None:
    equal = polychromic_advantage(
        returns=column(0.1, 0.7, 0.3), labels=labels(0, 1, 1), sets=sets(*[(0, 1, 2), (2, 0, 1), (1, 2, 0)])
    )
    assert equal.advantage.abs().max() < 1e-15
    same = polychromic_advantage(
        returns=column(0.1, 0.7, 0.3).float(), labels=labels(0, 1, 1), sets=sets(*[(0, 1, 2)] * 3)
    )
    assert same.advantage.eq(0).all()
    failed = polychromic_advantage(returns=column(0, 0, 0, 0), labels=labels(0, 1, 2, 3), sets=sets((0, 1), (2, 3)))
    assert failed.advantage.eq(0).all()


def test_columns_are_independent() -> None:
    generator = torch.Generator().manual_seed(1)
    returns = torch.rand(8, 5, generator=generator, dtype=torch.float64)
    ways = torch.randint(0, 3, (8, 5), generator=generator)
    chosen = torch.rand(4, 8, 5, generator=generator).argsort(dim=1)[:, :4]
    whole = polychromic_advantage(returns=returns, labels=ways, sets=chosen)
    for b in range(5):
        part = slice(b, b + 1)
        alone = polychromic_advantage(returns=returns[:, part], labels=ways[:, part], sets=chosen[..., part])
        assert alone.advantage.equal(whole.advantage[:, part])
        assert alone.member.equal(whole.member[:, part])


def test_diversity_is_a_share_and_ignores_order_and_names() -> None:
    for ways, expected in (((4, 4, 4, 4), 0.25), ((4, 9, 4, 9), 0.5), ((1, 2, 3, 1), 0.75), ((0, 1, 2, 3), 1.0)):
        for order in itertools.permutations(ways):
            assert float(diversity(torch.tensor(order))) == expected
    assert diversity(torch.tensor([[0, 0], [0, 1]])).tolist() == [0.5, 1.0]


def test_clusters_are_chains_of_neighbours() -> None:
    # 0 - .9 - 1.8 hang together at radius 1, 5 stands alone: the ends differ by more than the radius.
    points = torch.tensor([0.0, 5.0, 1.8, 0.9])[:, None, None, None]  # [N, 1, 1, 1]
    assert cluster_labels(points, radius=1.0)[:, 0].tolist() == [0, 1, 0, 0]
    assert cluster_labels(points, radius=0.5)[:, 0].tolist() == [0, 1, 2, 3]
    # A chain whose links are found in the worst order
    chain = torch.tensor([7.0, 1.0, 6.0, 2.0, 5.0, 3.0, 4.0, 0.0])[:, None, None, None]
    assert cluster_labels(chain, radius=1.0).unique().tolist() == [0]


def test_paths_differ_when_one_waypoint_does() -> None:
    left, right = [[0.0, 1.0], [2.0, 0.0]], [[0.0, -1.0], [2.0, 0.0]]  # around an obstacle, to the same end
    points = torch.tensor([left, right, left])[:, None]  # [N, 1, P, D]
    assert cluster_labels(points, radius=0.5)[:, 0].tolist() == [0, 1, 0]
    assert cluster_labels(points[:, :, 1:], radius=0.5)[:, 0].tolist() == [0, 0, 0]


def test_clustering_is_permutation_invariant() -> None:
    generator = torch.Generator().manual_seed(2)
    points = torch.randn(7, 3, 2, 2, generator=generator)
    found = cluster_labels(points, radius=1.5)
    order = torch.randperm(7, generator=generator)
    again = cluster_labels(points[order], radius=1.5)
    for b in range(3):
        same, shuffled = found[:, None, b] == found[None, :, b], again[:, None, b] == again[None, :, b]
        assert shuffled.equal(same[order][:, order])
    assert len({len(found[:, b].unique()) for b in range(3)} - {1, 7}) >= 1  # the radius tells some apart, not all


def test_a_path_that_is_not_finite_stands_alone() -> None:
    points = torch.tensor([0.0, float("nan"), 0.0])[:, None, None, None]
    assert cluster_labels(points, radius=1.0)[:, 0].tolist() == [0, 1, 0]
