"""Joint redundancy, beside least squares from scratch after each removal."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import obc
from obc.criteria import takeover
from obc.criteria.reading import Reading
from obc.criteria.structure import parts_of
from obc.criteria.takeover import RIDGE, Reader
from obc.running.processes import Group
from obc.search.estimate import estimate


def ridged(gram: Tensor) -> Tensor:
    return gram + RIDGE * gram.diagonal().mean() * torch.eye(len(gram)).double()


def least_squares(weight: Tensor, gram: Tensor, kept: list[int]) -> float:
    """The error of the best weights on the inputs that stay, summed over outputs and taps."""
    rows = weight.double().movedim(1, -1).flatten(0, -2)
    change = rows.clone()
    if kept:
        change[:, kept] -= torch.linalg.solve(gram[kept][:, kept], gram[kept] @ rows.T).T
    return float(((change @ gram) * change).sum())


def correlated(width: int, rows: int = 300) -> Tensor:
    x = torch.randn(rows, width, generator=torch.Generator().manual_seed(0)).double()
    return x.cumsum(1)


@pytest.mark.parametrize("blocks", [[[3], [6], [0], [2]], [[3, 4], [6, 7], [0, 1]]])
def test_the_steps_add_up_to_the_error_of_least_squares(blocks: list[list[int]]) -> None:
    weight = torch.randn(5, 8, 3, 3, dtype=torch.float64)
    x = correlated(8)
    gram = x.T @ x / len(x)
    reader, variance = (
        Reader(weight.movedim(1, 0).flatten(1), gram),
        least_squares(weight, gram, []),
    )
    alone = reader.increase(torch.tensor(blocks)).sum()
    total, kept = 0.0, list(range(8))
    for block in blocks:
        total += float(reader.increase(torch.tensor([block])))
        reader.remove(torch.tensor(block))
        kept = [k for k in kept if k not in block]
        expected = least_squares(weight, ridged(gram), kept) / variance
        assert total == pytest.approx(expected, rel=1e-9)
    assert float(alone) != pytest.approx(total, rel=1e-3)  # what each costs alone does not add up


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_covariances_are_those_of_all_rows(dtype: torch.dtype, atol: float) -> None:
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 1)).to(dtype)
    batches = [1000 + torch.randn(5, 2, 6, 6).to(dtype) for _ in range(3)]  # far from zero
    sites = obc.trace(net, batches[0][:1])
    read = Reading(net, {site.name: parts_of(site) for site in sites}, sites.wiring)
    for batch in batches:
        read.take(lambda batch=batch: net(batch))
    rows = net[1](net[0](torch.cat(batches))).movedim(1, -1).reshape(-1, 4).detach().double()
    [(reader, index)] = read.places(Group())["0"]
    expected = ridged(torch.cov(rows.T, correction=0))
    assert torch.allclose(torch.linalg.inv(reader.inverse), expected, rtol=1e-3, atol=atol)
    assert index.tolist() == [[0], [1], [2], [3]]


class Joined(nn.Module):
    """Two branches, read together by one layer, and one of them by another too."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 4), nn.Linear(6, 3)
        self.both, self.one = nn.Linear(7, 2), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.a(x).tanh(), self.b(x).tanh()
        out: Tensor = self.both(torch.cat([a, b], 1)) + self.one(a)
        return out


def slowly(net: Joined, x: Tensor, scores: dict[str, Tensor]) -> dict[str, list[float]]:
    """Each removal tried in turn, errors of both readers solved for from scratch."""
    a, b = net.a(x).tanh().detach(), net.b(x).tanh().detach()
    grams = [ridged(torch.cov(r.T, correction=0)) for r in (torch.cat([a, b], 1), a)]
    weights = [net.both.weight.detach(), net.one.weight.detach()]
    plain = [torch.cov(r.T, correction=0) for r in (torch.cat([a, b], 1), a)]
    variances = [least_squares(w, g, []) for w, g in zip(weights, plain, strict=True)]

    def error(gone: set[tuple[str, int]]) -> float:
        first = [c for c in range(4) if ("a", c) not in gone]
        both = first + [4 + c for c in range(3) if ("b", c) not in gone]
        kept = (both, first)
        errors = [least_squares(w, g, k) for w, g, k in zip(weights, grams, kept, strict=True)]
        return sum(e / v for e, v in zip(errors, variances, strict=True))

    channels = [("a", c) for c in range(4)] + [("b", c) for c in range(3)]
    alone = {s: sum(error({at}) for at in channels if at[0] == s) for s in "ab"}
    scale = {s: float(scores[s].sum()) / alone[s] for s in "ab"}
    found, gone, level = (
        {"a": [0.0] * 4, "b": [0.0] * 3},
        set[tuple[str, int]](),
        {"a": 0.0, "b": 0.0},
    )
    while len(gone) < 7:
        before = error(gone)
        cost = {
            at: scale[at[0]] * (error(gone | {at}) - before) for at in channels if at not in gone
        }
        site, channel = min(cost, key=lambda at: cost[at])
        level[site] = max(level[site], cost[site, channel])
        found[site][channel] = level[site]
        gone.add((site, channel))
    return found


