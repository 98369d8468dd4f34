"""obc.score as users meet it: state left alone, bad input refused, known defects not inherited."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import obc
from obc.models import resnet20, vit_small
from tests import dense


class Small(nn.Module):
    """Two convolutions, a norm and a head."""

    def __init__(self, groups: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.5)
        self.conv2 = nn.Conv2d(8, 6, 3, groups=groups)
        self.fc = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(functional.relu(self.norm(self.conv1(x))))
        return self.fc(self.conv2(x).mean((2, 3)))


def cross_entropy(model: nn.Module, batch: Any) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def data(count: int = 3, size: int = 4, dtype: torch.dtype = torch.float64) -> list[Any]:
    return [
        (torch.randn(size, 3, 8, 8, dtype=dtype), torch.randint(0, 5, (size,)))
        for _ in range(count)
    ]


@pytest.fixture
def model() -> nn.Module:
    net = Small().double().eval()
    with torch.no_grad():
        net.norm.running_mean.uniform_(-1, 1)
        net.norm.running_var.uniform_(0.5, 2)
        net.norm.bias.uniform_(-1, 1)
    return net


@pytest.fixture
def sites(model: nn.Module) -> obc.Sites:
    return obc.trace(model, torch.zeros(1, 3, 8, 8, dtype=torch.float64))


def fingerprint(model: nn.Module) -> dict[str, Any]:
    return {
        "state": {n: t.clone() for n, t in model.state_dict().items()},
        "grads": {
            n: None if p.grad is None else p.grad.clone() for n, p in model.named_parameters()
        },
        "flags": {n: p.requires_grad for n, p in model.named_parameters()},
        "modes": {n: m.training for n, m in model.named_modules()},
        "hooks": {
            n: len(m._forward_hooks) + len(m._forward_pre_hooks) for n, m in model.named_modules()
        },
        "random": torch.get_rng_state(),
    }


def assert_same(a: dict[str, Any], b: dict[str, Any]) -> None:
    for key in ("flags", "modes", "hooks"):
        assert a[key] == b[key]
    for key in ("state", "grads"):
        for name, value in a[key].items():
            assert (value is None and b[key][name] is None) or torch.equal(value, b[key][name])
    assert torch.equal(a["random"], b["random"])


@pytest.mark.parametrize("criterion", ["jacobian", "taylor", "hessian", "l1", "random", "fpgm"])
def test_the_model_is_as_it_was(model: nn.Module, sites: obc.Sites, criterion: str) -> None:
    model.train()
    model.conv1.weight.requires_grad_(False)
    model.fc.weight.grad = torch.ones_like(model.fc.weight)
    batches = data()
    before = fingerprint(model)
    obc.score(model, sites, batches, cross_entropy, criterion=criterion)
    assert_same(before, fingerprint(model))


def test_train_mode_scores_like_eval_mode(model: nn.Module, sites: obc.Sites) -> None:
    batches = data()
    wanted = obc.score(model, sites, batches, cross_entropy)
    found = obc.score(model.train(), sites, batches, cross_entropy)
    for name in wanted:
        assert torch.equal(found[name], wanted[name])


BAD: dict[str, tuple[Callable[[], Any], Any, str]] = {
    "empty": (lambda: [], cross_entropy, "no batches"),
    "nan": (data, lambda m, b: cross_entropy(m, b) * float("nan"), "loss of batch 0 is nan"),
    "infinite": (data, lambda m, b: cross_entropy(m, b) / 0, "loss of batch 0 is inf"),
    "not scalar": (data, lambda m, b: m(b[0]), "scalar"),
    "not a tensor": (data, lambda m, b: 1.0, "scalar"),
    "detached": (data, lambda m, b: cross_entropy(m, b).detach(), "no gradient"),
    "constant": (data, lambda m, b: m.fc.bias.sum() * 0 + 1, "no gradient"),
    "rejected": (lambda: [torch.zeros(2, 4)], lambda m, b: m(b).sum(), "batch 0 failed"),
    "one rejected": (
        lambda: [*data(2), (torch.zeros(1, 9, 8, 8).double(), torch.zeros(1).long())],
        cross_entropy,
        "batch 2 failed",
    ),
    "random": (data, lambda m, b: cross_entropy(m, b) * torch.rand(()), "deterministic"),
    "no loss": (data, None, "needs batches and a loss"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_one_clear_sentence_and_nothing_changes(
    model: nn.Module, sites: obc.Sites, what: str
) -> None:
    batches, loss, message = BAD[what]
    given = batches()
    before = fingerprint(model)
    with pytest.raises(obc.ObcError, match=message) as raised:
        obc.score(model, sites, given, loss)
    assert "\n" not in str(raised.value).strip() or what.endswith("rejected")
    after = fingerprint(model)
    before["random"] = after["random"] = torch.zeros(0)  # a loss that draws numbers is the user's
    assert_same(before, after)


def test_a_site_no_gradient_reaches_is_named() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
            self.b = nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 3))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.a(x), self.b(x)

    net = Two()
    sites = obc.trace(net, torch.zeros(1, 4))
    for options in ({}, {"fast": False}, {"criterion": "taylor"}):
        with pytest.raises(obc.ObcError, match=r"no gradient reaches site 'b\.0'"):
            obc.score(net, sites, [torch.ones(2, 4)], lambda m, x: m(x)[0].sum(), **options)


def test_names_and_options_are_checked(model: nn.Module, sites: obc.Sites) -> None:
    with pytest.raises(obc.ObcError, match="did you mean 'jacobian'"):
        obc.score(model, sites, data(), cross_entropy, criterion="jacobean")
    with pytest.raises(obc.ObcError, match="aggregate must be one of"):
        obc.score(model, sites, data(), cross_entropy, aggregate="median")
    with pytest.raises(obc.ObcError, match="per_sample is True or False"):
        obc.score(model, sites, data(), cross_entropy, per_sample="epoch")
    with pytest.raises(obc.ObcError, match="takes no arguments"):
        obc.score(model, sites, data(), cross_entropy, criterion="l1", per_sample=False)
    with pytest.warns(UserWarning, match="known to collapse"):
        obc.score(model, sites, data(), cross_entropy, aggregate="mean", normalize="mean")


def test_a_criterion_of_ones_own(model: nn.Module, sites: obc.Sites) -> None:
    @obc.criterion("test_gradient_size")
    class GradientSize(obc.Criterion):
        evidence = "gradient"

        def measure(self, part: Any, w: Tensor, e: Tensor) -> Tensor:
            return e.abs().sum(1)

    batches = data()
    rows = dense.gradient_rows(model, batches, cross_entropy)
    wanted = dense.scores(
        model,
        sites,
        rows,
        lambda role, w, g, _: sum(float(x.abs().sum()) for row in g for x in row),
    )
    found = obc.score(model, sites, batches, cross_entropy, criterion="test_gradient_size")
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-9, atol=0)


def test_random_is_uniform_and_seeded(model: nn.Module, sites: obc.Sites) -> None:
    one, same, other = (
        obc.score(model, sites, criterion="random", seed=seed) for seed in (1, 1, 2)
    )
    assert all(torch.equal(one[n], same[n]) for n in one)
    assert not any(torch.equal(one[n], other[n]) for n in one)
    wide = nn.Sequential(nn.Linear(2, 4000), nn.Linear(4000, 2))
    draw = obc.score(wide, obc.trace(wide, torch.zeros(1, 2)), criterion="random")["0"]
    assert abs(float(draw.mean()) - 0.5) < 0.03 and abs(float(draw.var()) - 1 / 12) < 0.01


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_models_accumulate_in_float32(model: nn.Module, dtype: torch.dtype) -> None:
    model = copy.deepcopy(model).to(dtype)
    sites = obc.trace(model, torch.zeros(1, 3, 8, 8, dtype=dtype))
    batches = data(dtype=dtype)
    fast = obc.score(model, sites, batches, cross_entropy)
    slow = obc.score(model, sites, batches, cross_entropy, fast=False)
    for name in fast:
        assert fast[name].dtype == torch.float64
        assert torch.corrcoef(torch.stack([fast[name], slow[name]]))[0, 1] > 0.98


def test_autocast(model: nn.Module) -> None:
    model = copy.deepcopy(model).float()
    sites = obc.trace(model, torch.zeros(1, 3, 8, 8))

    def loss(m: nn.Module, b: Any) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return functional.cross_entropy(m(b[0]).float(), b[1])

    batches = data(dtype=torch.float32)
    found = obc.score(model, sites, batches, loss)
    wanted = obc.score(model, sites, batches, cross_entropy)
    for name in found:
        assert torch.corrcoef(torch.stack([found[name], wanted[name]]))[0, 1] > 0.98


def test_gradient_checkpointing() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Linear(4, 6)
            self.block = nn.Sequential(nn.Linear(6, 9), nn.GELU(), nn.Linear(9, 6))
            self.head = nn.Linear(6, 3)
            self.on, self.reentrant = True, False

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            y = (
                checkpoint(self.block, x, use_reentrant=self.reentrant)
                if self.on
                else self.block(x)
            )
            return self.head(x + y)

    net = Checkpointed().double()
    x = [torch.randn(5, 4, dtype=torch.float64) for _ in range(2)]
    net.on = False
    sites = obc.trace(net, x[0])
    wanted = obc.score(net, sites, x, lambda m, b: m(b).square().mean())
    net.on = True
    found = obc.score(net, sites, x, lambda m, b: m(b).square().mean())
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-9, atol=0)
    net.reentrant = True  # torch's old form cannot be asked for single gradients, and says so
    with pytest.raises(obc.ObcError, match="set use_reentrant=False"):
        obc.score(net, sites, x, lambda m, b: m(b).square().mean())


def test_overwritten_activations_are_copied() -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 6), nn.Linear(4, 6), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.a(x)
            y += self.b(x)
            return self.c(functional.silu(y, inplace=True))

    net = InPlace().double()
    x = [torch.randn(5, 4, dtype=torch.float64) for _ in range(2)]
    sites = obc.trace(net, x[0])
    rows = dense.gradient_rows(net, x, lambda m, b: m(b).square().mean())
    wanted = dense.scores(net, sites, rows, dense.jacobian)
    found = obc.score(net, sites, x, lambda m, b: m(b).square().mean())
    torch.testing.assert_close(found["a"], wanted["a"], rtol=1e-9, atol=0)


def test_a_loss_with_a_reader_of_its_own_is_not_taken_for_the_traced_graph() -> None:
    """The trace says conv2 alone reads norm1; this loss reads it too, so algebra must not serve."""
    net = resnet20(width=4).double().eval()
    sites = obc.trace(net, torch.zeros(1, 3, 8, 8, dtype=torch.float64))
    kept: list[Tensor] = []
    net.layer1[0].bn1.register_forward_hook(lambda m, i, o: kept.append(o))

    def loss(m: nn.Module, b: Any) -> Tensor:
        kept.clear()
        return functional.cross_entropy(m(b[0]), b[1]) + kept[0].square().mean()

    batches = data()
    fast = obc.score(net, sites, batches, loss)
    slow = obc.score(net, sites, batches, loss, fast=False)
    for name in fast:
        torch.testing.assert_close(fast[name], slow[name], rtol=1e-9, atol=1e-15)


# -- defects of published baselines, each shown to be absent ----------------------------------


def test_hessian_adds_up_all_samples_not_the_last(model: nn.Module, sites: obc.Sites) -> None:
    batches = data(2, 3)
    whole = obc.score(model, sites, batches, cross_entropy, criterion="hessian")
    parts = [
        obc.score(
            model, sites, [(b[0][i : i + 1], b[1][i : i + 1])], cross_entropy, criterion="hessian"
        )
        for b in batches
        for i in range(3)
    ]
    for name in whole:
        torch.testing.assert_close(whole[name], sum(p[name] for p in parts), rtol=1e-9, atol=0)
        assert not torch.allclose(whole[name], parts[-1][name])


def test_taylor_counts_batch_norm(model: nn.Module, sites: obc.Sites) -> None:
    batches = data()
    rows = dense.gradient_rows(model, batches, cross_entropy)
    without = dense.scores(
        model,
        sites,
        rows,
        lambda role, *rest: None if role == "norm" else dense.taylor(role, *rest),
    )
    found = obc.score(model, sites, batches, cross_entropy, criterion="taylor")
    assert (found["conv1"] > without["conv1"]).all()


def test_scores_follow_channels_through_unsorted_positions() -> None:
    """A concatenation in reverse order: positions of one channel differ from layer to layer."""

    class Crossed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 5)
            self.norm, self.fc = nn.BatchNorm1d(8), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.norm(torch.cat([self.b(x), self.a(x)], 1).flip(1)))

    net = Crossed().double().eval()
    x = [torch.randn(6, 4, dtype=torch.float64) for _ in range(2)]
    sites = obc.trace(net, x[0])
    rows = dense.gradient_rows(net, x, lambda m, b: m(b).square().mean())
    found = obc.score(net, sites, x, lambda m, b: m(b).square().mean())
    wanted = dense.scores(net, sites, rows, dense.jacobian)
    for name in ("a", "b"):
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-9, atol=0)
    member = next(m for m in sites["a"].members if m.name == "norm.weight")
    assert member.index.flatten().tolist() == [2, 1, 0]


def test_group_convolution_inputs_are_not_summed_over_all_groups() -> None:
    net = Small(groups=2).double().eval()
    sites = obc.trace(net, torch.zeros(1, 3, 8, 8, dtype=torch.float64))
    batches = data()
    rows = dense.gradient_rows(net, batches, cross_entropy)
    for criterion in ("jacobian", "taylor", "l2"):
        found = obc.score(net, sites, batches, cross_entropy, criterion=criterion)
        wanted = dense.scores(net, sites, rows, getattr(dense, criterion))
        for name in found:
            torch.testing.assert_close(found[name], wanted[name], rtol=1e-9, atol=0)


def test_attention_products_count_in_the_cost() -> None:
    net = vit_small()
    x = torch.zeros(1, 3, 32, 32)
    layers = obc.cost(net, x).layers
    own = layers["blocks.0.attn"].macs
    tokens, width = 65, 64
    assert own == 2 * tokens * tokens * width
