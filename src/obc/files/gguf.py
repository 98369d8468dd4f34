"""GGUF, the format of llama.cpp: written with widths layer by layer, read back and compared.

Most architectures of llama.cpp have one `feed_forward_length`, one `attention.head_count` and one
`attention.head_count_kv`, and refuse a file in which a layer is narrower than the first. The one
that it calls "deci" computes what its "llama" does, and takes arrays of these, with a number for
each layer: so a Llama or Mistral whose widths differ over layers is written as that. Rows of Q and
K stand in another order in both: their rotary embedding turns neighbours, that of transformers
halves.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from obc.errors import ObcError
from obc.files.hugging import is_hugging
from obc.models.resolver import library

# By the model type of transformers: what llama.cpp calls it, what it calls the same with widths
# layer by layer, if it has that, and whether Q and K are turned.
_FAMILIES: dict[str, tuple[str, str | None, bool]] = {
    "llama": ("llama", "deci", True),
    "mistral": ("llama", "deci", True),
    "qwen2": ("qwen2", None, False),
    "qwen3": ("qwen3", None, False),
}
_SPLITS = {  # how a byte-level tokenizer splits words, by what its description holds
    r"\\p{L}\\p{M}": "qwen2",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)": "llama-bpe",
    "Digits": "smollm",
}
_PLAIN_SPLIT = "gpt-2"


def write_gguf(model: Any, path: Path) -> None:
    """Write a decoder as it is, in float32 or the half precision that it has, and check the file.

    The tokenizer goes in, too, where it lies beside the model's configuration.
    """
    gguf = library("gguf", "hf")
    kind = getattr(getattr(model, "config", None), "model_type", None)
    if not is_hugging(model) or kind not in _FAMILIES:
        raise ObcError(
            f"no GGUF of {type(model).__name__}; there is one of the families "
            f"{', '.join(_FAMILIES)} of transformers"
        )
    name, uneven, turned = _FAMILIES[kind]
    if any(isinstance(count, list) for count in _widths(model)):
        if uneven is None:
            raise ObcError(
                f"llama.cpp takes one width for all layers of a {kind}, and those of this model "
                "differ; plan it with --uniform (uniform=True)"
            )
        name = uneven
    tensors = _tensors(gguf, model, name, turned)
    writer = gguf.GGUFWriter(path, name)
    _describe(gguf, writer, model)
    _describe_tokenizer(gguf, writer, model)
    for key, tensor in tensors.items():
        # bfloat16 is no type of numpy; its bytes go in as they are.
        half = tensor.dtype == torch.bfloat16
        kinds = {"raw_dtype": gguf.GGMLQuantizationType.BF16} if half else {}
        plain = tensor.view(torch.uint8) if half else tensor
        writer.add_tensor(key, plain.numpy(), **kinds)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    _compare(gguf, path, tensors)


def _layers(model: Any) -> list[Any]:
    return list(model.model.layers)


def heads_of(layer: Any) -> tuple[int, int]:
    """How many query and key heads an attention layer has."""
    attention = layer.self_attn
    width = attention.head_dim
    return attention.q_proj.out_features // width, attention.k_proj.out_features // width


def _describe(gguf: Any, writer: Any, model: Any) -> None:
    """The numbers that llama.cpp builds the model by."""
    config, layers = model.config, _layers(model)
    width = layers[0].self_attn.head_dim
    writer.add_block_count(len(layers))
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(model.model.embed_tokens.embedding_dim)
    writer.add_vocab_size(model.model.embed_tokens.num_embeddings)
    inner, queries, keys = _widths(model)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(queries)
    writer.add_head_count_kv(keys)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(float(config.rope_parameters["rope_theta"]))
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    first = next(model.parameters()).dtype
    kinds = {
        torch.float16: gguf.LlamaFileType.MOSTLY_F16,
        torch.bfloat16: gguf.LlamaFileType.MOSTLY_BF16,
    }
    writer.add_file_type(kinds.get(first, gguf.LlamaFileType.ALL_F32))


def _widths(model: Any) -> list[int | list[int]]:
    """Inner channels, query heads and key heads: numbers, or lists of one for each layer."""
    inner = [layer.mlp.gate_proj.out_features for layer in _layers(model)]
    queries, keys = zip(*(heads_of(layer) for layer in _layers(model)), strict=True)
    return [_one_or_all(counts) for counts in (inner, queries, keys)]


def _one_or_all(counts: Sequence[int]) -> int | list[int]:
    """One number where all layers have the same.

    >>> _one_or_all([3, 3]), _one_or_all([3, 2])
    (3, [3, 2])
    """
    return counts[0] if len(set(counts)) == 1 else list(counts)


def _tensors(gguf: Any, model: Any, name: str, turned: bool) -> dict[str, Tensor]:
    """The parameters under the names of llama.cpp, in its order of rows."""
    architecture = next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == name)
    layers = _layers(model)
    names = gguf.get_tensor_name_map(architecture, len(layers))
    tied = model.lm_head.weight is model.model.embed_tokens.weight
    tensors = {}
    for key, parameter in model.named_parameters():
        if tied and key == "lm_head.weight":
            continue
        place = names.get_name(key, try_suffixes=(".weight", ".bias"))
        if place is None:
            raise ObcError(f"GGUF has no place for '{key}'")
        tensor = parameter.detach().cpu().contiguous()
        if turned and ("q_proj" in key or "k_proj" in key):
            queries, keys = heads_of(layers[int(key.split(".")[2])])
            tensor = _neighbours(tensor, queries if "q_proj" in key else keys)
        # Norms and biases are float32 in every file of llama.cpp.
        tensors[place] = tensor.float() if tensor.ndim == 1 else tensor
    return tensors


def _neighbours(weight: Tensor, heads: int) -> Tensor:
    """Rows of each head in pairs (i, i + half), as llama.cpp turns them.

    >>> _neighbours(torch.arange(4), 1)
    tensor([0, 2, 1, 3])
    """
    halves = weight.reshape(heads, 2, -1, *weight.shape[1:])
    return halves.transpose(1, 2).reshape(weight.shape).contiguous()


def _describe_tokenizer(gguf: Any, writer: Any, model: Any) -> None:
    """A byte-level tokenizer from its `tokenizer.json`; others are left to the user."""
    folder = Path(model.name_or_path) if model.name_or_path else None
    if folder is None or not (folder / "tokenizer.json").is_file():
        return
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    split = json.dumps(content.get("pre_tokenizer"))
    if content["model"].get("type") != "BPE" or "ByteLevel" not in split:
        return
    tokens: dict[int, str] = {i: token for token, i in content["model"]["vocab"].items()}
    types = dict.fromkeys(tokens, gguf.TokenType.NORMAL)
    for extra in content.get("added_tokens", ()):
        tokens[extra["id"]] = extra["content"]
        special = gguf.TokenType.CONTROL if extra["special"] else gguf.TokenType.USER_DEFINED
        types[extra["id"]] = special
    count = model.model.embed_tokens.num_embeddings
    for number in range(count):
        if number not in tokens:
            tokens[number], types[number] = f"[PAD{number}]", gguf.TokenType.UNUSED
    merges = [m if isinstance(m, str) else " ".join(m) for m in content["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(next((n for p, n in _SPLITS.items() if p in split), _PLAIN_SPLIT))
    writer.add_token_list([tokens[i] for i in range(count)])
    writer.add_token_types([types[i] for i in range(count)])
    writer.add_token_merges(merges)
    config = model.config
    for add, number in (
        (writer.add_bos_token_id, config.bos_token_id),
        (writer.add_eos_token_id, config.eos_token_id),
        (writer.add_pad_token_id, config.pad_token_id),
    ):
        if isinstance(number, int):
            add(number)


def _compare(gguf: Any, path: Path, tensors: dict[str, Tensor]) -> None:
    """Read the file, and hold every tensor against what was to be written."""
    read = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    if read.keys() != tensors.keys():
        raise ObcError(f"the GGUF holds other tensors: {min(read.keys() ^ tensors.keys())}")
    for name, tensor in tensors.items():
        data = torch.from_numpy(read[name].data.copy()).flatten().view(torch.uint8)
        same = torch.equal(data, tensor.flatten().view(torch.uint8))
        if not same or tuple(read[name].shape.tolist()[::-1]) != tuple(tensor.shape):
            raise ObcError(f"'{name}' is not in the GGUF what it is in the model")
