"""Sites: all channels that live in the same layers, and what cannot be pruned and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import torch
from torch import Tensor, nn

from obc.errors import ObcError, closest
from obc.running.modules import check_model, tensors_of
from obc.tracing.experts import counting, fold, whole
from obc.tracing.flow import Flow, Leaf, labelled_dims
from obc.tracing.ledger import Ledger, Listed, any_between
from obc.tracing.members import Member
from obc.tracing.packed import packed
from obc.tracing.solve import Classes
from obc.tracing.wiring import Wiring, wire


@dataclass(frozen=True)
class Site:
    """Channels that live in the same layers.

    `buffers` are sliced along but are worth nothing; `attributes` are numbers that the user's
    modules keep of these channels, such as "blocks.0.attn.num_heads". `statistics` are places
    where a mean, a norm or a softmax runs over these channels: after a cut, over the kept ones.
    `picked` is how many of them, experts of a mixture, a router picks: at least as many stay.
    """

    name: str
    size: int
    members: tuple[Member, ...]
    buffers: tuple[Member, ...] = ()
    heads: bool = False
    attributes: tuple[str, ...] = ()
    statistics: tuple[str, ...] = ()
    picked: int = 0

    @property
    def modules(self) -> list[tuple[str, tuple[str, ...]]]:
        """Lists of modules that are its channels: the module that holds them, and their keys."""
        return list(dict.fromkeys((m.layer, m.keys) for m in self.members if m.keys and not m.dim))


@dataclass(frozen=True)
class Frozen:
    """Channels that stay, the operator or layer that froze them, and why."""

    layer: str
    size: int
    reason: str
    op: str
    where: str

    def __str__(self) -> str:
        return f"{self.layer} ({self.size} channels): {self.reason} ({self.where})"


class Sites(Sequence[Site]):
    """The sites of a model, in the order in which it runs; by position or by name."""

    def __init__(
        self,
        sites: Sequence[Site],
        frozen: Sequence[Frozen] = (),
        untouched: Sequence[str] = (),
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        example: Any = None,
        wiring: Wiring | None = None,
    ) -> None:
        self._sites = tuple(sites)
        self._by_name = {s.name: s for s in sites}
        self.frozen = tuple(frozen)
        self.untouched = tuple(untouched)
        self.shapes = dict(shapes or {})
        self.example = example
        self.wiring = wiring or Wiring()

    def with_attributes(self, attributes: Mapping[str, tuple[str, ...]]) -> Sites:
        """The same sites, some with attributes that were found to count their channels."""
        sites = [replace(s, attributes=attributes.get(s.name, s.attributes)) for s in self]
        return Sites(sites, self.frozen, self.untouched, self.shapes, self.example, self.wiring)

    @overload
    def __getitem__(self, key: int | str) -> Site: ...
    @overload
    def __getitem__(self, key: slice) -> Sequence[Site]: ...
    def __getitem__(self, key: int | str | slice) -> Site | Sequence[Site]:
        if not isinstance(key, str):
            return self._sites[key]
        if key not in self._by_name:
            raise ObcError(f"no site named '{key}'{closest(key, self._by_name)}", section="names")
        return self._by_name[key]

    def __len__(self) -> int:
        return len(self._sites)

    def __iter__(self) -> Iterator[Site]:
        return iter(self._sites)

    @staticmethod
    def checked(sites: object) -> Sites:
        """The sites, if they are some."""
        if not isinstance(sites, Sites):
            raise ObcError(f"sites are what obc.trace gives, not a {type(sites).__name__}")
        return sites

    def check(self, model: nn.Module) -> None:
        """Refuse a model that these sites were not traced from."""
        shapes = shapes_of(model)
        for name, shape in self.shapes.items():
            if shapes.get(name) != shape:
                there = f"{list(shapes[name])} here" if name in shapes else "missing here"
                raise ObcError(f"these sites are of another model: '{name}' is {there}")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._by_name)

    def __repr__(self) -> str:
        rows = [f"{s.name}: {s.size} x {len(s.members)} members" for s in self]
        rows += [f"frozen {f}" for f in self.frozen]
        return "\n".join(rows)


_Key = tuple[str, int, int]


@dataclass
class _Dim:
    """One dimension of one leaf: its ids, and the parts it played."""

    leaf: Leaf
    dim: int
    ids: Tensor
    start: int  # the first of the ids, which follow each other
    first: int  # where the range begins whose classes they have
    role: str
    is_parameter: bool

    def __post_init__(self) -> None:
        self.layer, _, self.param = self.leaf.name.rpartition(".")

    def part(self, values: Tensor) -> Tensor:
        """Of a value for each id, those of this dimension."""
        return values[self.start : self.start + self.ids.numel()]


def build(
    flow: Flow,
    classes: Classes,
    model: nn.Module,
    untouched: Sequence[str],
    example: Any,
    names: Mapping[_Key, str] | None = None,
) -> Sites:
    """Group free classes by the leaves they live in; report the others that put channels out.

    `names` are those of a trace that froze less, by the place where a site begins.
    """
    dims = _dims(flow)
    has = {role: flow.ledger.marked(role, classes.of) for role in flow.ledger.roles}
    free = (classes.why < 0) & has["out"] & (has["in"] | has["read"])
    read = free | (classes.why >= 0)
    sites, lone = _group(dims, classes, free, has["head"], flow.ledger)
    sites = [_with_picks(site, flow, classes, model) for site in sites]
    frozen = _frozen(dims, classes, lone, read)
    for layer, size, why in packed(model):
        frozen.append(Frozen(layer, size, why.text, "", str(why.place)))
    sites = _distinct(sites, names)
    return Sites(sites, frozen, untouched, shapes_of(model), example, wire(flow))


def shapes_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter and buffer: what a plan recognises its model by."""
    tensors = sorted(
        tensors_of(check_model(model)).items(), key=lambda item: not _is_parameter(item[1])
    )
    return {name: tuple(tensor.shape) for name, tensor in tensors}


