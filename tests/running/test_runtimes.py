"""Runtimes: each gives a time, and graphs with other weights put out what a narrower model does."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from torch import Tensor, nn

import obc
from obc.costs.candidates import Candidates
from obc.running import onnx
from obc.running.forward import forward, outputs
from obc.running.runtimes import RUNTIMES, seconds
from obc.tracing.tracer import Tracing

X = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
INSTALLED = [
    name
    for name in ("torch", "onnxruntime", "openvino")
    if name == "torch" or importlib.util.find_spec(name)
]


class Depthwise(nn.Module):
    """A convolution with a norm, a depthwise one, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.depth = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.point, self.head = nn.Conv2d(16, 24, 1), nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.conv(x)))
        out: Tensor = self.head(torch.relu(self.point(self.depth(x))).mean((2, 3)))
        return out


@pytest.mark.parametrize("runtime", INSTALLED)
def test_every_runtime_gives_a_time_and_leaves_the_model(runtime: str) -> None:
    model = Depthwise().train()
    found = seconds([model, model], X, runtime, turns=2, least=0)
    assert len(found) == 2 and all(0 < s < 10 for s in found)
    assert model.training and set(INSTALLED) <= set(RUNTIMES)


@pytest.mark.skipif("onnxruntime" not in INSTALLED, reason="needs onnxruntime")
def test_a_graph_takes_the_weights_of_a_narrower_model() -> None:
    model = Depthwise().eval()
    graph = onnx.of_model(model, X)
    sites = obc.trace(model, X)
    kept = {s.name: range(s.size // 2) for s in sites}
    small = obc.apply(model, obc.Plan.from_kept(sites, kept))
    session = onnx.session_of(onnx.with_tensors(graph, small).SerializeToString())
    put = torch.from_numpy(session.run(None, onnx.feed(session, X))[0])
    torch.testing.assert_close(put, outputs(forward(small, X))[0], rtol=1e-4, atol=1e-5)
    whole = onnx.session_of(graph.SerializeToString())
    other = torch.from_numpy(whole.run(None, onnx.feed(whole, X))[0])
    assert not torch.allclose(put, other)  # or nothing was swapped


@pytest.mark.skipif("onnxruntime" not in INSTALLED, reason="needs onnxruntime")
def test_cuts_are_timed_without_another_export(monkeypatch: pytest.MonkeyPatch) -> None:
    candidates = Candidates(Tracing(Depthwise().eval(), X), "onnxruntime")
    monkeypatch.setattr(onnx, "of_model", None)  # another export would fail
    assert candidates.seconds([8, 12]) > 0


@pytest.mark.skipif("onnxruntime" not in INSTALLED, reason="needs onnxruntime")
def test_sizes_in_a_graph_are_left_open_after_one_more_export(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
    candidates = Candidates(Tracing(net.eval(), X), "onnxruntime")
    assert candidates.seconds([4]) > 0
    monkeypatch.setattr(onnx, "of_model", None)
    assert candidates.seconds([6]) > 0


def test_what_does_not_run_is_said() -> None:
    with pytest.raises(obc.ObcError, match="does not run in torch"):
        seconds([nn.Linear(3, 4)], X[..., :2], "torch")
