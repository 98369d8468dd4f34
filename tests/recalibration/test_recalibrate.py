"""What recalibration promises: it takes over, is never worse, and leaves no trace of a failure."""

from __future__ import annotations

import copy
import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import obc
from obc.models.resnet import ResNet
from obc.recalibration import procedure
from obc.recalibration.fitting import Fitting
from obc.recalibration.parking import Parking
from tests.recalibration.dense import best
from tests.reference import relative_error
from tests.untouched import untouched


def twins() -> nn.Module:
    """Eight neurons, of which the last three do what the first three do."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).double()
    with torch.no_grad():
        net[0].weight[5:] = net[0].weight[:3]
        net[0].bias[5:] = net[0].bias[:3]
    return net


def cut(net: nn.Module, example: Any, kept: Any = None) -> nn.Module:
    """A copy without every other channel, or with just the kept ones."""
    sites = obc.trace(net, example)
    kept = kept or {s.name: list(range(0, s.size, 2)) for s in sites}
    return obc.apply(copy.deepcopy(net), obc.Plan.from_kept(sites, kept), example=example)


def vectors(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def small_resnet() -> nn.Module:
    """A ResNet whose norms have statistics of their own."""
    torch.manual_seed(0)
    net = ResNet(1, 10, 1, 6)
    for _ in range(5):
        net(torch.randn(32, 1, 8, 8))
    return net.eval()


def test_a_channel_that_another_stands_in_for() -> None:
    """By hand: the weights of the neurons that went are added to those of their twins."""
    net = twins()
    small = cut(net, torch.zeros(1, 4).double(), {"0": range(5)})
    x = vectors(512, 4).double()
    account = obc.recalibrate(small, net, x.split(64))
    expected = net[2].weight[:, :5].detach().clone()
    expected[:, :3] += net[2].weight[:, 5:].detach()
    assert relative_error([expected], [small[2].weight.detach()]) < 1e-3
    assert relative_error([expected], [net[2].weight[:, :5].detach()]) > 0.1, "compares nothing"
    assert account.before > 0.01 and account.after < 1e-6
    assert account.kept and [f.kept for f in account.fits] == [False, True]
    assert account.fits[0].note == "already exact"


def test_what_lost_nothing_stays_bit_for_bit() -> None:
    net = twins()
    with torch.no_grad():
        net[2].weight[:, 5:] = 0
    small = cut(net, torch.zeros(1, 4).double(), {"0": range(5)})
    with untouched(small, net):
        account = obc.recalibrate(small, net, vectors(8, 64, 4).double())
    assert not account.kept and "as it was" in account.summary()


def test_never_worse_on_held_out_inputs() -> None:
    """Sixteen samples of noise cannot determine a thousand weights."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(40, 64), nn.Tanh(), nn.Linear(64, 3)).double()
    small = cut(net, torch.zeros(1, 40).double())
    naive = copy.deepcopy(small)
    x, new = vectors(16, 40).double(), vectors(4096, 40, seed=2).double()
    account = obc.recalibrate(small, net, [x])
    assert any("rows for 32 inputs" in f.note for f in account.fits)
    for fit in account.fits:
        assert fit.after <= fit.before
    assert account.after <= account.before

    def error(model: nn.Module) -> float:
        return float((model(new) - net(new)).square().mean())

    if account.kept:
        assert error(small) < 1.2 * error(naive)


@pytest.mark.parametrize("residual", [True, False, None])
def test_resnet(residual: bool | None) -> None:
    net = small_resnet()
    small = cut(net, torch.zeros(1, 1, 8, 8))
    x, new = vectors(256, 1, 8, 8), vectors(256, 1, 8, 8, seed=2)
    with torch.no_grad():
        before = functional.mse_loss(small(new), net(new))
        with untouched(net):
            account = obc.recalibrate(small, net, x.split(64), residual=residual)
        after = functional.mse_loss(small(new), net(new))
    assert account.kept and account.after < account.before
    assert after < 0.7 * before
    assert residual is None or account.residual == residual


