"""`obc.plan`: exact landing, the ranking it follows, nested plans, and what it refuses."""

from __future__ import annotations

import copy
import re
import warnings
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import obc
from obc.costs.targets import TOLERANCE, Target, parse
from obc.models import resnet20, vit_small
from obc.search.carry import HALF
from obc.search.ranking import check_scores
from tests.search.nets import Fixed, Residual, batches, graded, loss
from tests.untouched import untouched

X = torch.zeros(1, 1, 8, 8)


def mlp(width: int = 64) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))


def grouped() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, groups=4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 16, 10),
    )


NETS: dict[str, Any] = {
    "mlp": mlp,
    "residual": Residual,
    "grouped": grouped,
    "resnet20": lambda: resnet20(in_channels=1, width=4),
    "vit": lambda: vit_small(image=8, patch=2, dim=16, depth=2, heads=4, in_channels=1),
    "coarse": lambda: mlp(6),
}


def share(plan: obc.Plan, unit: str) -> float:
    assert plan.before is not None and plan.after is not None
    return getattr(plan.after, unit) / getattr(plan.before, unit)


def landed(plan: obc.Plan, target: Target) -> bool:
    """Not short of the target, and at most 0.5% better."""
    limit = target.limit(1.0)
    return share(plan, target.unit) <= limit + 1e-12 <= share(plan, target.unit) * TOLERANCE + 1e-9


def applied(model: nn.Module, plan: obc.Plan) -> obc.Cost:
    pruned = copy.deepcopy(model)
    obc.apply(pruned, plan)
    return obc.cost(pruned, X)


def _text(warning: warnings.WarningMessage) -> str:
    return str(warning.message)


# Landing.


@given(
    net=st.sampled_from(sorted(NETS)),
    unit=st.sampled_from(["macs", "params", "channels"]),
    number=st.floats(0.3, 0.97),
    as_speedup=st.booleans(),
    scope=st.sampled_from(["global", "local", "isomorphic"]),
    rank=st.sampled_from(["score", "score/cost"]),
    round_to=st.sampled_from([1, 2, 4]),
    step=st.sampled_from([0.02, 0.3]),
)
def test_every_plan_lands_or_names_a_target_that_does(
    net: str,
    unit: str,
    number: float,
    as_speedup: bool,
    scope: str,
    rank: str,
    round_to: int,
    step: float,
) -> None:
    model = NETS[net]().eval()
    text = f"{unit}={1 / number:.4f}x" if as_speedup else f"{unit}={number * 100:.4f}%"
    settings: Any = {
        "criterion": "random",
        "scope": scope,
        "rank": rank,
        "round_to": round_to,
        "step": step,
    }
    with untouched(model), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            plan = obc.plan(model, X, target=text, **settings)
        except obc.ObcError as error:
            nearest = re.search(r"the nearest that can is (\S+)$", str(error))
            assert nearest, error
            text = nearest[1]
            plan = obc.plan(model, X, target=text, **settings)
    # Where channels are too coarse, half a percent short will do, but not without a word.
    coarse = re.search(r"is met by (\S+): channels are too coarse", " ".join(map(_text, said)))
    target = parse(text)
    if coarse:
        assert target.limit(1.0) < share(plan, target.unit) <= target.limit(1.0) * TOLERANCE + 1e-9
    else:
        assert landed(plan, target)
    assert plan.after is not None
    found = applied(model, plan)
    assert (found.macs, found.params) == (plan.after.macs, plan.after.params)
    widths = {s.name: s.members[0].index.shape[1] for s in obc.trace(model, X)}
    for name, site in plan.sites.items():
        assert len(site.kept) * widths[name] % round_to == 0


def test_a_landing_that_is_off_is_seen() -> None:
    """The control: one channel more or less is no landing."""
    model = mlp()
    plan = obc.plan(model, X, target="macs=2x", criterion="random")
    assert landed(plan, parse("macs=2x"))
    sites = obc.trace(model, X)
    for extra in (-1, 1):
        kept = {"1": list(range(len(plan.kept["1"]) + extra))}
        other = applied(model, obc.Plan.from_kept(sites, kept)).macs
        assert plan.after is not None
        wrong = plan.model_copy(update={"after": plan.after.model_copy(update={"macs": other})})
        assert not landed(wrong, parse("macs=2x"))