def _is_parameter(tensor: Tensor) -> bool:
    return isinstance(tensor, nn.Parameter)


def _dims(flow: Flow) -> list[_Dim]:
    dims = labelled_dims(flow.leaves.values())
    starts, sizes = [start for *_, start in dims], [ids.numel() for _, _, ids, _ in dims]
    out, reads = (any_between(flow.ledger.marked(r), starts, sizes) for r in ("out", "in"))
    roles = ["out" if o else "in" if i else "norm" for o, i in zip(out, reads, strict=True)]
    return [
        _Dim(leaf, dim, ids, start, flow.ledger.first(start), role, _is_parameter(leaf.tensor))
        for (leaf, dim, ids, start), role in zip(dims, roles, strict=True)
    ]


def _group(
    dims: list[_Dim],
    classes: Classes,
    free: Tensor,
    heads: Tensor,
    ledger: Ledger,
) -> tuple[list[Site], Tensor]:
    """Classes with the same counts in the same leaf dimensions make a site.

    Dimension after dimension, since each is short and stays in the processor's cache. Ids are
    issued in the order of the dimensions, so classes are in the order of their first position.
    """
    of = classes.of
    units = free.nonzero().reshape(-1)
    lone = torch.zeros_like(free)
    alike: dict[int, list[_Dim]] = {}
    for d in dims:
        alike.setdefault(d.first, []).append(d)
    # A sum of random weights, one per leaf dimension, is the same for equal counts and no others;
    # dimensions that are tied as wholes have one weight together.
    random = torch.Generator().manual_seed(0)
    weights = torch.randint(-(2**62), 2**62, (len(alike),), generator=random)
    signature = torch.zeros_like(of)
    for (first, *_), weight in zip(alike.values(), weights, strict=True):
        cls = first.part(of)
        signature.scatter_add_(0, cls, weight.expand_as(cls))
    kinds, kind = signature[units].unique(return_inverse=True)
    site_of = torch.full_like(of, -1, dtype=torch.int32)
    site_of[units] = kind.int()
    size = torch.bincount(kind, minlength=len(kinds))
    count = size.tolist()
    members: list[list[tuple[_Dim, Tensor]]] = [[] for _ in count]
    stretches = {}
    for start, (first, *_) in alike.items():
        cls = first.part(of)
        parts = _stretches(site_of.index_select(0, cls), cls)
        stretches[start] = [(k, positions.view(count[k], -1)) for k, positions in parts]
    for d in dims:
        for k, index in stretches[d.first]:
            members[k].append((d, index))
    mixed: list[dict[str, None]] = [{} for _ in kinds]
    for ids, place in ledger.statistics:
        for k in site_of[of[ids[ids >= 0]]].unique().tolist():
            if k >= 0:
                mixed[k][str(place)] = None
    begin = torch.full_like(size, of.numel()).scatter_reduce_(0, kind, units, "amin")
    in_heads = torch.zeros_like(size).scatter_add_(0, kind, heads[units].long()).tolist()
    sites = [
        _site(members[k], count[k], bool(in_heads[k]), tuple(mixed[k]), ledger.lists)
        for k in torch.argsort(begin).tolist()
        if count[k] > 1
    ]
    lone[units[size[kind] == 1]] = True
    return sites, lone


