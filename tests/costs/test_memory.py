"""The predicted peak of memory is the measured one."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import obc
from obc.costs import memory
from obc.costs.cost_model import narrowed
from obc.tracing.tracer import Tracing
from obc.tracing.trial import full
from tests.cases import case

# A residual sum, a concatenation, fused QKV and a gate, groups that are shuffled, a flatten.
NETS = ("resnet_preactivation", "cat_twice", "qkv_chunk", "glu_chunk", "channel_shuffle")


@pytest.mark.parametrize("name", NETS)
def test_predicted_is_measured_to_the_byte(name: str) -> None:
    net = case(name)
    tracing = Tracing(net.model(), net.example())
    price = memory.predicted_peak(tracing)
    peaks = []
    for share in (5, 2):
        kept = {s.name: range(s.size - s.size // share) for s in tracing.sites}
        with narrowed(tracing, kept, full) as counts:
            peaks.append(memory.peak_bytes(tracing.model, tracing.example))
        assert int(price(counts)) == peaks[-1]
    assert peaks[0] > peaks[1] > 0


def test_a_chain_by_hand() -> None:
    """While the second layer runs, its input and output are there, and the example."""
    net = nn.Sequential(nn.Linear(4, 64), nn.Linear(64, 32), nn.Linear(32, 2))
    state = sum(p.numel() for p in net.parameters())
    x = torch.zeros(8, 4)
    assert memory.peak_bytes(net, x) == 4 * (state + 8 * (4 + 64 + 32))
    assert memory.peak_bytes(net.double(), x.double()) == 8 * (state + 8 * (4 + 64 + 32))


class Padded(nn.Module):
    """Holds more the narrower it gets: the control for the check."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 12), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        ballast = torch.zeros(100 * (12 - self.a.out_features), 12)
        return self.b(y) + ballast.sum()


def test_memory_that_does_not_follow_is_refused() -> None:
    with pytest.raises(obc.ObcError, match="memory does not follow its channels"):
        memory.predicted_peak(Tracing(Padded(), torch.zeros(2, 4)))


def test_a_plan_for_memory_meets_it() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 60), nn.ReLU(), nn.Linear(60, 60), nn.ReLU(), nn.Linear(60, 3)
    )
    batches = [(torch.randn(4, 6), torch.randint(0, 3, (4,))) for _ in range(3)]
    x = batches[0][0]

    def loss(m: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(m(batch[0]), batch[1])

    plan = obc.plan(model, x, batches, loss, target="memory=50%", rows=2, step=0.1)
    before = memory.peak_bytes(model, x)
    after = memory.peak_bytes(obc.apply(copy.deepcopy(model), plan), x)
    assert plan.before is not None and plan.after is not None
    assert (plan.before.memory, plan.after.memory) == (before, after)
    assert after <= before / 2 <= after * 1.005
    assert "bytes of memory" in plan.summary() and '"memory"' in plan.model_dump_json()
    other = obc.plan(model, x, batches, loss, target="macs=50%", rows=2, step=0.1)
    assert "memory" not in other.model_dump_json()