def test_which_targets_do_better_is_tried_on_an_eighth() -> None:
    net = small_resnet()
    small = cut(net, torch.zeros(1, 1, 8, 8))
    run = []

    def call(model: nn.Module, batch: Tensor) -> Tensor:
        run.append(len(batch) if model.conv1.weight is net.conv1.weight else 0)
        return model(batch)

    x = vectors(512, 1, 8, 8)
    obc.recalibrate(small, net, x.split(64), call=call)
    # One batch is written down, an eighth is run with and without sums, then all of it.
    assert sum(run) == 64 + 2 * 64 + 512


class Block(nn.Module):
    """A stem, and a branch that is added to it."""

    def __init__(self, norm: bool) -> None:
        super().__init__()
        self.stem, self.first = nn.Conv2d(2, 6, 1), nn.Conv2d(6, 5, 3, padding=1)
        self.last = nn.Conv2d(5, 6, 3, padding=1, bias=not norm)
        self.norm = nn.BatchNorm2d(6) if norm else nn.Identity()
        self.reader, self.head = nn.Conv2d(6, 4, 1), nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.stem(x))
        y = self.norm(self.last(torch.relu(self.first(x))))
        return self.head(torch.relu(self.reader(y + x)))


@pytest.mark.parametrize("norm", [True, False])
def test_the_sum_is_the_target(norm: bool) -> None:
    """The branch makes up for what its shortcut lost: here the stem is made wrong on purpose."""
    torch.manual_seed(0)
    net = Block(norm).double()
    if norm:
        net(torch.randn(64, 2, 5, 5, dtype=torch.float64))
    net.eval()
    x = vectors(64, 2, 5, 5).double()
    small = cut(net, x[:2], {"first": [0, 2, 4]})
    with torch.no_grad():
        small.stem.weight.mul_(1.1)
    account = obc.recalibrate(small, net, x.split(16), residual=True)
    fits = {f.name: f for f in account.fits}
    assert fits["stem.weight"].kept  # it is found and repaired
    assert fits["last.weight"].kept or fits["last.weight"].note == "already exact"

    small = cut(net, x[:2], {"first": [0, 2, 4]})
    with torch.no_grad():
        small.stem.weight.mul_(1.1)
        small.stem.bias.add_(0.05)
    broken, naive = copy.deepcopy(small.stem), copy.deepcopy(small)
    account = _with_stem_left_alone(small, net, x)
    assert torch.equal(small.stem.weight, broken.weight)
    fit = {f.name: f for f in account.fits}["last.weight"]
    trained = x[torch.arange(64) % 8 != 7]
    shortcut = torch.tanh(small.stem(trained))
    reads = torch.relu(small.first(shortcut))
    whole = torch.tanh(net.stem(trained))
    y = net.last(torch.relu(net.first(whole)))
    factor = 1.0
    if norm:
        factor = ((net.norm.running_var + net.norm.eps).sqrt() / net.norm.weight).view(1, -1, 1, 1)
    target = (y + factor * (whole - shortcut)).detach()
    expected = best(naive.last, reads.detach(), target, 1, fit.ridge, True)
    assert relative_error([expected], [small.last.weight.detach()]) < 1e-8
    plain = best(naive.last, reads.detach(), y.detach(), 1, fit.ridge, True)
    assert relative_error([plain], [small.last.weight.detach()]) > 1e-3, "the shortcut is unheard"
    if norm:
        gap = small.norm(small.last(reads)) + shortcut - net.norm(y) - whole
        assert gap.mean((0, 2, 3)).abs().max() < 1e-9


def _with_stem_left_alone(small: nn.Module, net: nn.Module, x: Tensor) -> obc.Recalibration:
    solve = Fitting.solve

    def but_not_the_stem(self: Fitting, *settings: Any) -> Any:
        change, fit = solve(self, *settings)
        return (None if self.reader.key[0] == "stem.weight" else change), fit

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Fitting, "solve", but_not_the_stem)
        return obc.recalibrate(small, net, x.split(16), residual=True)


def fails_in_a_layer(net: nn.Module, small: nn.Module) -> Callable[[], Any]:
    calls = iter(range(10**6))

    def hook(module: nn.Module, inputs: Any) -> None:
        if next(calls) == 7:
            raise RuntimeError("a layer fails")

    small.layer3.register_forward_pre_hook(hook)
    return lambda: obc.recalibrate(small, net, vectors(64, 1, 8, 8).split(16))