def test_all_of_a_model_may_be_kept() -> None:
    plan = obc.plan(Residual(), X, target="macs=1x", criterion="l2")
    assert plan.sites == {}
    assert plan.history == []
    assert plan.untouched == {"stem": 12, "inner": 20, "down": 16}


@pytest.mark.parametrize(
    ("target", "settings", "text"),
    [
        ("macs=90%", {}, r"macs=90% cannot be met: its channels are too coarse"),
        (
            "macs=100x",
            {},
            r"macs=100x cannot be met: with every site at its floor .* macs=6x(\n|$)",
        ),
        ("params=50%", {"min_channels": 5}, r"at its floor .* params=83.\d+%(\n|$)"),
        ("channels=20%", {"max_ratio": 0.5}, r"at its floor .* channels=50%(\n|$)"),
    ],
)
def test_the_nearest_feasible_value_is_told_before_any_batch_is_drawn(
    target: str, settings: dict[str, Any], text: str
) -> None:
    def never() -> Any:
        raise AssertionError("a batch was drawn")
        yield

    with pytest.raises(obc.ObcError, match=text) as caught:
        obc.plan(mlp(6), X, never(), loss, target=target, **settings)
    nearest = str(caught.value).rsplit(" ", 1)[1]
    assert landed(obc.plan(mlp(6), X, target=nearest, criterion="l2", **settings), parse(nearest))


# The ranking.


def by_hand(
    model: nn.Module, count: int, scores: dict[str, Tensor], per_cost: bool
) -> tuple[dict[str, list[int]], int]:
    """Remove one channel after the other, each time with the costs of really cut models."""
    sites = obc.trace(model, X)
    kept = {s.name: list(range(s.size)) for s in sites}
    known: dict[tuple[int, ...], int] = {}

    def macs(kept: dict[str, list[int]]) -> int:
        key = tuple(map(len, kept.values()))
        if key not in known:
            known[key] = applied(model, obc.Plan.from_kept(sites, kept)).macs
        return known[key]

    for _ in range(count):
        options = []
        for name, own in kept.items():
            for channel in own if len(own) > 1 else []:
                less = {**kept, name: [c for c in own if c != channel]}
                saved = macs(kept) - macs(less) if per_cost else 1
                options.append((float(scores[name][channel]) / saved, name, less))
        kept = min(options, key=lambda option: option[:2])[2]
    return kept, macs(kept)


@pytest.mark.parametrize("rank", ["score", "score/cost"])
def test_what_is_removed_is_what_was_ranked_lowest(rank: str) -> None:
    model = graded(Residual())
    scores = obc.score(model, obc.trace(model, X), criterion=Fixed())
    expected, macs = by_hand(model, 21, scores, rank == "score/cost")
    target = obc.MACs(keep=(macs + 0.5) / obc.cost(model, X).macs)
    plan = obc.plan(model, X, target=target, criterion=Fixed(), rank=rank, step=1e-3)
    assert {**{n: list(range(k)) for n, k in plan.untouched.items()}, **plan.kept} == expected
    assert len(plan.history) == 21
    other, _ = by_hand(model, 21, {n: -s for n, s in scores.items()}, rank == "score/cost")
    assert other != expected, "the control: other scores, other channels"


