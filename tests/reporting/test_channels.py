"""The drawing of channels: every layer and site is on it, in the order they run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import obc
from obc.models import resnet20, resnet56
from obc.reporting.channels import draw_channels, drawing, run_order
from obc.tracing.sites import Frozen, Sites
from tests.reporting.browser import CHROMIUM, Browser
from tests.reporting.markup import Markup

HOSTILE = "<script>console.error('{}')</script><img src=x onerror=\"throw 1\">"


class Backwards(nn.Module):
    """Its layers are defined in another order than they run."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.middle, self.stem = nn.Linear(6, 2), nn.Linear(8, 6), nn.Linear(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.middle(self.stem(x).relu()).relu()
        out: Tensor = self.head(x)
        return out


def test_layers_stand_in_the_order_they_run() -> None:
    sites = obc.trace(Backwards(), torch.zeros(1, 4))
    assert run_order(sites) == ["stem", "middle", "head"]
    assert next(iter(sites.shapes)) == "head.weight"  # as defined


def test_chains_that_disagree_still_give_each_layer_once() -> None:
    loop = [Frozen(layer, 1, "", "", "") for layer in ("a", "b", "a", "c")]
    assert run_order(Sites([], loop)) == ["a", "b", "c"]


def test_the_order_is_that_of_the_calls() -> None:
    model, example, calls = resnet20(width=4).eval(), torch.randn(1, 3, 8, 8), []
    order = run_order(obc.trace(model, example))
    for name, module in model.named_modules():
        if list(module.parameters(recurse=False)):
            module.register_forward_hook(lambda *_, name=name: calls.append(name))
    model(example)
    assert calls and set(order) == set(calls)
    # A shortcut stands beside its branch: which of the two comes first is a matter of taste.
    trunk, run = ([n for n in names if "downsample" not in n] for names in (order, calls))
    assert trunk == run


def test_widths_reasons_and_roles_are_on_the_page() -> None:
    sites = obc.trace(Backwards(), torch.zeros(1, 4))
    text = drawing("a net", sites, {"stem": (8, 3)})
    words = " ".join(Markup(text).words)
    assert "reads 8 → 3 · puts out 6" in words and "14 channels to choose from, 9 kept" in words
    assert "2 channels stay: model output (the model)" in words
    assert text.count('class="out"') == 2 + 1 and text.count('class="in"') == 2 + 1  # and the key
    assert text.count('class="stays"') == 1


def test_lanes_are_shared_by_sites_that_do_not_meet() -> None:
    net = nn.Sequential(*(nn.Linear(4, 4) for _ in range(40)))
    text = drawing("deep", obc.trace(net, torch.zeros(1, 4)), {})
    assert 'width="78"' in text  # the frozen lane, and two that alternate


def test_names_are_never_markup() -> None:
    sites = Sites([], [Frozen(HOSTILE, 1, HOSTILE, "", HOSTILE)])
    found = Markup(drawing(HOSTILE, sites, {}))
    assert "script" not in found.tags and "img" not in found.tags


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here (make browser)")
@pytest.mark.parametrize(("width", "dark"), [(1200, True), (360, False)])
def test_a_hundred_layers_in_a_browser(width: int, dark: bool, tmp_path: Path) -> None:
    sites = obc.trace(resnet56(width=4).eval(), torch.randn(1, 3, 8, 8))
    page = draw_channels(tmp_path / "net.html", HOSTILE, sites, {"conv1": (4, 2)})
    browser = Browser(tmp_path, width, dark)
    assert browser.complaints(page) == []
    found = browser.look(page)
    assert found["errors"] == [] and found["scroll"] <= width
    figures = {f["kind"]: f for f in found["figures"]}
    assert set(figures) == {"channels", "frozen"}
    rows = len(run_order(sites))
    assert rows > 100 and figures["channels"]["height"] == pytest.approx(24 * rows, abs=2)
    assert figures["channels"]["shapes"] > rows
