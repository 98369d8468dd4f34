"""`source="original"`: weights that lost inputs, on what the original network reads."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import obc
from tests.recalibration.dense import best
from tests.reference import relative_error


def chain() -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Linear(4, 10), nn.Tanh(), nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 12), nn.Tanh())
    return nn.Sequential(*layers, nn.Linear(12, 3)).double().eval()


def cut(net: nn.Module) -> nn.Module:
    sites = obc.trace(net, torch.zeros(1, 4).double())
    kept = {"0": [0, 2, 3, 7, 9], "4": [1, 2, 5, 8, 10, 11]}
    return obc.apply(copy.deepcopy(net), obc.Plan.from_kept(sites, kept))


def test_both_readers_are_least_squares_of_the_original() -> None:
    net, x = chain(), torch.randn(256, 4, dtype=torch.float64)
    small, batches = cut(net), x.split(32)
    naive, passes = copy.deepcopy(small), []

    def call(model: nn.Module, batch: Tensor) -> Tensor:
        passes.append((model[2].in_features, len(batch)))
        result: Tensor = model(batch)
        return result

    account = obc.recalibrate(small, net, batches, source="original", call=call)
    fits = {f.name: f for f in account.fits}
    assert account.kept and account.after < account.before
    trained = x[torch.arange(256) % 8 != 7]
    for layer, kept in ((2, [0, 2, 3, 7, 9]), (6, [1, 2, 5, 8, 10, 11])):
        reads, fit = net[:layer](trained).detach(), fits[f"{layer}.weight"]
        target = net[layer](reads).detach()
        expected = best(naive[layer], reads[:, kept], target, -1, fit.ridge, True)
        assert relative_error([expected], [small[layer].weight.detach()]) < 1e-8
        assert relative_error([expected], [naive[layer].weight.detach()]) > 1e-2
    reads = small[:6](trained).detach()
    other = best(naive[6], reads, net(trained).detach(), -1, fits["6.weight"].ridge, True)
    assert relative_error([other], [small[6].weight.detach()]) > 1e-3, "sees no difference"
    for layer in (0, 4):  # they read all that they read before
        assert fits[f"{layer}.weight"].note == "already exact"
        assert torch.equal(small[layer].weight, naive[layer].weight)
    # The cut network runs on the batch that is written down, and on held-out samples.
    assert [n for width, n in passes if width == 5] == [32] + 17 * [4]


def test_a_weight_that_was_changed_since_the_cut_is_not_exact() -> None:
    net, x = chain(), torch.randn(256, 4, dtype=torch.float64)
    small = cut(net)
    with torch.no_grad():
        small[4].weight.mul_(1.1)
        small[0].bias.add_(0.1)
    account = obc.recalibrate(small, net, x.split(32), source="original")
    fits = {f.name: f for f in account.fits}
    assert fits["4.weight"].kept and fits["0.weight"].kept
    assert (
        relative_error([net[4].weight[[1, 2, 5, 8, 10, 11]].detach()], [small[4].weight.detach()])
        < 1e-3
    )
    assert relative_error([net[0].bias[[0, 2, 3, 7, 9]].detach()], [small[0].bias.detach()]) < 1e-3


def test_keys_and_values_are_not_kept() -> None:
    """All batches wait at a weight: a decoder's caches would wait with them."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        **{"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "vocab_size": 30},
        num_attention_heads=4,
    )
    net = transformers.LlamaForCausalLM(config).eval()
    ids = torch.randint(30, (64, 12))
    sites = obc.trace(net, ids[:1])
    name = next(s.name for s in sites if s.size == 24)
    small = obc.apply(copy.deepcopy(net), obc.Plan.from_kept(sites, {name: range(0, 24, 2)}))
    kept = []

    def call(model: nn.Module, batch: Tensor) -> Tensor:
        output = model(batch)
        kept.append(output.past_key_values)
        logits: Tensor = output.logits
        return logits

    account = obc.recalibrate(small, net, ids.split(16), call=call, source="original")
    assert account.before > account.after and kept and not any(kept)
    assert net.config.use_cache and net(ids[:1]).past_key_values is not None
