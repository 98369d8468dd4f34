"""What belongs together in small networks: the sites, their members and what each channel owns."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import obc
from tests.cases import case
from tests.nets.attention import FusedAttention, SeparateAttention
from tests.nets.gates import GatedMLP
from tests.nets.wrap import Wrap

conv, linear = nn.Conv2d, nn.Linear
PIXELS, ROWS, TOKENS = torch.zeros(1, 3, 6, 6), torch.zeros(2, 5), torch.zeros(2, 7, 12)


def picture(sites: obc.Sites) -> list[str]:
    """One line per site: its size, then member[dimension] and role, times what a channel owns."""
    lines = []
    for site in sites:
        parts = [
            f"{m.name}[{m.dim}] {m.role}"
            + (f" x{m.index.shape[1]}" if m.index.shape[1] > 1 else "")
            for m in site.members
        ]
        lines.append(f"{site.size} of {site.name}: {', '.join(parts)}")
    return lines


def residual(m: nn.Module, x: Tensor) -> Tensor:
    x = m.stem(x)
    return m.head(x + m.b(F.relu(m.a(x))))


def dense(m: nn.Module, x: Tensor) -> Tensor:
    a = m.a(x)
    b = m.b(a)
    return m.head(torch.cat([a, b, m.c(torch.cat([a, b], 1))], 1))


def into_slice(m: nn.Module, x: Tensor) -> Tensor:
    y = m.wide(x)
    y[:, :4] += m.narrow(x)
    return m.head(y)


def tied() -> nn.Module:
    model = Wrap(
        lambda m, x: m.head(F.gelu(m.embed(x))), embed=nn.Embedding(9, 4), head=linear(4, 9)
    )
    model.head.weight = model.embed.weight
    return model


NETS = {
    "conv, norm, conv": (
        nn.Sequential(conv(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), conv(8, 4, 3)),
        PIXELS,
        [
            "8 of 0: 0.weight[0] out, 0.bias[0] out, 1.weight[0] norm, 1.bias[0] norm, "
            "3.weight[1] in"
        ],
    ),
    "a residual sum": (
        Wrap(residual, stem=conv(3, 6, 1), a=conv(6, 5, 1), b=conv(5, 6, 1), head=conv(6, 2, 1)),
        PIXELS,
        [
            "6 of stem: stem.weight[0] out, stem.bias[0] out, a.weight[1] in, b.weight[0] out, "
            "b.bias[0] out, head.weight[1] in",
            "5 of a: a.weight[0] out, a.bias[0] out, b.weight[1] in",
        ],
    ),
    "a depthwise filter counts once": (
        nn.Sequential(conv(3, 6, 1), conv(6, 6, 3, groups=6, bias=False), conv(6, 4, 1)),
        PIXELS,
        ["6 of 0: 0.weight[0] out, 0.bias[0] out, 1.weight[0] out, 2.weight[1] in"],
    ),
    "few groups: the same place in each": (
        nn.Sequential(conv(3, 12, 1), conv(12, 8, 3, groups=2, bias=False), conv(8, 4, 1)),
        PIXELS,
        [
            "6 of 0: 0.weight[0] out x2, 0.bias[0] out x2, 1.weight[1] in",
            "4 of 1: 1.weight[0] out x2, 2.weight[1] in x2",
        ],
    ),
    "many groups: whole ones": (
        nn.Sequential(conv(3, 8, 1), conv(8, 12, 3, groups=4, bias=False), conv(12, 4, 1)),
        PIXELS,
        ["4 of 0: 0.weight[0] out x2, 0.bias[0] out x2, 1.weight[0] out x3, 2.weight[1] in x3"],
    ),
    "flattened": (
        nn.Sequential(conv(3, 5, 3), nn.Flatten(), linear(5 * 16, 3)),
        PIXELS,
        ["5 of 0: 0.weight[0] out, 0.bias[0] out, 2.weight[1] in x16"],
    ),
    "fused attention": (
        nn.Sequential(FusedAttention(12, 3, 4, "unbind")),
        TOKENS,
        ["3 of 0.qkv: 0.qkv.weight[0] out x12, 0.qkv.bias[0] out x12, 0.proj.weight[1] in x4"],
    ),
    "queries that share a key": (
        nn.Sequential(SeparateAttention(12, 6, 2, 5)),
        TOKENS,
        [
            "2 of 0.query: 0.query.weight[0] out x15, 0.query.bias[0] out x15, 0.key.weight[0] "
            "out x5, 0.value.weight[0] out x5, 0.value.bias[0] out x5, 0.out.weight[1] in x15"
        ],
    ),
    "concatenations": (
        Wrap(dense, a=conv(3, 4, 1), b=conv(4, 3, 1), c=conv(7, 2, 1), head=conv(9, 2, 1)),
        PIXELS,
        [
            "4 of a: a.weight[0] out, a.bias[0] out, b.weight[1] in, c.weight[1] in, "
            "head.weight[1] in",
            "3 of b: b.weight[0] out, b.bias[0] out, c.weight[1] in, head.weight[1] in",
            "2 of c: c.weight[0] out, c.bias[0] out, head.weight[1] in",
        ],
    ),
    "an embedding and its head, tied": (
        tied(),
        torch.zeros(2, 3, dtype=torch.long),
        ["4 of embed: embed.weight[1] out"],
    ),
    "a layer called twice": (
        Wrap(
            lambda m, x: m.head(m.twice(F.relu(m.twice(m.stem(x))))),
            stem=linear(5, 6),
            twice=linear(6, 6),
            head=linear(6, 2),
        ),
        ROWS,
        [
            "6 of stem: stem.weight[0] out, stem.bias[0] out, twice.weight[0] out, "
            "twice.weight[1] in, twice.bias[0] out, head.weight[1] in"
        ],
    ),
    "bare parameters": (
        Wrap(
            lambda m, x: F.linear(F.relu(x @ m.first * m.scale), m.last),
            first=nn.Parameter(torch.ones(5, 6)),
            scale=nn.Parameter(torch.ones(6)),
            last=nn.Parameter(torch.ones(2, 6)),
        ),
        ROWS,
        ["6 of first: first[1] out, scale[0] norm, last[1] in"],
    ),
    "what is written into a slice stays, the rest may go": (
        Wrap(into_slice, wide=linear(5, 9), narrow=linear(5, 4), head=linear(9, 2)),
        ROWS,
        ["5 of wide: wide.weight[0] out, wide.bias[0] out, head.weight[1] in"],
    ),
}


@pytest.mark.parametrize("name", NETS)
def test_members(name: str) -> None:
    model, example, expected = NETS[name]
    assert picture(obc.trace(model, example)) == expected


def owned(sites: obc.Sites, site: str, member: str) -> list[list[int]]:
    """What each channel of a site owns of a member."""
    return next(m.index.tolist() for m in sites[site].members if m.name == member)


def test_a_flattened_channel_owns_49_inputs() -> None:
    net = case("flatten_7x7")
    index = owned(obc.trace(net.model(), net.example()), "conv.0", "classifier.1.weight")
    assert index == torch.arange(6 * 49).view(6, 49).tolist()


def test_a_channel_flattened_last_owns_every_fifth_input() -> None:
    net = case("flatten_channels_last")
    index = owned(obc.trace(net.model(), net.example()), "conv.0", "fc1.weight")
    assert index == torch.arange(5 * 9).view(9, 5).t().tolist()


def test_a_head_owns_its_query_key_and_value() -> None:
    sites = obc.trace(nn.Sequential(FusedAttention(12, 3, 4, "chunk")), TOKENS)
    rows = torch.arange(36).view(3, 3, 4).transpose(0, 1).reshape(3, 12)
    assert owned(sites, "0.qkv", "0.qkv.weight") == rows.tolist()
    assert owned(sites, "0.qkv", "0.proj.weight") == torch.arange(12).view(3, 4).tolist()
    assert sites["0.qkv"].heads


@pytest.mark.parametrize("kind", ["chunk", "slice", "functional", "split", "unflatten"])
def test_a_gate_owns_its_partner_in_the_other_half(kind: str) -> None:
    sites = obc.trace(GatedMLP(kind), torch.zeros(2, 7, 6))
    assert owned(sites, "gate_up.0", "gate_up.0.weight") == [[c, 13 + c] for c in range(13)]


def test_an_interleaved_gate_owns_its_neighbour() -> None:
    sites = obc.trace(GatedMLP("interleaved"), torch.zeros(2, 7, 6))
    assert owned(sites, "gate_up.0", "gate_up.0.weight") == [[2 * c, 2 * c + 1] for c in range(13)]


def test_concatenated_channels_are_read_behind_those_before_them() -> None:
    model, example, _ = NETS["concatenations"]
    sites = obc.trace(model, example)
    assert owned(sites, "b", "head.weight") == [[4], [5], [6]]
    assert owned(sites, "c", "head.weight") == [[7], [8]]


def test_running_statistics_are_buffers_of_the_site_and_no_members() -> None:
    model, example, _ = NETS["conv, norm, conv"]
    site = obc.trace(model, example)["0"]
    assert [b.name for b in site.buffers] == ["1.running_mean", "1.running_var"]
    assert not {b.name for b in site.buffers} & {m.name for m in site.members}


@pytest.mark.parametrize("name", ["densenet", "qkv_chunk", "called_twice", "windows", "film"])
def test_no_position_belongs_to_two_channels(name: str) -> None:
    net = case(name)
    seen: set[tuple[str, int, int]] = set()
    for site in obc.trace(net.model(), net.example()):
        for m in (*site.members, *site.buffers):
            assert m.index.shape[0] == site.size
            places = {(m.name, m.dim, i) for i in m.index.flatten().tolist()}
            assert len(places) == m.index.numel() and not places & seen
            seen |= places


def test_sites_are_found_by_name_and_by_position() -> None:
    model, example, _ = NETS["a residual sum"]
    sites = obc.trace(model, example)
    assert [s.name for s in sites] == list(sites.names) == ["stem", "a"]
    assert sites[1] is sites["a"] and len(sites[:1]) == 1
    with pytest.raises(obc.ObcError, match=r"^no site named 'sten'; did you mean 'stem'\?(\n|$)"):
        sites["sten"]


def test_the_same_each_time() -> None:
    net = case("qkv_unbind")
    first, second = (picture(obc.trace(net.model(), net.example())) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("name", "operator"),
    [
        ("layer_norm", "native_layer_norm"),
        ("rms_norm", "mean"),
        ("rms_norm_by_hand", "mean"),
        ("channel_norm_by_hand", "mean"),
        ("group_norm", "native_group_norm"),
        ("softmax_channels", "_softmax"),
        ("cbam", "mean"),
    ],
)
def test_sites_say_which_statistics_run_over_their_channels(name: str, operator: str) -> None:
    net = case(name)
    places = [p for s in obc.trace(net.model(), net.example()) for p in s.statistics]
    assert any(place.startswith(f"{operator}, ") for place in places), places


@pytest.mark.parametrize("name", ["resnet20", "squeeze_excite"])
def test_other_sites_have_none(name: str) -> None:
    net = case(name)
    assert not any(s.statistics for s in obc.trace(net.model(), net.example()))