def test_scores_are_those_of_removals_tried_one_by_one() -> None:
    torch.manual_seed(1)
    net = Joined().double()
    batches = [torch.randn(16, 6).double() for _ in range(4)]
    sites = obc.trace(net, batches[0][:1])
    loss = lambda m, x: m(x).square().mean()  # noqa: E731
    ours = obc.score(net, sites, batches, loss, "redundancy")
    jacobian = obc.score(net, sites, batches, loss, "jacobian", block="group")
    expected = slowly(net, torch.cat(batches), jacobian)
    for site in "ab":
        assert ours[site].tolist() == pytest.approx(expected[site], rel=1e-6)
        assert ours[site].tolist() != pytest.approx(jacobian[site].tolist(), rel=0.05)


def test_of_two_channels_that_stand_in_for_each_other_one_is_cheap() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    with torch.no_grad():
        net[0].weight[1], net[0].bias[1] = net[0].weight[0], net[0].bias[0]
    batches = [torch.randn(32, 5).double() for _ in range(4)]
    sites = obc.trace(net, batches[0][:1])
    before = [p.clone() for p in net.parameters()]
    scores = obc.score(net, sites, batches, lambda m, x: m(x).square().mean(), "redundancy")["0"]
    pair = sorted(scores[:2].tolist())
    assert pair[0] < 1e-2 * pair[1]
    assert all(map(torch.equal, before, net.parameters()))


def test_a_site_that_only_groups_read_keeps_the_scores_of_jc() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 4, 1), nn.ReLU(), nn.Conv2d(4, 6, 1, groups=2))
    batches = [torch.randn(8, 2, 3, 3) for _ in range(2)]
    sites = obc.trace(net, batches[0][:1])
    loss = lambda m, x: m(x).square().mean()  # noqa: E731
    ours = obc.score(net, sites, batches, loss, "redundancy")
    jacobian = obc.score(net, sites, batches, loss, "jacobian", block="group")
    assert ours and all(torch.equal(ours[n], jacobian[n]) for n in ours)


def test_several_go_at_a_time_where_many_are_to_go(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    x = correlated(12)
    weight, index = torch.randn(12, 5).double(), torch.arange(12).view(12, 1)

    def costs() -> Tensor:
        reader = Reader(weight, torch.cov(x.T, correction=0))
        return takeover.eliminated({"a": [(reader, index)]}, {"a": 1.0})["a"]

    one_by_one = costs()
    monkeypatch.setattr(takeover, "_UPDATES", 4)
    by_threes = costs()
    assert len(by_threes.unique()) > 3 and not torch.equal(one_by_one, by_threes)
    kept = [set(c.topk(6).indices.tolist()) for c in (one_by_one, by_threes)]
    assert len(kept[0] & kept[1]) >= 4


def test_a_run_scores_once_and_resumes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 4))
    batches = [torch.randn(32, 6) for _ in range(4)]
    losses: list[float] = []

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        value = model(x).square().mean()
        losses.append(value.item())
        return value

    settings = {"criterion": "redundancy", "rank": "score/cost", "rows": 4, "step": 0.05}
    targets = ["macs=2x", "macs=4x"]
    plans = obc.plan(net, batches[0][:1], batches, loss, target=targets, **settings)
    assert len(losses) == 1 + 4 + 4  # once more for the first batch, and a pass for covariances
    assert [len(plan.kept["0"]) for plan in plans] == [16, 8] and len(plans[1].history) > 2
    assert set(plans[1].kept["0"]) < set(plans[0].kept["0"])
    scores = obc.score(net, obc.trace(net, batches[0][:1]), batches, loss, "redundancy")["0"]
    assert plans[1].kept["0"] == sorted(scores.topk(8).indices.tolist())
    with pytest.raises(obc.ObcError, match="scores once"):
        obc.plan(net, batches[0][:1], batches, loss, target="macs=2x", carry=0.5, **settings)
    expected = estimate(net, batches[0][:1], batches, loss, target="macs=4x", **settings)
    assert expected.rows == 4 and expected.steps > 2
    for _ in range(2):  # the second one finds the folder of the first
        again = obc.plan(
            net, batches[0][:1], batches, loss, target=targets, resume=tmp_path, **settings
        )
        assert [p.kept for p in again] == [p.kept for p in plans]


def test_a_weight_that_is_shared_is_no_reader() -> None:
    torch.manual_seed(0)

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside, self.head = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
            self.head.weight = self.inside.weight

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.inside(x).tanh())
            return out

    net, batches = Tied(), [torch.randint(0, 9, (8, 3)) for _ in range(2)]
    sites = obc.trace(net, batches[0][:1])
    loss = lambda m, x: m(x).square().mean()  # noqa: E731
    ours = obc.score(net, sites, batches, loss, "redundancy")
    jacobian = obc.score(net, sites, batches, loss, "jacobian", block="group")
    assert ours and all(torch.equal(ours[n], jacobian[n]) for n in ours)