def test_scores_of_the_plan_are_those_of_the_criterion() -> None:
    model = graded(Residual())
    scores = obc.score(model, obc.trace(model, X), criterion=Fixed())
    plan = obc.plan(model, X, target="channels=50%", criterion=Fixed())
    for name, site in plan.sites.items():
        gone = sorted(set(range(site.size)) - set(site.kept))
        assert site.highest_removed == pytest.approx(float(scores[name][gone].max()))
        assert site.lowest_kept == pytest.approx(float(scores[name][site.kept].min()))
        assert site.lowest_kept > site.highest_removed
    ranked = torch.cat(list(scores.values())).sort().values
    assert max(s.highest_removed or 0 for s in plan.sites.values()) == pytest.approx(
        float(ranked[len(ranked) // 2 - 1])
    )


def test_over_a_local_scope_every_site_loses_the_same_share() -> None:
    model = graded(Residual(20, 40))
    plan = obc.plan(model, X, target="channels=50%", criterion=Fixed(), scope="local")
    assert {n: len(s.kept) / s.size for n, s in plan.sites.items()} == {
        "stem": 0.5,
        "inner": 0.5,
        "down": 0.5,
    }
    everywhere = obc.plan(model, X, target="channels=50%", criterion=Fixed())
    assert len({len(s.kept) / s.size for s in everywhere.sites.values()}) > 1


def test_over_an_isomorphic_scope_every_kind_of_site_loses_the_same_share() -> None:
    class Branches(nn.Module):
        """Two pairs of layers of one shape, and one of another."""

        def __init__(self) -> None:
            super().__init__()
            self.a = nn.ModuleList(nn.Linear(64, 20) for _ in range(3))
            self.b = nn.ModuleList(nn.Linear(20, 10) for _ in range(3))
            self.norm = nn.BatchNorm1d(20)

        def forward(self, x: Tensor) -> Tensor:
            x = x.flatten(1)
            hidden = [a(x) for a in self.a]
            hidden[2] = self.norm(hidden[2])
            return torch.stack([b(h.relu()) for b, h in zip(self.b, hidden, strict=True)]).sum(0)

    model = graded(Branches())
    for p, shift in zip(model.a, (0.0, 0.5, 5.0), strict=True):
        p.bias.data += shift
    plan = obc.plan(model, X, target="channels=50%", criterion=Fixed(), scope="isomorphic")
    counts = {n: len(own) for n, own in plan.kept.items()}
    assert counts["a.2"] == 10, "the kind of its own loses half, high as its scores are"
    assert counts["a.0"] + counts["a.1"] == 20
    assert counts["a.0"] < counts["a.1"]
    everywhere = obc.plan(model, X, target="channels=50%", criterion=Fixed())
    assert "a.2" not in everywhere.kept


def test_floors_hold_and_are_told() -> None:
    model = graded(Residual())
    plan = obc.plan(
        model,
        X,
        target="channels=62.5%",
        criterion=Fixed(),
        min_channels={"down": 9},
        max_ratio={"inner": 0.25},
    )
    counts = {n: len(s.kept) for n, s in plan.sites.items()}
    assert counts["inner"] == 15
    assert counts["down"] >= 9
    assert "at its floor" in plan.summary()
    free = obc.plan(model, X, target="channels=62.5%", criterion=Fixed())
    assert len(free.kept["inner"]) < 15, "the control"


@pytest.mark.parametrize("pattern", ["stem", "st*", ["outer"]])
def test_ignored_layers_keep_their_channels(pattern: Any) -> None:
    model = Residual()
    plan = obc.plan(model, X, target="macs=1.3x", criterion="random", ignore=pattern)
    assert plan.untouched == {"stem": 12}
    assert plan.sites.keys() == {"inner", "down"}
    free = obc.plan(model, X, target="macs=1.3x", criterion="random")
    assert "stem" in free.sites, "the control"


def test_an_ignored_layer_does_not_rename_the_sites() -> None:
    """One layer puts out two sites; without the first, the second would take its name."""

    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.both = nn.Linear(64, 24)
            self.left, self.right = nn.Linear(64, 8), nn.Linear(16, 10)
            self.end = nn.Linear(8, 10)

        def forward(self, x: Tensor) -> Tensor:
            x = x.flatten(1)
            both, left = self.both(x), self.left(x)
            first, second = both[:, : left.shape[1]], both[:, left.shape[1] :]
            return self.end(first + left) + self.right(second.relu())

    model = Halves().eval()
    names = obc.trace(model, X).names
    assert names == ("both", "both#2")
    assert obc.trace(model, X, ignore="left").names == ("both#2",)
    plan = obc.plan(model, X, target="macs=70.8917%", criterion="l2", ignore="left")
    assert plan.sites.keys() == {"both#2"}
    assert obc.apply(model, plan).left.out_features == 8


def test_channels_worth_infinity_stay() -> None:
    """`bn_scale` knows nothing of layers without a norm."""
    model = Residual()
    for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm2d)):
        nn.init.uniform_(norm.weight)
    plan = obc.plan(model, X, target="macs=1.4995x", criterion="bn_scale")
    assert plan.sites.keys() == {"stem"}
    with pytest.raises(obc.ObcError, match=r"floor or has infinite scores; reached macs=\d"):
        obc.plan(model, X, target="macs=40x", criterion="bn_scale")


def test_scores_that_say_nothing_are_refused() -> None:
    """All scales of a fresh batch norm are one; a loss that is constant has no gradient."""
    with pytest.raises(obc.ObcError, match=r"the same score \(1\), so which .* arbitrary"):
        obc.plan(Residual(), X, target="macs=1.4995x", criterion="bn_scale")
    with pytest.raises(obc.ObcError, match=r"the same score \(0\), so which .* arbitrary"):
        obc.plan(Residual(), X, batches(), lambda m, b: m(b[0]).sum() * 0, target="macs=2x")


