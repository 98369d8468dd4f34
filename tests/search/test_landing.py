"""The last step against all combinations there are."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from obc.costs.polynomials import Products
from obc.costs.targets import TOLERANCE
from obc.search.landing import evenly, land
from obc.search.ranking import Chunk, chunks_of, ranked
from obc.tracing.rules.products import Dim


def chain(widths: list[int], weights: list[int]) -> Products:
    """A chain of layers: the cost of each is the product of two neighbours' widths."""
    sites = [Dim(n, ((i, 1),)) for i, n in enumerate(widths)]
    dims = [Dim(3), *sites, Dim(5)]
    pairs = itertools.pairwise(dims)
    return Products([(w, list(p)) for w, p in zip(weights, pairs, strict=False)], widths)


@given(
    widths=st.lists(st.integers(2, 9), min_size=1, max_size=4),
    weights=st.lists(st.integers(1, 60), min_size=5, max_size=5),
    share=st.floats(0.2, 0.99),
    data=st.data(),
)
def test_a_landing_is_found_if_and_only_if_there_is_one(
    widths: list[int], weights: list[int], share: float, data: st.DataObject
) -> None:
    value = chain(widths, weights)
    levels = [list(range(n, 0, -1)) for n in widths]
    limit = share * float(value(torch.tensor([widths])))
    every = torch.tensor(list(itertools.product(*levels)))
    costs = value(every).double()
    possible = (costs <= limit) & (costs * TOLERANCE >= limit)
    ranking = data.draw(st.permutations(evenly(levels)))
    found = land(value, levels, [], ranking, limit)
    assert found.met == bool(possible.any())
    counts = [own[p] for own, p in zip(levels, found.places, strict=True)]
    assert float(value(torch.tensor([counts]))) == found.value
    if found.met:
        assert found.value <= limit <= found.value * TOLERANCE
    else:
        assert abs(found.value - limit) == pytest.approx(float((costs - limit).abs().min()))


def test_the_ranking_is_followed_where_it_fits() -> None:
    value = chain([40, 40], [1, 1, 1])
    levels = [list(range(40, 0, -1))] * 2
    ranking = [0, 0, 1, 0, 1, 1] * 6
    limit = float(value(torch.tensor([[34, 36]])))
    assert land(value, levels, [], ranking, limit).places == (6, 4)


def test_a_removal_that_overshoots_is_passed_over() -> None:
    """The first site is far too coarse for what is left; the second one fits."""
    value = Products([(100, [Dim(10, ((0, 1),))]), (1, [Dim(50, ((1, 1),))])], [10, 50])
    levels = [list(range(10, 0, -1)), list(range(50, 0, -1))]
    found = land(value, levels, [], [0] * 5 + [1] * 30, 1050.0 - 105.0)
    assert (found.places, found.met) == ((1, 5), True)


def test_removals_are_taken_back_where_nothing_else_fits() -> None:
    """After two of the first site only its neighbour could land, and that one is at its floor."""
    value = Products([(10, [Dim(30, ((0, 1),))]), (7, [Dim(30, ((1, 1),))])], [30, 30])
    levels = [list(range(30, 0, -1)), [30, 29, 28]]
    limit = 510.0 - 14 - 10
    found = land(value, levels, [0, 0], [0] * 9, limit)
    assert found.met
    assert found.places == (1, 2)


def test_large_models_land_too() -> None:
    widths = [64] * 12
    value = chain(widths, [97] * 12)
    levels = [list(range(64, 0, -8)) for _ in widths]
    whole = float(value(torch.tensor([widths])))
    met = [land(value, levels, [], evenly(levels), whole / s).met for s in (1.3, 2.0, 3.7)]
    assert all(met)


# The order of removal.


def chunk(site: int, *scores: float) -> Chunk:
    return Chunk(site, tuple(range(len(scores))), scores)


def test_channels_go_in_portions_from_the_lowest_score_up() -> None:
    scores = torch.tensor([5.0, 1.0, 4.0, 2.0, 3.0])
    portions = chunks_of(0, [10, 11, 12, 13, 14], scores, [5, 4, 2])
    assert [c.channels for c in portions] == [(11,), (13, 14)]
    assert [c.scores for c in portions] == [(1.0,), (2.0, 3.0)]


def test_equal_scores_go_in_the_order_of_their_index() -> None:
    portions = chunks_of(0, [3, 5, 9], torch.ones(3), [3, 2, 1])
    assert [c.channels for c in portions] == [(3,), (5,)]


def test_rounding_does_not_turn_portions_around() -> None:
    first = chunk(0, 0.1, 0.1, 0.1)  # its mean is a little more than 0.1
    second = chunk(0, 0.1)
    assert sum(first.scores) / 3 > 0.1
    assert ranked([[first, second]], "global", [0], [9], [9], None) == [first, second]


def test_a_saving_of_nothing_comes_last() -> None:
    cheap, dear = chunk(0, 1.0), chunk(1, 50.0)
    order = ranked([[cheap], [dear]], "global", [0, 1], [2, 2], [2, 2], torch.tensor([0.0, 3.0]))
    assert order == [dear, cheap]
