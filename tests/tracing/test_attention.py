"""The forward that pruned attention gets computes what torch's own does, for all its arguments."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import obc
from obc.tracing.attention import multihead_attention
from tests.examples import floats
from tests.nets.wrap import Wrap
from tests.sensitive import sensitive

HEADS, WIDTH = 3, 12
QUERY, MEMORY = floats(2, 5, WIDTH), floats(2, 7, WIDTH, seed=3)
NARROW = floats(2, 7, 8, seed=4)


def padding(*rows: int, length: int = 7) -> Tensor:
    """A mask that leaves out the last few keys of each row."""
    return torch.stack([torch.arange(length) >= length - n for n in rows])


CAUSAL = torch.ones(5, 5).triu(1).bool()
BIAS = floats(5, 7, seed=5)
PER_HEAD = floats(2 * HEADS, 5, 7, seed=6)

CALLS: dict[str, tuple[dict[str, Any], tuple[Tensor, ...], dict[str, Any]]] = {
    "self": ({}, (QUERY,) * 3, {}),
    "cross": ({}, (QUERY, MEMORY, MEMORY), {}),
    "no weights": ({}, (QUERY, MEMORY, MEMORY), {"need_weights": False}),
    "a weight per head": ({}, (QUERY, MEMORY, MEMORY), {"average_attn_weights": False}),
    "no bias": ({"bias": False}, (QUERY,) * 3, {}),
    "other widths": ({"kdim": 8, "vdim": WIDTH}, (QUERY, NARROW, MEMORY), {}),
    "causal": ({}, (QUERY,) * 3, {"attn_mask": CAUSAL}),
    "causal, said so": (
        {},
        (QUERY,) * 3,
        {"attn_mask": CAUSAL, "is_causal": True, "need_weights": False},
    ),
    "added to the scores": ({}, (QUERY, MEMORY, MEMORY), {"attn_mask": BIAS}),
    "added to each head's": ({}, (QUERY, MEMORY, MEMORY), {"attn_mask": PER_HEAD}),
    "masked for each head": ({}, (QUERY, MEMORY, MEMORY), {"attn_mask": PER_HEAD > 1}),
    "padding": ({}, (QUERY, MEMORY, MEMORY), {"key_padding_mask": padding(0, 3)}),
    "padding, no weights": (
        {},
        (QUERY, MEMORY, MEMORY),
        {"key_padding_mask": padding(0, 3), "need_weights": False},
    ),
    "padding as numbers": (
        {},
        (QUERY, MEMORY, MEMORY),
        {"key_padding_mask": -1.5 * padding(1, 3).double()},
    ),
    "padding and mask": (
        {},
        (QUERY, MEMORY, MEMORY),
        {"key_padding_mask": padding(0, 3), "attn_mask": BIAS > 1.5},
    ),
    "one sequence": ({}, (QUERY[0], MEMORY[0], MEMORY[0]), {}),
    "one sequence, masked": (
        {},
        (QUERY[0], MEMORY[0], MEMORY[0]),
        {"key_padding_mask": padding(3)[0], "attn_mask": BIAS},
    ),
    "one sequence, a mask for each head": (
        {},
        (QUERY[0], MEMORY[0], MEMORY[0]),
        {"attn_mask": PER_HEAD[:HEADS]},
    ),
}


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("name", CALLS)
def test_equals_torch(name: str, batch_first: bool) -> None:
    options, inputs, more = CALLS[name]
    layer = sensitive(nn.MultiheadAttention(WIDTH, HEADS, batch_first=batch_first, **options))
    if not batch_first and inputs[0].ndim == 3:
        inputs = tuple(x.transpose(0, 1) for x in inputs)
    ours = copy.deepcopy(layer)
    multihead_attention(ours, {})
    expected, weights = layer(*inputs, **more)
    found, own_weights = ours(*inputs, **more)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert (own_weights is None) == (weights is None)
    if weights is not None:
        torch.testing.assert_close(own_weights, weights, rtol=1e-12, atol=1e-12)


def test_drops_weights_in_training() -> None:
    layer = sensitive(nn.MultiheadAttention(WIDTH, HEADS, dropout=0.5, batch_first=True))
    multihead_attention(layer, {})
    for weights in (True, False):
        calm = [layer.eval()(QUERY, QUERY, QUERY, need_weights=weights)[0] for _ in range(2)]
        noisy = [layer.train()(QUERY, QUERY, QUERY, need_weights=weights)[0] for _ in range(2)]
        assert torch.equal(*calm) and not torch.equal(*noisy)


def test_a_pruned_layer_is_copied_with_its_forward() -> None:
    """A copy must use its own weights, not those of the layer it was copied from."""
    layer = sensitive(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True))
    multihead_attention(layer, {})
    twin = copy.deepcopy(layer)
    with torch.no_grad():
        twin.out_proj.weight.mul_(2)
    same, other = (m(QUERY, QUERY, QUERY)[0] for m in (layer, twin))
    assert not torch.allclose(same, other)


def encoder(nested: bool, norm_first: bool = False) -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 19, batch_first=True, norm_first=norm_first)
    stack = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested)

    def run(m: Any, x: Tensor, mask: Tensor) -> Tensor:
        return m.head(m.stack(m.stem(x), src_key_padding_mask=mask)[:, 0])

    return sensitive(Wrap(run, stem=nn.Linear(6, WIDTH), stack=stack, head=nn.Linear(WIDTH, 4)))


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("kind", ["linear1", "self_attn", "stem"])
def test_the_fast_path_of_a_pruned_encoder(nested: bool, kind: str) -> None:
    """Whichever site went, eval mode with and without torch's fused kernels gives the same."""
    model, example = encoder(nested), (floats(2, 7, 6), padding(0, 3))
    sites = obc.trace(model, example)
    chosen = {s.name: range(s.size - 1) for s in sites if s.name.endswith(kind)}
    assert chosen
    plan = obc.Plan.from_kept(sites, chosen)
    pruned = obc.apply(copy.deepcopy(model), plan, example=example)
    found = []
    for fast in (False, True):
        torch.backends.mha.set_fastpath_enabled(fast)
        with torch.no_grad():
            found.append(pruned(*example))
    torch.backends.mha.set_fastpath_enabled(True)
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)
    assert obc.verify(model, pruned, plan, example) < 1e-9
