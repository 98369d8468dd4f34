"""Channels that are cut, rolled and picked: what the code takes literally stays.

Each network is traced, and every site is pruned to each of its single channels and to each lack of
one: a literal position that was overlooked shows in one of them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import obc
from tests.examples import floats
from tests.nets.wrap import Wrap
from tests.sensitive import sensitive

Body = Callable[[Any, Tensor], Tensor]


def net(body: Body, width: int = 6, read: int | None = None, **layers: nn.Module) -> nn.Module:
    """A linear layer of so many channels, what is done with them, and a layer that reads it."""
    head = nn.Linear(width if read is None else read, 3)

    def run(m: Any, x: Tensor) -> Tensor:
        return m.head(body(m, F.gelu(m.stem(x))))

    return sensitive(Wrap(run, stem=nn.Linear(5, width), head=head, **layers))


def written(m: Any, x: Tensor, wide: int) -> Tensor:
    y = x.clone()
    y[:, :wide] += m.side(x)
    return y


def added_to_one(m: Any, x: Tensor) -> Tensor:
    return torch.cat([x[:, :1] + x[:, 3:4], x[:, 1:]], 1)


def shuffled_and_swapped(m: Any, x: Tensor) -> Tensor:
    """Both leave but two units, and a shuffle of one unit is another shuffle."""
    shuffled = x.unflatten(1, (4, -1)).transpose(1, 2).flatten(1)
    return torch.cat([shuffled, *x.chunk(2, 1)[::-1]], 1)


def chunked_and_cut(m: Any, x: Tensor) -> Tensor:
    """A chunk rounds up: with one channel less its first part is as long as before."""
    first, second = x.chunk(2, 1)
    return torch.cat([first + m.side(second), second, x.narrow(1, 0, 4)], 1)


def overwritten(m: Any, x: Tensor) -> Tensor:
    y = x.clone()
    y[:, 2] = 1.5
    return y


NETS: dict[str, Callable[[], nn.Module]] = {
    "the first": lambda: net(lambda m, x: x[:, :1], read=1),
    "the first two": lambda: net(lambda m, x: x[:, :2], read=2),
    "the last": lambda: net(lambda m, x: x[:, -1:], read=1),
    "all but the first": lambda: net(lambda m, x: x[:, 1:], read=5),
    "all but the last": lambda: net(lambda m, x: x[:, :-1], read=5),
    "every second": lambda: net(lambda m, x: x[:, ::2], read=3),
    "every second of seven": lambda: net(lambda m, x: x[:, ::2], 7, 4),
    "one and the rest": lambda: net(lambda m, x: torch.cat([x[:, 1:], x[:, :1].tanh()], 1)),
    "half of a half": lambda: net(lambda m, x: x.chunk(2, 1)[0].chunk(2, 1)[1], 8, 2),
    "half, and a piece of it": lambda: net(lambda m, x: x[:, :4][:, :1], 8, 1),
    "chunked, and cut": lambda: net(chunked_and_cut, 8, 12, side=nn.Linear(4, 4)),
    "split in three": lambda: net(lambda m, x: torch.cat(x.split([1, 2, 3], 1)[::-1], 1)),
    "rolled": lambda: net(lambda m, x: x.roll(1, 1)),
    "rolled by two": lambda: net(lambda m, x: x.roll(-2, 1)),
    "rolled onto itself": lambda: net(lambda m, x: x + x.roll(3, 1)),
    "flipped": lambda: net(lambda m, x: x.flip(1)),
    "picked": lambda: net(lambda m, x: x[:, [4, 0, 1]], read=3),
    "one picked": lambda: net(lambda m, x: x * x[:, 2:3]),
    "one selected": lambda: net(lambda m, x: x * x[:, 2, None]),
    "one added to another": lambda: net(added_to_one),
    "one overwritten": lambda: net(overwritten),
    "one written": lambda: net(lambda m, x: written(m, x, 1), side=nn.Linear(6, 1)),
    "two written": lambda: net(lambda m, x: written(m, x, 2), side=nn.Linear(6, 2)),
    "two of three written": lambda: net(lambda m, x: written(m, x, 2), 3, side=nn.Linear(3, 2)),
    "padded before": lambda: net(lambda m, x: F.pad(x, (2, 0)), read=8),
    "folded": lambda: net(lambda m, x: x.view(-1, 2, 3).amax(1), read=3),
    "folded, following": lambda: net(lambda m, x: x.view(len(x), 2, -1).amax(1), read=3),
    "shuffled": lambda: net(lambda m, x: x.unflatten(1, (2, -1)).mT.flatten(1), 8),
    "shuffled and swapped": lambda: net(shuffled_and_swapped, 8, 16),
    "sorted": lambda: net(lambda m, x: x.sort(1).values),
    "gathered": lambda: net(lambda m, x: x.gather(1, torch.tensor([[5, 0]] * 4)), read=2),
    "repeated": lambda: net(lambda m, x: x.repeat(1, 2), read=12),
    "repeated in place": lambda: net(lambda m, x: x.repeat_interleave(2, 1), read=12),
    "a triangle": lambda: net(lambda m, x: (x[:, :, None] * x[:, None]).tril().sum(2)),
}


def plans(sites: obc.Sites) -> Iterator[dict[str, list[int]]]:
    for site in sites:
        for c in range(site.size):
            yield {site.name: [c]}
            yield {site.name: [i for i in range(site.size) if i != c]}


@pytest.mark.parametrize("name", NETS)
def test_every_plan_that_the_trace_allows_is_right(name: str) -> None:
    model, example = NETS[name](), floats(4, 5)
    sites = obc.trace(model, example)
    for kept in plans(sites):
        plan = obc.Plan.from_kept(sites, kept)
        pruned = obc.apply(copy.deepcopy(model), plan, example=example)
        assert obc.verify(model, pruned, plan, example) < 1e-9


@pytest.mark.parametrize(
    ("name", "size"),
    {
        "flipped": 6,
        "folded, following": 3,
        "repeated": 6,
        "repeated in place": 6,
        "padded before": 6,
        "all but the first": 5,
        "every second": 3,
        "two written": 4,
    }.items(),
)
def test_what_follows_is_not_frozen(name: str, size: int) -> None:
    assert obc.trace(NETS[name](), floats(4, 5))["stem"].size == size


def test_cuts_of_a_view_are_not_those_of_what_it_views() -> None:
    """Half of a tensor begins at the same address as the whole."""

    def run(m: Any, x: Tensor) -> Tensor:
        y = F.glu(m.stem(x), 1)
        return m.first(y[:, :1]) + m.rest(y[:, 1:]) + m.most(m.stem(x)[:, :7])

    layers = {n: nn.Linear(k, 3) for n, k in (("first", 1), ("rest", 3), ("most", 7))}
    obc.trace(Wrap(run, stem=nn.Linear(5, 8), **layers), torch.zeros(2, 5))


@pytest.mark.parametrize(("width", "start"), [(8, 3), (6, 1), (6, 2), (9, 4)])
def test_a_part_that_is_put_out_holds_where_it_starts(width: int, start: int) -> None:
    """Fewer channels before it would shift what is put out."""

    def run(m: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        y = m.stem(x)
        return m.head(y), y[:, start:]

    model = sensitive(Wrap(run, stem=nn.Linear(5, width), head=nn.Linear(width, 3)))
    sites = obc.trace(model, floats(4, 5))
    for kept in plans(sites):
        plan = obc.Plan.from_kept(sites, kept)
        obc.apply(copy.deepcopy(model), plan, example=floats(4, 5))
    assert not sites