def _stretches(sites: Tensor, cls: Tensor) -> Iterator[tuple[int, Tensor]]:
    """For each site in one dimension its positions, ordered by channel.

    >>> list(_stretches(torch.tensor([0, -1, 0, 1]), torch.tensor([5, 0, 3, 4])))
    [(0, tensor([2, 0])), (1, tensor([3]))]
    """
    low, high = (int(edge) for edge in torch.aminmax(sites))
    if high < 0:
        return
    in_order = bool((cls[1:] > cls[:-1]).all())
    order = torch.arange(cls.numel()) if in_order else torch.argsort(cls, stable=True)
    if low == high:  # by far the most common
        yield low, order
        return
    runs, counts = torch.unique_consecutive(sites[order], return_counts=True)
    numbers = runs.tolist()
    if len(set(numbers)) < len(numbers):
        order = order[torch.argsort(sites[order], stable=True)]
        runs, counts = torch.unique_consecutive(sites[order], return_counts=True)
        numbers = runs.tolist()
    for site, index in zip(numbers, order.split(counts.tolist()), strict=True):
        if site >= 0:
            yield site, index


def _site(
    parts: list[tuple[_Dim, Tensor]],
    size: int,
    heads: bool,
    statistics: tuple[str, ...],
    lists: Sequence[Listed],
) -> Site:
    """A site from its leaf dimensions; positions come ordered by channel, as [size, k]."""
    puts = {d.layer for d, _ in parts if d.role == "out" and d.is_parameter}
    members: list[Member] = []
    buffers: list[Member] = []
    for d, index in parts:
        # A bias may reach its channels by a plain addition; it still belongs to the filter.
        bias = d.role == "norm" and d.is_parameter and d.param.endswith("bias")
        role = "out" if bias and d.layer in puts else d.role
        member = Member(d.layer, d.param, d.dim, role, index)
        (members if d.is_parameter else buffers).append(member)
    members, buffers = fold(members, lists), fold(buffers, lists)
    name = next((m.layer or m.param for m in members if m.role == "out"), members[0].name)
    return Site(name, size, tuple(members), tuple(buffers), heads, statistics=statistics)


def _with_picks(site: Site, flow: Flow, classes: Classes, model: nn.Module) -> Site:
    """A site of experts with the number of them that are picked, and with their modules."""
    leaves = {leaf.name: leaf for leaf in flow.leaves.values()} if flow.ledger.picks else {}
    counts, modules, attributes = [0], [], site.attributes
    if leaves:
        first = site.members[0]
        name, dim = first.places[0]
        ids = leaves[name].dims[dim]
        assert ids is not None
        one = classes.of[ids[first.index[0, 0]]]
        counts += [p.count for p in flow.ledger.picks if one in classes.of[p.ids]]
        for listed in flow.ledger.lists:
            if one in classes.of[listed.ids]:
                modules += whole(model, listed)
                attributes += counting(model, listed, first.layer)
    members = (*site.members, *modules)
    return replace(site, picked=max(counts), members=members, attributes=attributes)


def _distinct(sites: list[Site], names: Mapping[_Key, str] | None) -> list[Site]:
    """One layer may put out several sites; later ones are numbered.

    With `names`, those of a trace that froze less, a site has the name it had there.
    """
    seen: dict[str, int] = {}
    result = []
    for site in sites:
        count = seen[site.name] = seen.get(site.name, 0) + 1
        name = site.name if count == 1 else f"{site.name}#{count}"
        if names is not None:
            place = place_of(site)
            name = names.get(place) or f"{site.name}@{place[2]}"
        result.append(replace(site, name=name))
    return result


def place_of(site: Site) -> _Key:
    """Where a site begins: parameter, dimension and position."""
    member = next((m for m in site.members if m.role == "out"), site.members[0])
    return member.name, member.dim, int(member.index.min())


def _frozen(dims: list[_Dim], classes: Classes, lone: Tensor, read: Tensor) -> list[Frozen]:
    """What the layers put out that stays; a weight and its bias are mentioned once."""
    frozen: dict[tuple[str, str, str], Frozen] = {}
    stays = (classes.why >= 0) | ~read | lone
    for d in dims:
        if d.role != "out" or not d.is_parameter:
            continue
        layer = d.layer or d.param
        cls = d.part(classes.of)
        if not stays[cls].any():
            continue
        why = classes.why[cls]
        causes = [
            (why == i, classes.reasons[i].text, classes.reasons[i].place)
            for i in why.unique().tolist()
            if i >= 0
        ]
        causes.append((lone[cls] & (why < 0), "all of it is one unit", None))
        causes.append((~read[cls], "nothing reads it", None))
        for flag, text, place in causes:
            if flag.any():
                op, where = (place.op, str(place)) if place else ("", layer)
                frozen[layer, text, where] = Frozen(layer, int(flag.sum()), text, op, where)
    return list(frozen.values())