def test_a_site_whose_scores_say_nothing_is_named() -> None:
    scores = {"stem": torch.rand(4), "inner": torch.zeros(3)}
    with pytest.warns(UserWarning, match="all channels of inner have the same score"):
        check_scores(scores)


# Steps, lists, and repeating all of it.


def test_plans_of_a_list_are_nested_and_in_the_order_asked_for() -> None:
    model, data = Residual().eval(), batches()
    targets = ["macs=2x", "macs=80%", "macs=3x"]
    with untouched(model):
        plans = obc.plan(model, X, data, loss, target=targets, step=0.05, rows=3)
    assert [p.target for p in plans] == targets
    for plan, target in zip(plans, targets, strict=True):
        assert landed(plan, parse(target))
    by_size = [plans[1], plans[0], plans[2]]
    for big, small in pairwise(by_size):
        for name, kept in small.kept.items():
            assert set(kept) <= set(big.kept.get(name, range(100)))
        assert small.history[: len(big.history)] == big.history


def test_the_same_seed_gives_the_same_plan_to_the_byte() -> None:
    def run(**settings: Any) -> str:
        torch.manual_seed(3)
        model = Residual().eval()
        data = torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(torch.randn(40, 1, 8, 8), torch.randint(0, 10, (40,))),
            batch_size=4,
            shuffle=True,
        )
        torch.manual_seed(torch.seed())
        return obc.plan(
            model, X, data, loss, target="macs=2x", step=0.05, rows=3, **settings
        ).model_dump_json()

    assert run() == run()
    assert run() != run(seed=1)
    assert run(carry=0.5) == run(carry=0.5) != run()


def test_each_step_scores_the_smaller_network_on_fresh_rows() -> None:
    seen: list[tuple[int, int]] = []

    def watched(model: nn.Module, batch: Any) -> Tensor:
        seen.append((model.inner.out_channels + model.stem.out_channels, int(batch[1][0])))
        return loss(model, (batch[0], batch[1] % 10))

    data = [(x, torch.full_like(y, i)) for i, (x, y) in enumerate(batches(7))]
    plan = obc.plan(Residual(), X, data, watched, target="macs=1.5x", step=0.05, rows=3)
    steps = [seen[0:4], seen[4:7], seen[7:10]]  # the first batch is run twice, as a check
    assert [[n for _, n in step] for step in steps] == [[0, 0, 1, 2], [3, 4, 5], [6, 0, 1]]
    assert len(seen) == 3 * len(plan.history) + 1
    widths = [step[0][0] for step in steps]
    assert widths[0] >= widths[1] >= widths[2]
    assert len({w for w, _ in seen}) > 1


def test_history_adds_up() -> None:
    model = Residual().eval()
    plan = obc.plan(model, X, batches(), loss, target="macs=2x", step=0.04, rows=2)
    gone: dict[str, set[int]] = {}
    macs = []
    for step in plan.history:
        for name, channels in step.removed.items():
            gone.setdefault(name, set()).update(channels)
        for name, channels in step.restored.items():
            gone[name] -= set(channels)
        macs.append(step.after.macs)
    assert plan.kept == {n: sorted(set(range(plan.sites[n].size)) - own) for n, own in gone.items()}
    assert macs == sorted(macs, reverse=True)
    assert sum(len(c) for c in plan.history[0].removed.values()) == 2  # 4% of 48
    again = obc.Plan.model_validate_json(plan.model_dump_json())
    assert again == plan


# Carrying.


