"""`obc.trace` takes what users have, leaves it alone, and says clearly what it cannot take."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import obc
from obc.models import resnet20
from tests.cases import case
from tests.examples import floats
from tests.hugging import decoder
from tests.nets.wiring import Fickle
from tests.nets.wrap import Wrap
from tests.untouched import untouched

PIXELS = torch.zeros(1, 3, 8, 8)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def sizes(sites: obc.Sites) -> dict[str, int]:
    return {s.name: s.size for s in sites}


# What it takes.


@pytest.mark.parametrize(
    "example",
    [
        torch.zeros(3, 4),
        (torch.zeros(3, 4),),
        [torch.zeros(3, 4)],
        {"x": torch.zeros(3, 4)},
        {"x": torch.zeros(3, 4), "flag": True, "scale": None},
    ],
    ids=["tensor", "tuple", "list", "dict", "dict with values"],
)
def test_examples(example: Any) -> None:
    def run(m: nn.Module, x: Tensor, flag: bool = False, scale: Tensor | None = None) -> Tensor:
        return m.inner(x)

    assert sizes(obc.trace(Wrap(run, inner=mlp()), example)) == {"inner.0": 8}


@pytest.mark.parametrize("name", ["dict_output", "tuple_output", "keyword_input", "siamese"])
def test_inputs_and_outputs_of_several_parts(name: str) -> None:
    net = case(name)
    assert len(obc.trace(net.model(), net.example())) >= 2


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("gradients", [False, True])
def test_dtypes_modes_and_gradients(dtype: torch.dtype, training: bool, gradients: bool) -> None:
    model = resnet20(width=4).to(dtype).train(training).requires_grad_(gradients)
    expected = sizes(obc.trace(resnet20(width=4), torch.zeros(1, 3, 8, 8)))
    with untouched(model):
        assert sizes(obc.trace(model, torch.zeros(1, 3, 8, 8, dtype=dtype))) == expected


def test_within_no_grad_and_inference_mode() -> None:
    expected = sizes(obc.trace(mlp(), torch.zeros(1, 4)))
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert sizes(obc.trace(mlp(), torch.zeros(1, 4))) == expected


def test_a_meta_decoder_is_traced_like_a_real_one() -> None:
    pytest.importorskip("transformers")
    real = decoder("Llama", num_key_value_heads=2)
    with torch.device("meta"):
        model = decoder("Llama", num_key_value_heads=2)
    ids = torch.zeros(1, 5, dtype=torch.long)
    expected = obc.trace(real, {"input_ids": ids, "use_cache": False})
    found = obc.trace(model, {"input_ids": ids.to("meta"), "use_cache": False})
    assert sizes(found) == sizes(expected)
    assert [str(f) for f in found.frozen] == [str(f) for f in expected.frozen]


# What it leaves alone.


def counting(m: nn.Module, x: Tensor) -> Tensor:
    """A forward that writes buffers and attributes as it goes."""
    m.calls += 1
    m.seen.add_(x.mean())
    m.latest = x.detach()
    return m.inner(F.dropout(x, 0.5, True))


def test_state_that_a_forward_changes_is_put_back() -> None:
    model = Wrap(counting, inner=mlp(), calls=3, latest=None)
    model.register_buffer("seen", torch.zeros(()))
    with untouched(model):
        assert len(obc.trace(model, torch.ones(3, 4))) == 1
    assert model.calls == 3 and model.seen == 0


def test_parameters_that_a_forward_changes_are_put_back() -> None:
    def renormed(m: nn.Module, x: Tensor) -> Tensor:
        with torch.no_grad():
            m.inner[0].weight.mul_(1.01)
        return m.inner(x)

    model = Wrap(renormed, inner=mlp())
    with untouched(model):
        obc.trace(model, torch.ones(3, 4))


def test_an_example_that_a_forward_changes_is_put_back() -> None:
    example = torch.ones(3, 4)
    sites = obc.trace(Wrap(lambda m, x: m.inner(x.sub_(0.5)), inner=mlp()), example)
    assert sizes(sites) == {"inner.0": 8}
    assert torch.equal(example, torch.ones(3, 4))


def test_mixed_modes_hooks_gradients_and_ties_stay() -> None:
    net = case("tied_embedding")
    model, calls = net.model().train(), []
    model.norm.eval()
    model.up.requires_grad_(False)
    model(net.example()).sum().backward()
    model.up.register_forward_hook(lambda *_: calls.append(1))
    model.down.weight.register_hook(lambda grad: grad)
    with untouched(model):
        obc.trace(model, net.example())
    assert calls and model.head.weight is model.embedding.weight


def test_running_statistics_stay_in_training() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1)).train()
    with untouched(model):
        obc.trace(model, floats(4, 3, 5, 5).float())


# What is left out.


def test_ignored_layers_keep_what_they_put_out() -> None:
    model = resnet20(width=4)
    free = obc.trace(model, PIXELS)
    held = obc.trace(model, PIXELS, ignore=["layer2.0.conv1"])
    assert set(free.names) - set(held.names) == {"layer2.0.conv1"}
    assert [f.reason for f in held.frozen if f.layer == "layer2.0.conv1"] == [
        "ignored by 'layer2.0.conv1'"
    ]


def test_ignored_by_pattern() -> None:
    model = resnet20(width=4)
    held = obc.trace(model, PIXELS, ignore=["layer2.*", "*.1.conv1"])
    inner = [f"{stage}.{block}.conv1" for stage in ("layer1", "layer3") for block in (0, 2)]
    assert set(held.names) == {"conv1", "layer3.0.downsample.0", *inner}


def test_one_pattern_needs_no_list() -> None:
    model = resnet20(width=4)
    assert obc.trace(model, PIXELS, ignore="layer2.*").names == (
        obc.trace(model, PIXELS, ignore=["layer2.*"]).names
    )


def test_an_ignored_norm_or_parent_holds_its_channels_too() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1))
    assert not obc.trace(model, PIXELS, ignore=["1"])
    nested = nn.Sequential(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU()), nn.Conv2d(4, 2, 1))
    assert not obc.trace(nested, PIXELS, ignore=["0"])


def test_an_ignored_reader_reads_fewer() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 2, 1))
    assert sizes(obc.trace(model, PIXELS, ignore=["2"])) == {"0": 4}


def test_an_unknown_pattern_is_an_error() -> None:
    with pytest.raises(obc.ObcError, match=r"no layer named 'layer9.0'; did you mean 'layer\d.0'"):
        obc.trace(resnet20(width=4), PIXELS, ignore=["layer9.0"])


@pytest.mark.parametrize("name", ["qkv_unbind", "mha", "vit", "shared_keys"])
def test_heads_are_left_alone_if_asked(name: str) -> None:
    net = case(name)
    free = obc.trace(net.model(), net.example())
    held = obc.trace(net.model(), net.example(), heads=False)
    heads = {s.name for s in free if s.heads}
    assert heads and set(held.names) == set(free.names) - heads
    assert "heads=False" in {f.reason for f in held.frozen}


@pytest.mark.parametrize("options", [{"ignore": ["blocks.0.*"]}, {"heads": False}])
def test_a_plan_from_a_narrower_trace_is_applied(options: dict[str, Any]) -> None:
    """`apply` traces anew, without what was left out; the plan's sites must still be there."""
    net = case("qkv_chunk")
    model, example = net.model(), net.example()
    sites = obc.trace(model, example, **options)
    plan = obc.Plan.from_kept(sites, {s.name: range(s.size - 1) for s in sites})
    pruned = obc.apply(copy.deepcopy(model), plan, example=example)
    assert obc.verify(model, pruned, plan, example) < 1e-9


