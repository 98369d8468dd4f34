"""Bounds hold as often as they say: exactly for small samples, in simulation for the procedure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pytest
import torch

from obc.planning import binomial, bootstrap
from obc.planning.paired import drop_at_most, p_value

Bound = Callable[[int, int, int], float]


@pytest.mark.parametrize(("count", "trials"), [(0, 1), (0, 30), (3, 50), (49, 50), (700, 4000)])
def test_clopper_pearson_against_sums_of_whole_numbers(count: int, trials: int) -> None:
    limit = binomial.upper(count, trials, 0.05)
    tail = sum(
        math.exp(
            math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1)
            + k * math.log(limit) + (trials - k) * math.log1p(-limit)
        )
        for k in range(count + 1)
    )  # fmt: skip
    assert tail == pytest.approx(0.05, rel=1e-6)
    assert binomial.lower(trials - count, trials, 0.05) == pytest.approx(1 - limit)
    assert binomial.upper(trials, trials, 0.05) == 1
    assert binomial.lower(0, trials, 0.05) == 0


def chance(lost: int, gained: int, n: int, p: float, q: float) -> float:
    """The trinomial probability, from whole numbers."""
    ways = math.comb(n, lost) * math.comb(n - lost, gained)
    return ways * p**lost * q**gained * (1 - p - q) ** (n - lost - gained)


def worst_coverage(bound: Bound, n: int) -> float:
    """The lowest probability, over a grid of models, that a bound is at least the true drop."""
    outcomes = [(b, c) for b in range(n + 1) for c in range(n + 1 - b)]
    bounds = {pair: bound(*pair, n) for pair in outcomes}
    shares = [0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 0.97]
    return min(
        sum(chance(*pair, n, p, q) for pair in outcomes if bounds[pair] >= p - q - 1e-9)
        for p, q in itertools.product(shares, shares)
        if p + q <= 1
    )


def wald(lost: int, gained: int, n: int) -> float:
    drop = (lost - gained) / n
    return drop + 1.645 * math.sqrt(max(0.0, (lost + gained) / n - drop**2) / n)


def test_the_paired_bound_covers_whatever_the_models() -> None:
    assert worst_coverage(drop_at_most, 9) >= 0.95


def test_a_normal_approximation_does_not() -> None:
    assert worst_coverage(wald, 9) < 0.6


def test_the_p_value_is_the_largest_over_all_models() -> None:
    """Against trinomial sums on a fine grid, which can only be lower; and not by much."""
    n, drop, t, most = 40, 0.1, -1, 0.4
    pairs = [(b, c) for b in range(n + 1) for c in range(n + 1 - b) if b - c <= t]
    grid = np.linspace(0, (most - drop) / 2, 31)
    largest = max(sum(chance(b, c, n, q + drop, q) for b, c in pairs) for q in grid)
    assert largest <= p_value(drop, t, n, most) <= largest * 1.05


def test_the_bound_tightens_with_samples_and_is_not_much_wider_than_the_normal_one() -> None:
    bounds = [drop_at_most(6 * k, 4 * k, 300 * k) for k in (1, 4, 16)]
    assert bounds == sorted(bounds, reverse=True)
    assert wald(96, 64, 4800) < bounds[-1] < wald(96, 64, 4800) + 0.001


# -- the procedure, in a world where the true drops are known -------------------------------

LIMIT, SAMPLES, DIFFER = 0.02, 500, 0.03
DROPS = (0.0, 0.01, 0.018, *[0.021] * 12)  # from large models to small ones


@cache
def promised(lost: int, gained: int) -> bool:
    """Whether the bound is within the limit: the test that the bound inverts."""
    most = binomial.upper(lost + gained, SAMPLES, 0.005)
    return p_value(LIMIT, lost - gained, SAMPLES, most) + 0.005 <= 0.05


def judged(generator: np.random.Generator) -> list[bool]:
    """Which candidates a split of the data would promise."""
    shares = [((DIFFER + d) / 2, (DIFFER - d) / 2, 1 - DIFFER) for d in DROPS]
    return [promised(*map(int, generator.multinomial(SAMPLES, p)[:2])) for p in shares]


def test_in_a_fixed_sequence_promises_are_kept_and_by_the_best_on_the_search_split_not() -> None:
    generator = np.random.default_rng(0)
    runs, in_order, uncorrected = 200, 0, 0
    for _ in range(runs):
        passed = judged(generator)
        first_failure = passed.index(False) if False in passed else len(passed)
        in_order += first_failure > 0 and DROPS[first_failure - 1] > LIMIT
        smallest = max((i for i, ok in enumerate(passed) if ok), default=0)
        uncorrected += DROPS[smallest] > LIMIT
    noise = 2 * math.sqrt(0.05 * 0.95 / runs)
    assert in_order / runs <= 0.05 + noise
    assert uncorrected / runs > 0.05 + noise


def test_the_bootstrap_of_pairs_is_that_of_their_differences_and_narrower_than_unpaired() -> None:
    generator = torch.Generator().manual_seed(1)
    shared, noise = torch.randn(2, 300, 1, generator=generator, dtype=torch.float64)
    pair = [shared, shared + 0.05 + 0.1 * noise]

    def loss(totals: Sequence[torch.Tensor]) -> float:
        return float(totals[1] - totals[0]) / 300

    estimate = loss([rows.sum(0) for rows in pair])
    bound = bootstrap.upper(loss, pair)
    expected = estimate + 1.645 * float((pair[1] - pair[0]).std()) / math.sqrt(300)
    assert bound == pytest.approx(expected, rel=0.05)
    apart = bootstrap.upper(loss, [pair[0][torch.randperm(300)], pair[1]])
    assert apart - estimate > 5 * (bound - estimate)