def test_carried_rows_count_less_and_less() -> None:
    """Two steps by hand: the second one's scores are fresh rows and what is left of the first."""
    model, data = Residual().eval(), batches(10)
    plan = obc.plan(model, X, data, loss, target="channels=75%", step=0.03, rows=4, carry=0.5)
    assert len(plan.history) >= 2
    sites = obc.trace(model, X)
    first = obc.score(model, sites, data[:4], loss)
    gone = plan.history[0].removed
    kept = {s.name: [i for i in range(s.size) if i not in gone.get(s.name, ())] for s in sites}
    smaller = copy.deepcopy(model)
    obc.apply(smaller, obc.Plan.from_kept(sites, kept))
    second = obc.score(smaller, obc.trace(smaller, X), data[4:6], loss)
    share = sum(map(len, gone.values())) / sum(s.size for s in sites)
    age = 0.5 ** (share / HALF)
    assert 0.1 < age < 0.5
    for name, channels in plan.history[1].removed.items():
        places = [kept[name].index(c) for c in channels]
        wanted = (second[name][places] + age * first[name][channels]) * 4 / (2 + age * 4)
        found = torch.tensor(plan.history[1].scores[name], dtype=torch.float64)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=0)
        assert not torch.allclose(found, 2 * second[name][places], rtol=1e-2)


# Bad input.


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"scope": "layer"}, "scope must be one of global, local, isomorphic"),
        ({"rank": "cost"}, "rank must be one of score, score/cost"),
        ({"step": 0}, "step is a share"),
        ({"rows": 0}, "rows is a whole number from 1"),
        ({"rows": 2.5}, "rows is a whole number from 1"),
        ({"carry": 1.0}, "carry is from 0"),
        ({"round_to": 0}, "round_to is a whole number"),
        ({"min_channels": 0}, "min_channels is a whole number"),
        ({"max_ratio": 1.5}, "max_ratio is a share"),
        ({"max_ratio": {"inne": 0.5}}, "no site named 'inne'; did you mean 'inner'"),
        ({"ignore": "inne"}, "no layer named 'inne'"),
        ({"criterion": "jacobean"}, "did you mean 'jacobian'"),
        ({"aggregate": "median"}, "aggregate must be"),
        ({"blok": "group"}, "criterion 'jacobian'.*blok"),
        ({"loss": None}, "needs batches and a loss"),
        ({"batches": []}, "no batches"),
        ({"batches": iter(batches(3))}, "iterator"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_changed(
    settings: dict[str, Any], text: str
) -> None:
    model = Residual().train()
    given_ = {"batches": batches(3), "loss": loss, "target": "macs=2x", "rows": 2, **settings}
    with untouched(model), pytest.raises(obc.ObcError, match=text):
        obc.plan(model, X, given_.pop("batches"), given_.pop("loss"), **given_)


def test_nothing_to_prune() -> None:
    with pytest.raises(obc.ObcError, match="nothing can be pruned"):
        obc.plan(nn.Linear(3, 4), torch.zeros(1, 3), target="macs=2x", criterion="l2")


def test_scores_that_are_not_numbers() -> None:
    model = Residual()
    model.inner.weight.data[3] = float("nan")
    with pytest.raises(obc.ObcError, match=r"site '.*': a score is not a number"):
        obc.plan(model, X, target="macs=2x", criterion="l2")


@pytest.mark.parametrize("step", [0.5, 1.0])
def test_a_plan_of_one_step_scores_once(step: float) -> None:
    """N rows, and the first batch once more to see that its loss is the same when run again."""
    calls = []

    def counted(model: nn.Module, batch: Any) -> Tensor:
        calls.append(batch)
        return loss(model, batch)

    plan = obc.plan(Residual().eval(), X, batches(), counted, target="macs=2x", rows=3, step=step)
    assert len(plan.history) == 1 and len(calls) == 3 + 1


def test_rows_and_per_sample_rows_are_two_options() -> None:
    model = Residual().eval()
    plans = [
        obc.plan(
            model, X, batches(), loss, target="macs=2x", rows=3, step=0.2, per_sample=per_sample
        )
        for per_sample in (False, True)
    ]
    assert plans[1].settings["rows"] == 3 and plans[1].settings["criterion.per_sample"] is True
    assert plans[0].kept != plans[1].kept


def test_half_a_percent_short_of_a_target_will_do() -> None:
    """Half of 201 channels would be 100 and a half; 101 have to stay."""
    model = nn.Sequential(nn.Linear(4, 201), nn.ReLU(), nn.Linear(201, 4))
    with pytest.warns(UserWarning, match=r"macs=2x is met by macs=1\.99\d*x: channels are too"):
        plan = obc.plan(
            model, torch.zeros(1, 4), target="macs=2x", criterion="l2", min_channels=101
        )
    assert len(plan.kept["0"]) == 101
    with pytest.raises(obc.ObcError, match="every site at its floor there is still more left"):
        obc.plan(model, torch.zeros(1, 4), target="macs=2.1x", criterion="l2", min_channels=101)
