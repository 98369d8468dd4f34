"""Few attempts tell which sites fail, and nothing is given up beside them."""

from __future__ import annotations

import torch

from obc.tracing.halving import Failure, Group, sort
from obc.tracing.ledger import Place
from obc.tracing.members import Member
from obc.tracing.sites import Site


def site(layer: str) -> Site:
    return Site(layer, 4, (Member(layer, "weight", 0, "out", torch.arange(4)[:, None]),))


class Network:
    """A model in which some layers cannot be narrowed; counts how often it is tried."""

    def __init__(self, *bad: str) -> None:
        self.bad, self.runs = bad, 0

    def attempt(self, sites: list[Site]) -> Failure | None:
        self.runs += 1
        names = {s.name for s in sites}
        layer = next((name for name in self.bad if name in names), None)
        return layer and Failure(Place(layer.rpartition(".")[0], "", ""), layer)  # type: ignore[return-value]

    def sorted(self, groups: list[Group], passed_by: tuple[str, ...] = ()) -> tuple[set[str], ...]:
        fine, failures = sort(groups, self.attempt, lambda *_: None, passed_by)
        return {s.name for s in fine}, {s.name for group, _ in failures for s in group}


def test_the_module_that_fails_says_where_to_look() -> None:
    net = Network("blocks.17.a", "blocks.40.b")
    groups = [[site(f"blocks.{i}.{x}")] for i in range(64) for x in "ab"]
    fine, failed = net.sorted(groups)
    assert failed == set(net.bad) and len(fine) == 126
    assert net.runs <= 12  # by halves alone it takes about thirty


def test_without_a_place_halves_will_do() -> None:
    net = Network("odd")
    fine, failed = net.sorted([[site(f"layer{i}")] for i in range(8)] + [[site("odd")]])
    assert failed == {"odd"} and len(fine) == 8


def test_of_a_group_only_those_to_blame_are_given_up() -> None:
    group = [site(f"blocks.{i}.a") for i in range(6)]
    assert Network("blocks.1.a", "blocks.4.a").sorted([group])[1] == {"blocks.1.a", "blocks.4.a"}
    every = {s.name for s in group}
    assert Network(*sorted(every)).sorted([group])[1] == every


def test_what_an_attempt_passes_by_goes_with_its_group() -> None:
    group = [site(f"blocks.{i}.a") for i in range(6)]
    assert len(Network("blocks.1.a").sorted([group], ("blocks.5",))[1]) == 6
