"""Which kinds of site take part, one width over layers, and steps as a share of cost."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

import obc
from obc.errors import ObcError
from obc.search.choice import kind_of
from tests import vision
from tests.hugging import decoder

pytestmark = pytest.mark.skipif(
    not vision.installed("transformers"), reason="transformers is not installed"
)
IDS = torch.arange(2, 18)[None]


def loss(model: Any, ids: torch.Tensor) -> torch.Tensor:
    return model(ids, labels=ids).loss


@pytest.fixture(scope="module")
def llama() -> Any:
    torch.manual_seed(0)
    return decoder("Llama", num_hidden_layers=3).eval()


def plan(model: Any, target: str = "params=80%", **settings: Any) -> obc.Plan:
    batches = [(IDS + 3 * i) % 53 for i in range(3)]
    return obc.plan(model, IDS, batches, loss, target=target, step=0.05, rows=3, **settings)


def widths(model: Any, made: obc.Plan) -> dict[str, list[int]]:
    """What the sites of each kind keep."""
    found: dict[str, list[int]] = {}
    for site in obc.trace(model, IDS):
        kept = made.kept.get(site.name, range(site.size))
        found.setdefault(kind_of(site), []).append(len(kept))
    return found


def test_kinds_of_a_decoder(llama: Any) -> None:
    kinds = [kind_of(site) for site in obc.trace(llama, IDS)]
    assert sorted(kinds) == ["ffn"] * 3 + ["heads"] * 3 + ["hidden"]


@pytest.mark.parametrize("sites", [("ffn", "heads"), "ffn,heads", ("model.layers.*",)])
def test_the_residual_width_stays_unless_asked_for(llama: Any, sites: Any) -> None:
    made = plan(llama, sites=sites)
    assert widths(llama, made)["hidden"] == [24]
    assert "hidden: kept whole, as asked for" in made.notes
    with pytest.raises(ObcError, match="with every site at its floor there is still more left"):
        plan(llama, "params=20%", sites=sites)
    assert widths(llama, plan(llama, "params=20%"))["hidden"] != [24]  # a control


def test_names_that_fit_no_site(llama: Any) -> None:
    with pytest.raises(ObcError, match=r"sites: no site named 'fnn'.*kinds are ffn, heads"):
        plan(llama, sites="fnn")
    net = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2))
    with pytest.raises(ObcError, match="the model has none of heads"):
        obc.plan(net, torch.zeros(1, 8), criterion="l1", target="macs=2x", sites="heads")


def test_a_kind_that_was_never_chosen_says_why(llama: Any) -> None:
    made = plan(llama, "params=98%", sites=("ffn", "heads"), min_channels=1)
    untouched = {k for k, kept in widths(llama, made).items() if len(set(kept)) == 1}
    lines = [n for n in made.notes if n.startswith("heads: none was chosen")]
    assert ("heads" in untouched and widths(llama, made)["heads"] == [4, 4, 4]) == bool(lines)
    assert lines and "the lowest score is" in lines[0]


def test_one_width_over_layers(llama: Any) -> None:
    made = plan(llama, sites=("ffn", "heads"), uniform=True)
    assert made.before is not None and made.after is not None
    assert all(len(set(kept)) == 1 for kept in widths(llama, made).values())
    assert made.after.params <= 0.8 * made.before.params
    assert any(n.startswith("one width over layers: ") for n in made.notes)
    free = widths(llama, plan(llama, sites=("ffn", "heads")))
    assert any(len(set(kept)) > 1 for kept in free.values())  # a control
    small = obc.apply(llama.__class__(llama.config), made)
    assert len({layer.mlp.intermediate_size for layer in small.model.layers}) == 1


def test_uniform_plans_are_nested(llama: Any) -> None:
    wide, narrow = obc.plan(
        llama, IDS, criterion="l1", target=["params=90%", "params=75%"], uniform=True, sites="ffn"
    )
    assert all(set(narrow.kept[name]) <= set(kept) for name, kept in wide.kept.items())
    assert len({len(kept) for kept in narrow.kept.values()}) == 1


def test_a_step_as_a_share_of_cost(llama: Any) -> None:
    """Each step takes off a twentieth of all parameters, however many channels that is."""
    made = plan(llama, "params=70%", sites=("ffn", "heads"), pace="cost")
    assert made.before is not None
    costs = [made.before.params, *(step.after.params for step in made.history)]
    steps = [a - b for a, b in pairwise(costs)][:-1]
    dearest = 24 * 6 * 4  # a head of all four projections
    assert steps and all(0 <= s - 0.05 * costs[0] <= dearest for s in steps)
    with pytest.raises(ObcError, match="pace must be one of channels, cost"):
        plan(llama, pace="time")


def test_parameters_of_the_blocks_alone(llama: Any) -> None:
    blocks = sum(p.numel() for p in llama.model.layers.parameters())
    whole = sum(p.numel() for p in llama.parameters())
    for part in ("blocks", "model.layers.*"):
        made = plan(llama, f"params[{part}]=80%", sites=("ffn", "heads"))
        assert made.before is not None and made.after is not None
        assert made.before.params == whole and made.target == f"params[{part}]=80%"
        left = made.after.params - (whole - blocks)
        assert 0.8 / 1.005 <= left / blocks <= 0.8
    with pytest.raises(ObcError, match=r"params\[head\.\*\]: no parameter has such a name"):
        plan(llama, "params[head.*]=80%")
    with pytest.raises(ObcError, match=r"only params\[part\] and latency\[runtime\]"):
        plan(llama, "macs[blocks]=80%")