# What it refuses.


@pytest.mark.parametrize(
    ("example", "text"),
    [
        (torch.zeros(3, 5), "the model rejects the example: mat1 and mat2"),
        ((torch.zeros(3, 4), 1), "the model rejects the example: .*takes"),
        ({"y": torch.zeros(3, 4)}, "the model rejects the example: .*'y'"),
        (torch.zeros(3, 4, dtype=torch.long), "the model rejects the example: "),
    ],
    ids=["shape", "too many", "keyword", "dtype"],
)
def test_an_example_that_the_model_rejects(example: Any, text: str) -> None:
    model = mlp()
    with untouched(model), pytest.raises(obc.ObcError, match=text):
        obc.trace(model, example)


def test_a_model_that_changes_its_graph() -> None:
    model = Fickle()
    with untouched(model), pytest.raises(obc.ObcError, match="changes its graph from call to call"):
        obc.trace(model, torch.zeros(2, 6))


@pytest.mark.parametrize("model", [nn.ReLU(), nn.Sequential(), nn.Linear(4, 2)])
def test_nothing_to_prune_is_no_error(model: nn.Module) -> None:
    assert len(obc.trace(model, torch.zeros(3, 4))) == 0


def test_a_parameter_that_is_handed_to_a_module() -> None:
    """As DeBERTa hands its relative positions on: their ids are none of the model's operators."""
    inner = Wrap(lambda m, x, table: m.last((x + table[0]).view(-1, m.width)), width=8)
    inner.last = nn.Linear(8, 3)
    model = Wrap(lambda m, x: m.inner(m.stem(x), m.table.weight), stem=nn.Linear(4, 8))
    model.inner, model.table = inner, nn.Embedding(2, 8)
    assert [s.name for s in obc.trace(model, torch.rand(2, 4))] == ["stem"]