def fails_by_interrupt(net: nn.Module, small: nn.Module) -> Callable[[], Any]:
    def run() -> Any:
        solve, calls = Fitting.solve, iter(range(10**6))

        def interrupted(self: Fitting, *settings: Any) -> Any:
            if next(calls) == 6:
                signal.raise_signal(signal.SIGINT)
            return solve(self, *settings)

        # A shell that starts its jobs in the background has them ignore the signal.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Fitting, "solve", interrupted)
                return obc.recalibrate(small, net, vectors(64, 1, 8, 8).split(16))
        finally:
            signal.signal(signal.SIGINT, before)

    return run


@pytest.mark.parametrize("how", [fails_in_a_layer, fails_by_interrupt])
def test_a_failure_leaves_the_models_bit_for_bit(how: Any) -> None:
    import threading

    net = small_resnet().train()
    small = cut(net, torch.zeros(1, 1, 8, 8))
    run = how(net, small)
    threads = threading.active_count()
    with untouched(net, small), pytest.raises((obc.ObcError, KeyboardInterrupt)):
        run()
    assert threading.active_count() == threads, "a run is left behind"


def test_the_same_seed_gives_the_same_weights() -> None:
    net = small_resnet()
    first = cut(net, torch.zeros(1, 1, 8, 8))
    second, other = copy.deepcopy(first), copy.deepcopy(first)
    # 40,000 positions, so that a sample of them is drawn.
    batches = vectors(640, 1, 8, 8).split(64)
    state = torch.get_rng_state()
    obc.recalibrate(first, net, batches, residual=False, samples=640)
    assert torch.equal(state, torch.get_rng_state())
    torch.rand(1)
    obc.recalibrate(second, net, batches, residual=False, samples=640)
    obc.recalibrate(other, net, batches, residual=False, samples=640, seed=1)
    same = [torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True)]
    assert all(same)
    assert not torch.equal(first.layer2[0].conv1.weight, other.layer2[0].conv1.weight)


