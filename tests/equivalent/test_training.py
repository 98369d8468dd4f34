"""An equivalently pruned model goes through any training loop like any other model."""

from __future__ import annotations

import copy
from pathlib import Path
from shutil import which
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import obc
from obc.equivalent import hold
from obc.equivalent.factors import Factors, Mix
from tests.cases import case
from tests.reference import random_kept
from tests.vision import import_torchvision

SLOW = [pytest.mark.slow, pytest.mark.skipif(not which("g++"), reason="needs a compiler")]


class Net(nn.Module):
    """Convolutions with norms, one of them grouped, and a flattened map."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.bn = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.b = nn.Conv2d(8, 12, 3, padding=1, groups=2)
        self.c = nn.Conv2d(12, 6, 1)
        self.fc = nn.Linear(6 * 16, 5)
        self.checkpointed = False

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn(self.a(x)))
        middle = nn.Sequential(self.b, nn.ReLU(), self.c)
        x = checkpoint(middle, x, use_reentrant=False) if self.checkpointed else middle(x)
        return self.fc(torch.relu(x).flatten(1))


SHAPE = (1, 3, 4, 4)


def plan_of(net: nn.Module) -> obc.Plan:
    sites = obc.trace(net, torch.zeros(SHAPE, dtype=next(net.parameters()).dtype))
    assert len(sites) == 3
    return obc.Plan.from_kept(sites, random_kept(sites, ratio=0.5))


def equivalent(dtype: torch.dtype = torch.float64, moved: bool = True) -> Net:
    """A network with C and D, away from the identity if moved."""
    torch.manual_seed(1)
    net = Net().to(dtype)
    obc.apply(net, plan_of(net), equivalent=True)
    if moved:
        for p in mixes(net):
            p.data.add_(0.1 * torch.randn_like(p))
    return net


def mixes(net: nn.Module) -> list[nn.Parameter]:
    return [p for m in net.modules() if isinstance(m, Mix) for p in m.parameters()]


def batch(dtype: torch.dtype = torch.float64, size: int = 6) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(2)
    x = torch.randn(size, 3, 4, 4, generator=random).to(dtype)
    return x, torch.randint(0, 5, (size,), generator=random)


def loss(net: nn.Module, data: tuple[Tensor, Tensor]) -> Tensor:
    return functional.cross_entropy(net(data[0]), data[1])


def gradients(net: nn.Module) -> dict[str, Tensor]:
    return {n: p.grad.clone() for n, p in net.named_parameters() if p.grad is not None}


def close(a: dict[str, Tensor], b: dict[str, Tensor], limit: float = 1e-12) -> bool:
    assert a.keys() == b.keys()
    return all(torch.allclose(a[n], b[n], rtol=limit, atol=limit) for n in a)


def test_every_weight_learns_once_c_and_d_have_moved() -> None:
    names = [f"{layer}.parametrizations.weight.original" for layer in ("a", "b", "c", "fc")]
    dead = {}
    for moved in (False, True):
        net = equivalent(moved=moved)
        loss(net, batch()).backward()
        found = gradients(net)
        dead[moved] = [n for n in names if bool((found[n] == 0).any())]
    assert dead == {False: names, True: []}


def test_forward_hooks_and_classes_stay() -> None:
    net, seen = Net(), []
    net.a.register_forward_hook(lambda m, i, o: seen.append(tuple(o.shape)))
    obc.apply(net, plan_of(net), equivalent=True)
    seen.clear()
    net(torch.zeros(2, 3, 4, 4))
    assert seen == [(2, 4, 4, 4)], "activations have the pruned width"
    assert type(net) is Net
    assert isinstance(net.a, nn.Conv2d)
    obc.merge(net)
    assert type(net.a) is nn.Conv2d
    net(torch.zeros(2, 3, 4, 4))
    assert len(seen) == 2


def test_the_state_goes_to_a_model_rebuilt_from_the_plan() -> None:
    net, fresh = equivalent(), Net().double()
    obc.apply(fresh, plan_of(fresh), equivalent=True)
    fresh.load_state_dict(net.state_dict())
    x, _ = batch()
    assert torch.equal(fresh.eval()(x), net.eval()(x))
    assert torch.equal(obc.merge(fresh)(x), net(x))


def test_a_copy_is_of_its_own() -> None:
    net = equivalent().eval()
    twin = copy.deepcopy(net)
    before = net(batch()[0])
    for p in twin.parameters():
        p.data.mul_(2)
    assert torch.equal(net(batch()[0]), before)
    assert not torch.allclose(twin(batch()[0]), before)


def test_averaging() -> None:
    net = equivalent()
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.5), use_buffers=True)
    step = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(3):
        step.zero_grad()
        loss(net, batch()).backward()
        step.step()
        average.update_parameters(net)
    merged = obc.merge(copy.deepcopy(average.module)).eval()
    assert torch.allclose(merged(batch()[0]), average.eval()(batch()[0]))


def test_checkpointing() -> None:
    found = []
    for checkpointed in (False, True):
        net = equivalent()
        net.checkpointed = checkpointed
        loss(net, batch()).backward()
        found.append(gradients(net))
    assert close(*found)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=SLOW)])
def test_compiled(backend: str) -> None:
    plain, net = equivalent(), equivalent()
    compiled = torch.compile(net, backend=backend, fullgraph=True)
    for _ in range(2):  # the second time with what the first has left
        for model, runs in ((plain, plain), (net, compiled)):
            model.zero_grad()
            loss(runs, batch()).backward()
            torch.optim.SGD(model.parameters(), 0.1).step()
        assert close(gradients(plain), gradients(net), 1e-10)
    obc.merge(net)
    assert torch.allclose(net.eval()(batch()[0]), plain.eval()(batch()[0]))


def test_autocast_keeps_factors_in_their_own_precision() -> None:
    net = equivalent(torch.float32)
    exact = net.a.weight.detach().clone()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(net.a.weight, exact)
        assert not torch.equal((net.a.weight.flatten(1) @ torch.eye(27)).float(), exact.flatten(1))
        found = net(batch(torch.float32)[0])
        loss(net, batch(torch.float32)).backward()
    assert found.dtype == torch.bfloat16
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in net.parameters())
    whole = net(batch(torch.float32)[0])
    assert torch.allclose(found.float(), whole, atol=0.05 * float(whole.detach().abs().max()))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_memory_layout_is_that_of_the_weight(layout: torch.memory_format) -> None:
    net = equivalent().to(memory_format=layout)
    assert net.a.weight.is_contiguous(memory_format=layout)
    assert net.b.weight.is_contiguous(memory_format=layout)
    assert torch.allclose(net.eval()(batch()[0]), equivalent().eval()(batch()[0]))
    merged = obc.merge(net)
    assert merged.a.weight.is_contiguous(memory_format=layout)


def test_gathered_gradients_cost_one_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """Held over a step: the same gradients, and each product once instead of once per batch."""
    products = []
    original = Mix.along
    monkeypatch.setattr(Mix, "along", lambda *a: (products.append(1), original(*a))[1])
    x, y = batch(size=12)
    parts = list(zip(x.split(3), y.split(3), strict=True))
    found, counts = [], []
    for held in (False, True):
        net = equivalent()
        net.bn.eval()
        products.clear()
        if held:
            with hold(net):
                for part in parts:
                    loss(net, part).backward()
        else:
            for part in parts:
                loss(net, part).backward()
        counts.append(len(products))
        found.append(gradients(net))
    assert close(*found)
    assert counts[0] == 4 * counts[1]
    net = equivalent()
    net.bn.eval()
    loss(net, parts[0]).backward()
    assert not close(found[0], gradients(net)), "one batch is not four"


def test_holding_ends_with_an_error() -> None:
    net = equivalent()
    with pytest.raises(KeyError), hold(net):
        raise KeyError
    assert all(m.held is None for m in net.modules() if isinstance(m, Factors))


def test_frozen_weights_have_frozen_factors() -> None:
    net = Net()
    net.a.requires_grad_(False)
    obc.apply(net, plan_of(net), equivalent=True)
    assert not any(p.requires_grad for p in net.a.parameters())
    assert all(p.requires_grad for p in net.c.parameters())
    groups = obc.parameter_groups(net, 0.1)
    assert not {id(p) for g in groups for p in g["params"]} & {id(p) for p in net.a.parameters()}
    obc.merge(net)
    assert not net.a.weight.requires_grad and net.c.weight.requires_grad


def test_parameter_groups() -> None:
    net = equivalent()
    groups = {g["name"]: g for g in obc.parameter_groups(net, 0.01, 5e-4, 0.02, 1e-5)}
    assert list(groups) == ["weights", "biases and norms", "C and D"]
    assert [(g["lr"], g["weight_decay"]) for g in groups.values()] == [
        (0.01, 5e-4),
        (0.01, 5e-4),
        (0.02, 1e-5),
    ]
    assert {id(p) for p in groups["C and D"]["params"]} == {id(p) for p in mixes(net)}
    assert all(p.ndim == 1 for p in groups["biases and norms"]["params"])
    every = [p for g in groups.values() for p in g["params"]]
    assert len(every) == len({id(p) for p in every}) == len(list(net.parameters()))
    torch.optim.AdamW(list(groups.values())).step()
    free = obc.parameter_groups(net, 0.01, 5e-4, norm_weight_decay=0.0)
    assert [g["weight_decay"] for g in free] == [5e-4, 0.0, 0.0]
    assert [g["name"] for g in obc.parameter_groups(obc.merge(net), 0.1)] == [
        "weights",
        "biases and norms",
    ]


def test_recurrent_layers_read_through_d() -> None:
    """Torch keeps a second list of their weights, which has to follow."""
    model, example = case("lstm").model(), case("lstm").example()
    sites = obc.trace(model, example)
    obc.apply(model, obc.Plan.from_kept(sites, random_kept(sites)), equivalent=True)
    found: Any = model.train()(example)
    found.sum().backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in mixes(model))


@pytest.mark.torchvision
@pytest.mark.filterwarnings("ignore")
def test_lightning_trains_it_as_a_plain_loop_does(tmp_path: Path) -> None:
    import_torchvision()  # torchmetrics, which Lightning loads, wants it
    import pytorch_lightning as lightning

    def optimizer(net: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(obc.parameter_groups(net, 0.05, 5e-4, 0.1), momentum=0.9)

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = equivalent()

        def training_step(self, data: Any, number: int) -> Tensor:
            return loss(self.net, data)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return optimizer(self.net)

    x, y = batch(size=24)
    loader = DataLoader(TensorDataset(x, y), batch_size=6)
    module, plain = Module(), equivalent()
    start = copy.deepcopy(plain.state_dict())
    trainer = lightning.Trainer(
        max_epochs=2, accumulate_grad_batches=2, precision="64-true", accelerator="cpu",
        logger=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(module, loader)

    step = optimizer(plain.train())
    for number, data in enumerate([*loader, *loader], 1):
        (loss(plain, data) / 2).backward()
        if number % 2 == 0:
            step.step()
            step.zero_grad()
    assert close(module.net.state_dict(), plain.state_dict())
    assert not close(module.net.state_dict(), start)
    trained = module.net.eval()(x)
    assert torch.allclose(obc.merge(module.net)(x), trained, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_layer_with_one_input_left_has_plain_strides(layout: torch.memory_format) -> None:
    """Others corrupt memory in the backward pass of torch 2.13 on a CPU."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1))
    net.to(memory_format=layout)
    sites = obc.trace(net, torch.zeros(1, 3, 8, 8))
    obc.apply(net, obc.Plan.from_kept(sites, {"0": [2]}), equivalent=True)
    assert net[2].weight.stride() == (9, 9, 3, 1)
    for _ in range(3):
        net(torch.randn(16, 3, 16, 16).to(memory_format=layout)).square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


def test_a_kernel_of_one_pixel_has_plain_strides() -> None:
    """Those of a 1×1 convolution pass for both layouts, and corrupt memory in the same way."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 8, 1, stride=2))
    sites = obc.trace(net, torch.zeros(1, 3, 8, 8))
    obc.apply(net, obc.Plan.from_kept(sites, {"0": [0, 2, 3]}), equivalent=True)
    assert net[2].weight.stride() == torch.empty(8, 3, 1, 1).stride()
    for _ in range(3):
        net(torch.randn(8, 3, 8, 8)).square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())
