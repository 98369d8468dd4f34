"""GGUF with widths layer by layer: read back by gguf, and by transformers' own reader of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import obc
from obc.errors import ObcError
from tests import vision
from tests.hugging import decoder, import_transformers

pytestmark = pytest.mark.skipif(
    not (vision.installed("transformers") and vision.installed("gguf")),
    reason="transformers or gguf is not installed",
)
IDS = torch.arange(2, 18)[None]


def pruned(kept: dict[int, list[int]], **changes: Any) -> Any:
    """A Llama whose sites of these sizes keep so many of their channels, layer after layer."""
    torch.manual_seed(0)
    model = decoder("Llama", **changes).eval()
    sites = obc.trace(model, IDS)
    plan = {}
    for size, counts in kept.items():
        names = [s.name for s in sites if s.size == size]
        plan |= {name: range(n) for name, n in zip(names, counts, strict=True)}
    return obc.apply(model, obc.Plan.from_kept(sites, plan))


def fields(path: Path) -> dict[str, Any]:
    import gguf

    return {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items()}


def test_widths_layer_by_layer(tmp_path: Path) -> None:
    import gguf

    model = pruned({37: [20, 30], 2: [2, 1]}, num_key_value_heads=2)
    exported = obc.export(model, IDS, tmp_path / "model.gguf")
    assert exported.error == 0.0 and exported.pruned.bytes == exported.path.stat().st_size
    told = fields(exported.path)
    assert told["deci.feed_forward_length"] == [20, 30]
    assert told["deci.attention.head_count"] == [4, 2]
    assert told["deci.attention.head_count_kv"] == [2, 1]
    assert told["deci.attention.key_length"] == 6
    read = {t.name: t.data for t in gguf.GGUFReader(exported.path).tensors}
    layer = model.model.layers[1]
    up = layer.mlp.up_proj.weight.detach().numpy()
    assert np.array_equal(read["blk.1.ffn_up.weight"], up)
    for head in range(2):  # rows i and i + 3 of a head are neighbours there
        rows = layer.self_attn.q_proj.weight.detach()[6 * head : 6 * head + 6]
        order = rows[[0, 3, 1, 4, 2, 5]].numpy()
        assert np.array_equal(read["blk.1.attn_q.weight"][6 * head : 6 * head + 6], order)
        assert not np.array_equal(rows.numpy(), order)  # a control


def test_transformers_reads_what_was_written(tmp_path: Path) -> None:
    model = pruned({37: [20, 20]})
    obc.export(model, IDS, tmp_path / "model.gguf")
    hf = import_transformers()
    twin = hf.LlamaForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf").eval()
    with torch.no_grad():
        assert torch.allclose(model(IDS).logits, twin(IDS).logits, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype, tmp_path: Path) -> None:
    import gguf

    model = pruned({37: [20, 20]}).to(dtype)
    obc.export(model, IDS, tmp_path / "model.gguf")
    kinds = {t.tensor_type.name for t in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    assert kinds == {"F32", {torch.bfloat16: "BF16", torch.float16: "F16"}[dtype]}


def test_a_file_that_differs_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: what is written is read."""
    from obc.files import gguf as ours

    right = ours._tensors

    def wrong(*args: Any) -> dict[str, torch.Tensor]:
        tensors = right(*args)
        tensors["output_norm.weight"] = _Turned(tensors["output_norm.weight"])
        return tensors

    class _Turned(torch.Tensor):
        def numpy(self, **options: Any) -> Any:
            return -self.as_subclass(torch.Tensor).numpy()

    monkeypatch.setattr(ours, "_tensors", wrong)
    with pytest.raises(ObcError, match=r"'output_norm\.weight' is not in the GGUF what it is"):
        obc.export(pruned({37: [20, 20]}), IDS, tmp_path / "model.gguf")
    assert not list(tmp_path.iterdir())


def test_models_without_a_gguf(tmp_path: Path) -> None:
    net = torch.nn.Linear(2, 2)
    with pytest.raises(ObcError, match="no GGUF of Linear; there is one of the families llama"):
        obc.export(net, torch.zeros(1, 2), tmp_path / "model.gguf")
    assert not list(tmp_path.iterdir())


def test_one_width_where_llama_cpp_takes_no_other(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = decoder("Qwen2").eval()
    sites = obc.trace(model, IDS)
    name = next(s.name for s in sites if s.size == 37)
    small = obc.apply(model, obc.Plan.from_kept(sites, {name: range(20)}))
    with pytest.raises(ObcError, match=r"one width for all layers of a qwen2.*--uniform"):
        obc.export(small, IDS, tmp_path / "model.gguf")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not vision.installed("xllamacpp"), reason="xllamacpp is not installed")
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    "kept", [{37: [20, 20]}, {37: [20, 30]}, {37: [20, 30], 2: [2, 1]}], ids=str
)
def test_llama_cpp_computes_the_same(
    kept: dict[int, list[int]], bias: bool, tmp_path: Path
) -> None:
    model = pruned(kept, num_key_value_heads=2, attention_bias=bias)
    _with_tokenizer(model, tmp_path / "whole")
    obc.export(model, IDS, tmp_path / "model.gguf")
    with torch.no_grad():
        after = model(IDS).logits[0, -1].log_softmax(-1)
        new = model.generate(IDS, max_new_tokens=4, do_sample=False, pad_token_id=0)[0, 16:]
    told = llama_cpp(tmp_path / "model.gguf", IDS[0].tolist(), new=4)
    assert [step["id"] for step in told] == new.tolist()[: len(told)]  # it stops at "</s>"
    for other in told[0]["top_logprobs"]:
        assert other["logprob"] == pytest.approx(float(after[other["id"]]), abs=1e-4)
    assert float(after.max() - after.min()) > 0.1, "all tokens are alike"


def llama_cpp(path: Path, prompt: list[int], new: int) -> list[dict[str, Any]]:
    """What llama.cpp says of each new token, greedily: its id, log-probabilities of the best."""
    import xllamacpp

    settings = xllamacpp.CommonParams()
    settings.model.path, settings.n_ctx, settings.n_parallel = str(path), 64, 1
    settings.cpuparams.n_threads, settings.warmup = 1, False
    request = {"prompt": prompt, "n_predict": new, "temperature": 0, "n_probs": 5}
    answer = xllamacpp.Server(settings).handle_completions(request)
    steps: list[dict[str, Any]] = answer["choices"][0]["logprobs"]["content"]
    return steps


def _with_tokenizer(model: Any, folder: Path) -> None:
    """A byte-level tokenizer of five tokens beside the model's configuration."""
    import tokenizers

    plain = tokenizers.Tokenizer(
        tokenizers.models.BPE({"a": 0, "b": 1, "ab": 2, "c": 3}, [("a", "b")])
    )
    plain.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.add_special_tokens(["</s>"])
    folder.mkdir()
    plain.save(str(folder / "tokenizer.json"))
    model.name_or_path = str(folder)


def test_a_byte_level_tokenizer_goes_in(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    model = pruned({37: [20, 20]})
    _with_tokenizer(model, tmp_path / "whole")
    obc.export(model, IDS, tmp_path / "model.gguf")
    told = fields(tmp_path / "model.gguf")
    assert told["tokenizer.ggml.tokens"][:6] == ["a", "b", "ab", "c", "</s>", "[PAD5]"]
    assert told["tokenizer.ggml.merges"] == ["a b"]
    assert told["tokenizer.ggml.pre"] == "gpt-2"