def test_bfloat16_and_autocast() -> None:
    net = small_resnet()
    x, new = vectors(128, 1, 8, 8), vectors(128, 1, 8, 8, seed=2)
    low = copy.deepcopy(net).bfloat16()
    small = cut(low, torch.zeros(1, 1, 8, 8).bfloat16())
    naive = copy.deepcopy(small)
    obc.recalibrate(small, low, x.bfloat16().split(32))
    assert {p.dtype for p in small.parameters()} == {torch.bfloat16}

    def error(model: nn.Module, kind: torch.dtype) -> float:
        with torch.no_grad():
            return float((model(new.to(kind)).float() - net(new)).square().mean())

    assert error(small, torch.bfloat16) < 0.7 * error(naive, torch.bfloat16)

    small = cut(net, torch.zeros(1, 1, 8, 8))
    naive = copy.deepcopy(small)

    def call(model: nn.Module, batch: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            output: Tensor = model(batch)
            return output

    rows = [f.rows for f in obc.recalibrate(copy.deepcopy(small), net, x.split(32)).fits]
    account = obc.recalibrate(small, net, x.split(32), call=call)
    assert sum(f.kept for f in account.fits) > 6
    assert [f.rows for f in account.fits] == rows, "not all batches were seen"
    assert error(small, torch.float32) < 0.7 * error(naive, torch.float32)


def test_activations_that_are_moved_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a device that they would fill: the same bit for bit, and empty while they wait."""
    net = small_resnet()
    first = cut(net, torch.zeros(1, 1, 8, 8))
    second, x = copy.deepcopy(first), vectors(64, 1, 8, 8)

    def call(model: nn.Module, batch: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            output: Tensor = model(batch)
            return output

    for how in (None, call):
        obc.recalibrate(first, net, x.split(16), residual=True, call=how)
        moved = []

        def park(self: Parking, real: Any = Parking.park, moved: list[int] = moved) -> None:
            real(self)
            moved.append(sum(values.nbytes() for _, values in self._away))
            assert all(storage.nbytes() == 0 for storage, _ in self._away)

        with monkeypatch.context() as patch:
            patch.setattr(procedure, "crowded", lambda device: True)
            patch.setattr(procedure, "can_fill", lambda model: True)
            patch.setattr(Parking, "park", park)
            obc.recalibrate(second, net, x.split(16), residual=True, call=how)
        assert max(moved) >= 2 * 16 * 6 * 64, "nothing was moved"
        same = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
        assert all(torch.equal(a, b) for a, b in same)


def test_inputs_of_the_original() -> None:
    net = small_resnet()
    small = cut(net, torch.zeros(1, 1, 8, 8))
    account = obc.recalibrate(small, net, vectors(256, 1, 8, 8).split(64), source="original")
    assert account.after < account.before
    with pytest.raises(obc.ObcError, match="source is"):
        obc.recalibrate(small, net, [], source="nowhere")


class Tied(nn.Module):
    """A language model whose head is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.up, self.down = nn.Embedding(11, 6), nn.Linear(6, 8), nn.Linear(8, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        return self.head(x + self.down(torch.tanh(self.up(x))))


def test_shared_weights_are_left_alone() -> None:
    torch.manual_seed(0)
    net = Tied()
    tokens = torch.randint(0, 11, (40, 6))
    small = cut(net, tokens[:2], {"up": [0, 3, 5]})
    before = small.embedding.weight.detach().clone()
    account = obc.recalibrate(small, net, tokens.split(10))
    notes = {f.name: f.note for f in account.fits}
    assert "also used by embedding" in notes["embedding.weight"]
    assert torch.equal(small.embedding.weight, before)
    assert {f.name for f in account.fits if f.kept} == {"down.weight"}


def test_batches_of_any_kind() -> None:
    """A mapping is called by name, a tuple by its first; or the user says how."""
    net = twins()
    x = vectors(256, 4).double()
    naive = cut(net, torch.zeros(1, 4).double(), {"0": range(5)})
    weights = []
    for batches, call in (
        (x.split(64), None),
        ([(part, "a label") for part in x.split(64)], None),
        ([{"input": part} for part in x.split(64)], None),
        ([{"pixels": part} for part in x.split(64)], lambda m, b: m(b["pixels"])),
    ):
        small = copy.deepcopy(naive)
        obc.recalibrate(small, net, batches, call=call)
        weights.append(small[2].weight.detach())
    for weight in weights[1:]:
        assert torch.equal(weight, weights[0])
    assert not torch.equal(weights[0], naive[2].weight)


def alone(model: nn.Module, batch: Tensor) -> Tensor:
    output: Tensor = model(batch)
    return output


def across(model: nn.Module, batch: Tensor) -> Tensor:
    return alone(model, batch - batch.mean(0))


def by_sixty_four(model: nn.Module, batch: Tensor) -> Tensor:
    return alone(model, batch.view(64, 4))


@pytest.mark.parametrize("call", [alone, across, by_sixty_four])
def test_the_cut_network_is_judged_on_held_out_samples(call: Any) -> None:
    """They run alone where that makes no difference, else with their batch."""
    net, batches = twins(), vectors(512, 4).double().split(64)
    small = cut(net, torch.zeros(1, 4).double(), {"0": range(5)})
    naive, seen = copy.deepcopy(small), []

    def counted(model: nn.Module, batch: Tensor) -> Tensor:
        seen.append(len(batch))
        return call(model, batch)

    account = obc.recalibrate(small, net, batches, call=counted)
    assert seen.count(8) == {alone: 9, across: 1, by_sixty_four: 1}[call]
    held = torch.arange(64) % 8 == 7
    with torch.no_grad():
        a, b = (torch.cat([call(m, x)[held] for x in batches]) for m in (naive, net))
    expected = (a - b).square().sum() / (b - b.mean()).square().sum()
    assert account.before == pytest.approx(float(expected), rel=1e-9)


def test_errors() -> None:
    net = twins()
    with pytest.raises(obc.ObcError, match="remembers no cut"):
        obc.recalibrate(copy.deepcopy(net), net, [torch.zeros(8, 4)])
    small = cut(net, torch.zeros(1, 4).double(), {"0": range(5)})
    with pytest.raises(obc.ObcError, match="no batches"):
        obc.recalibrate(small, net, [])
    with pytest.raises(obc.ObcError, match="another model"):
        obc.recalibrate(small, small, [torch.zeros(8, 4)])
    with pytest.raises(obc.ObcError, match="no tensor with samples"):
        obc.recalibrate(small, net, [("a", "b")])
