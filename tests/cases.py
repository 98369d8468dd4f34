"""The one list of models that all tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from obc.models import resnet20, resnet20_padded, resnet56, vgg19, vit_small
from tests import hugging, vision
from tests.examples import Example, floats, image, memory, pixels, rows, text, tokens
from tests.nets import attention, blocks, channels, gates, wiring
from tests.sensitive import run, sensitive

__all__ = ["CASES", "Case", "Example", "case", "cases", "run", "sensitive"]

TAGS = {
    "hand": "written by hand: tests/nets and obc.models",
    "hf": "transformers, a small random configuration",
    "torchvision": "torchvision's zoo at its real width",
    "timm": "timm's zoo at its real width",
    "must": "on the list of what has to prune",
    "conv": "convolutions carry most of it",
    "attention": "has attention heads",
    "groups": "has convolution or norm groups that must stay equal",
    "glu": "has halves that go together",
    "tied": "one parameter serves in several places",
    "bare": "parameters or buffers used outside a layer",
    "literal": "the code names sizes that pruning would change: patched by a handler, or frozen",
    "frozen": "some channels cannot be removed, and the trace must say why",
    "unused": "has parameters that the example does not touch",
    "single": "rounds to float32 on the way, so comparisons in float64 need a wider tolerance",
    "slow": "takes more than a second and a half to prepare",
    "long": "takes seconds to cut and to compare, and a shorter case is like it",
}


@dataclass(frozen=True)
class Case:
    """A model to build, an example it takes, and the words that say what it is there for."""

    name: str
    build: Callable[[], nn.Module]
    example: Callable[[], Example]
    tags: frozenset[str]

    def __post_init__(self) -> None:
        unknown = self.tags - TAGS.keys()
        if unknown:
            raise ValueError(f"case {self.name!r} has unknown tags: {sorted(unknown)}")
        object.__setattr__(self, "build", partial(seeded, self.build))

    def model(self, seed: int = 0) -> nn.Module:
        """The model in float64 and eval mode, with every parameter drawn anew."""
        return sensitive(self.build(), seed, self.example())

    def __repr__(self) -> str:
        return f"Case({self.name!r})"


def seeded(build: Callable[[], nn.Module]) -> nn.Module:
    """Build a model the same way each time, and leave the global generator as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build()


def case(name: str) -> Case:
    """The case of this name."""
    return next(c for c in CASES if c.name == name)


def cases(*tags: str, without: Iterable[str] = ()) -> list[Case]:
    """The cases that have all the given tags, and none of those they should be without."""
    return [c for c in CASES if c.tags.issuperset(tags) and c.tags.isdisjoint(without)]


def hand(
    name: str, build: Callable[[], nn.Module], example: Callable[[], Example], tags: str
) -> Case:
    """A case written by hand; tags as words."""
    return Case(name, build, example, frozenset(["hand", *tags.split()]))


def fused(kind: str) -> nn.Module:
    """Two blocks of fused attention, of different head widths where the code allows it."""
    second = (4, 3) if kind.endswith("literal") else (2, 5)
    attend = attention.FusedAttention
    return attention.Transformer(12, attend(12, 3, 4, kind), attend(12, *second, kind))


def shared_keys() -> nn.Module:
    """Six query heads over two key heads, and three over three."""
    attend = attention.SeparateAttention
    return attention.Transformer(13, attend(13, 6, 2, 5), attend(13, 3, 3, 4))


def rotary() -> nn.Module:
    """Rotary embeddings by halves and by neighbours, on normed queries and keys."""
    attend = attention.RotaryAttention
    return attention.Transformer(14, attend(14, 3, 6, False), attend(14, 2, 4, True))


def einsums() -> nn.Module:
    """Softmax attention and linear attention, both written with einsum."""
    return attention.Transformer(
        11, attention.EinsumAttention(11, 3, 4), attention.LinearAttention(11, 2, 5)
    )


HAND = [
    # The published shapes.
    hand("vgg19", partial(vgg19, 10, width=6), image(32), "must conv"),
    hand("resnet20", resnet20, image(16), "must conv"),
    hand("resnet56", resnet56, image(16), "must conv long"),
    hand("resnet20_padded", partial(resnet20_padded, 6, width=4), image(12), "conv bare"),
    hand("resnet_preactivation", blocks.PreActivationResNet, image(12), "must conv"),
    hand(
        "resnet50", partial(blocks.BottleneckResNet, 6, (3, 4, 6, 3)), image(32), "must conv long"
    ),
    hand("mobilenet_v2", blocks.MobileNetV2, image(20), "must conv groups"),
    hand(
        "resnext",
        partial(blocks.BottleneckResNet, 24, (2, 1), 2, groups=8),
        image(20),
        "must conv groups",
    ),
    hand("groups_two", partial(channels.GroupedNet, 24, 16, 2), image(10), "must conv groups"),
    hand("groups_crossing", channels.GroupsOfTwoKinds, image(10), "conv groups"),
    hand("depthwise_multiplier", channels.DepthwiseMultiplier, image(10), "conv groups"),
    hand("transposed_groups", channels.GroupedTransposed, image(10), "conv groups"),
    hand("densenet", blocks.DenseNet, image(12), "must conv"),
    hand("squeeze_excite", blocks.SENet, image(10), "must conv"),
    hand("inception", blocks.Inception, image(10), "must conv"),
    hand("channel_shuffle", channels.ShuffleNet, image(10), "must conv groups"),
    hand("shuffled_groups", channels.ShuffledGroups, image(10), "conv groups"),
    hand("unet", partial(blocks.UNet, True), image(16), "must conv"),
    hand("unet_interpolated", partial(blocks.UNet, False), image(16), "conv"),
    hand("c2f", channels.Detector, image(24), "must conv"),
    hand("pixel_shuffle", channels.PixelShuffle, image(8), "must conv"),
    hand("space_to_depth", channels.SpaceToDepth, image(8), "conv"),
    hand("flatten_7x7", blocks.FlattenLinear, image(14), "must conv"),
    hand("flatten_channels_last", blocks.FlattenChannelsLast, image(10), "conv"),
    hand("view_classifier", partial(blocks.ViewClassifier, False), image(10), "conv"),
    hand("view_literal", partial(blocks.ViewClassifier, True), image(10), "conv literal"),
    hand("padding_shortcut", blocks.PaddingShortcut, image(12), "conv frozen"),
    hand("film", blocks.FiLM, lambda: (floats(2, 3, 10, 10), floats(2, 4)), "conv glu"),
    hand("highway", blocks.Highway, rows(2, 9), ""),
    hand("dilated_1d", channels.Dilated1d, rows(2, 3, 13), "conv"),
    hand("volume_3d", channels.Volume3d, rows(2, 2, 6, 6, 6), "conv"),
    # Channels that move.
    hand("split_literal", channels.SplitLiteral, image(10), "conv literal"),
    hand("index_literal", channels.IndexLiteral, image(10), "conv literal frozen"),
    hand("inplace_slice", channels.InPlaceSlice, image(10), "conv literal frozen"),
    hand("cat_twice", channels.CatTwice, image(10), "conv"),
    hand("flip_tie", channels.FlipTie, image(10), "conv"),
    hand("outer_product", channels.OuterProduct, rows(2, 6), ""),
    hand("softmax_channels", channels.SoftmaxOverChannels, image(10), "conv frozen"),
    hand("cbam", channels.CBAM, image(10), "conv frozen"),
    # Gated halves.
    hand("glu_chunk", partial(gates.GatedMLP, "chunk"), rows(2, 7, 6), "must glu"),
    hand("glu_slice", partial(gates.GatedMLP, "slice"), rows(2, 7, 6), "must glu"),
    hand("glu_functional", partial(gates.GatedMLP, "functional"), rows(2, 7, 6), "must glu"),
    hand("glu_split", partial(gates.GatedMLP, "split"), rows(2, 7, 6), "glu"),
    hand("glu_unflatten", partial(gates.GatedMLP, "unflatten"), rows(2, 7, 6), "glu"),
    hand("glu_interleaved", partial(gates.GatedMLP, "interleaved"), rows(2, 7, 6), "glu"),
    hand("glu_separate", partial(gates.GatedMLP, "separate"), rows(2, 7, 6), "glu"),
    hand("glu_conv", gates.ConvGLU, image(10), "conv glu"),
    hand("maxout", gates.MaxOut, rows(2, 6), "glu"),
    # Norms and per-channel parameters.
    hand("group_norm", partial(gates.GroupNormNet, 3), image(10), "conv groups"),
    hand("group_norm_each", partial(gates.GroupNormNet, 12), image(10), "conv groups"),
    hand("instance_norm", gates.InstanceNormNet, image(10), "conv"),
    hand("batch_norm_plain", gates.PlainBatchNorms, rows(2, 3, 9), "conv"),
    hand("layer_norm", partial(gates.NormedMLP, "layer"), rows(2, 7, 6), ""),
    hand("layer_norm_2d", gates.ConvNeXtLike, image(12), "conv bare"),
    hand("channel_norm_by_hand", gates.ChannelNormByHand, image(10), "conv bare"),
    hand("rms_norm", partial(gates.NormedMLP, "rms"), rows(2, 7, 6), ""),
    hand("rms_norm_by_hand", partial(gates.NormedMLP, "hand"), rows(2, 7, 6), ""),
    hand("prelu", gates.PReLUNet, image(10), "conv"),
    hand("bare_scale", gates.BareScale, image(10), "conv bare"),
    hand("bare_buffers", gates.BareBuffers, image(10), "conv bare"),
    # Attention.
    hand("qkv_unbind", partial(fused, "unbind"), rows(2, 7, 5), "must attention"),
    hand("qkv_chunk", partial(fused, "chunk"), rows(2, 7, 5), "must attention"),
    hand(
        "qkv_unbind_literal", partial(fused, "unbind literal"), rows(2, 7, 5), "attention literal"
    ),
    hand("qkv_chunk_literal", partial(fused, "chunk literal"), rows(2, 7, 5), "attention literal"),
    hand("shared_keys", shared_keys, rows(2, 7, 5), "attention"),
    hand("rotary", rotary, rows(2, 7, 5), "attention"),
    hand("einsum", einsums, rows(2, 7, 5), "attention bare"),
    hand("vit", partial(vit_small, 12, 4, 20, 2, 4, 6), image(12), "attention bare"),
    hand("mha", partial(attention.SelfAttention, True, False), rows(2, 7, 5), "must attention"),
    hand("mha_weights", partial(attention.SelfAttention, True, True), rows(2, 7, 5), "attention"),
    hand(
        "mha_tokens_first",
        partial(attention.SelfAttention, False, False),
        rows(2, 7, 5),
        "attention",
    ),
    hand("mha_cross", partial(attention.CrossAttention, True, True), memory, "must attention"),
    hand("mha_cross_widths", partial(attention.CrossAttention, False, False), memory, "attention"),
    hand(
        "encoder_layer", partial(attention.Encoder, False, False), rows(2, 7, 5), "must attention"
    ),
    hand(
        "encoder_layer_norm_first",
        partial(attention.Encoder, True, False),
        rows(2, 7, 5),
        "must attention",
    ),
    hand(
        "encoder_layer_tokens_first",
        partial(attention.Encoder, False, False, False),
        rows(7, 2, 5),
        "attention",
    ),
    hand("encoder", partial(attention.Encoder, False, True), rows(2, 7, 5), "must attention"),
    hand("encoder_norm_first", partial(attention.Encoder, True, True), rows(2, 7, 5), "attention"),
    hand(
        "encoder_decoder",
        attention.EncoderDecoder,
        lambda: (floats(2, 7, 5), tokens(11, 2, 6)),
        "attention long",
    ),
    hand("windows", attention.Windowed, image(16), "attention bare"),
    hand("non_local", attention.NonLocal, image(8), "conv"),
    hand("mixer", attention.Mixer, image(12), ""),
    # Wiring.
    hand("tied_embedding", wiring.TiedEmbedding, lambda: tokens(23, 2, 7), "must tied bare"),
    hand("tied_linears", wiring.TiedLinears, rows(2, 6), "must tied"),
    hand("called_twice", wiring.CalledTwice, image(10), "must conv tied"),
    hand(
        "siamese",
        wiring.Siamese,
        lambda: (floats(2, 3, 8, 8), floats(2, 3, 8, 8, seed=3)),
        "conv tied",
    ),
    hand("bare_weights", wiring.BareWeights, image(8), "must bare"),
    hand("batched_experts", wiring.BatchedExperts, rows(8, 6), "bare"),
    hand("experts", wiring.Experts, rows(8, 6), "unused frozen"),
    hand("unused_branch", wiring.UnusedBranch, image(10), "conv unused frozen"),
    hand("low_rank", wiring.LowRank, rows(2, 7), ""),
    hand("weight_norm", wiring.Parametrized, image(8), "conv frozen"),
    hand("weight_standardized", wiring.WeightStandardized, image(8), "conv frozen"),
    hand("lstm", partial(wiring.Recurrent, "lstm"), rows(2, 3, 9), "must conv frozen"),
    hand("gru", partial(wiring.Recurrent, "gru"), rows(2, 3, 9), "must conv frozen"),
    hand("gru_cell", wiring.RecurrentCell, rows(2, 6, 4), "frozen"),
    hand("dict_output", wiring.DictOutput, image(8), "conv"),
    hand("tuple_output", wiring.TupleOutput, image(8), "conv"),
    hand(
        "keyword_input",
        wiring.KeywordInput,
        lambda: {"pixels": floats(2, 3, 8, 8), "tokens": tokens(17, 2, 5)},
        "conv",
    ),
    hand("unknown_bilinear", partial(wiring.Unknown, "bilinear"), rows(2, 6), "frozen"),
    hand("unknown_fft", partial(wiring.Unknown, "fft"), rows(2, 6), "frozen"),
    hand("unknown_cdist", partial(wiring.Unknown, "cdist"), rows(2, 6), "frozen bare"),
    hand("custom_function", wiring.CustomFunction, image(8), "conv"),
]


def hf(
    name: str, build: Callable[[], nn.Module], example: Callable[[], Example], tags: str
) -> Case:
    """A Hugging Face case; all are on the list of what has to prune."""
    return Case(name, build, example, frozenset(["hf", "must", *tags.split()]))


language = partial(text, use_cache=False)
HUGGING = [
    hf("bert", partial(hugging.bert, "sdpa"), partial(text, padded=True), "attention"),
    hf("bert_eager", partial(hugging.bert, "eager"), partial(text, padded=True), "attention"),
    hf("distilbert", hugging.distilbert, text, "attention"),
    hf("gpt2", partial(hugging.gpt2, "sdpa"), language, "attention tied"),
    hf("gpt2_eager", partial(hugging.gpt2, "eager"), language, "attention tied"),
    hf("llama", partial(hugging.decoder, "Llama"), language, "attention glu single"),
    hf(
        "llama_gqa",
        partial(hugging.decoder, "Llama", num_attention_heads=6, num_key_value_heads=2),
        partial(language, padded=True),
        "attention glu single",
    ),
    hf(
        "llama_gqa_eager",
        partial(
            hugging.decoder,
            "Llama",
            num_attention_heads=6,
            num_key_value_heads=3,
            tie_word_embeddings=True,
            attn_implementation="eager",
        ),
        language,
        "attention glu tied single",
    ),
    hf(
        "qwen2",
        partial(hugging.decoder, "Qwen2", num_key_value_heads=2),
        language,
        "attention glu single",
    ),
    hf(
        "qwen3",
        partial(hugging.decoder, "Qwen3", num_key_value_heads=2, head_dim=10),
        language,
        "attention glu single",
    ),
    hf(
        "phi3",
        partial(hugging.decoder, "Phi3", num_key_value_heads=2),
        language,
        "attention glu single",
    ),
    hf(
        "mistral",
        partial(hugging.decoder, "Mistral", num_key_value_heads=2, head_dim=8, sliding_window=6),
        language,
        "attention glu single",
    ),
    hf("hf_vit", hugging.vit, pixels(24), "attention bare"),
    hf("hf_swin", hugging.swin, pixels(32), "attention bare long"),
    hf("hf_convnext", hugging.convnext, pixels(32), "conv bare"),
    hf("segformer", hugging.segformer, pixels(64), "conv attention long"),
    hf(
        "t5",
        partial(hugging.t5, False),
        lambda: {**text(padded=True, use_cache=False), "decoder_input_ids": tokens(53, 2, 7)},
        "attention tied single",
    ),
    hf(
        "t5_gated",
        partial(hugging.t5, True),
        lambda: {**text(use_cache=False), "decoder_input_ids": tokens(53, 2, 7)},
        "attention tied glu single long",
    ),
    hf(
        "whisper_encoder",
        partial(hugging.whisper, False),
        lambda: {"input_features": floats(2, 7, 26)},
        "conv attention",
    ),
    hf(
        "whisper_classifier",
        partial(hugging.whisper, True),
        lambda: {"input_features": floats(2, 7, 26)},
        "conv attention",
    ),
]


def zoo(family: str, name: str, size: int, tags: str = "", **changes: Any) -> Case:
    """A model from a zoo, at its real width, on images as small as it takes."""
    make = vision.torchvision_model if family == "torchvision" else vision.timm_model
    named = f"{family}_{name}"
    return Case(
        named, partial(make, name, **changes), image(size), frozenset([family, *tags.split()])
    )


def squeezenet() -> nn.Module:
    """SqueezeNet without the ReLU over its logits, which would hide half of them."""
    model = vision.torchvision_model("squeezenet1_1")
    model.classifier[2] = nn.Identity()
    return model


ZOO = [
    zoo("torchvision", "alexnet", 64, "conv slow"),
    zoo("torchvision", "vgg11_bn", 32, "conv slow"),
    zoo("torchvision", "resnet18", 32, "conv"),
    zoo("torchvision", "resnet50", 32, "conv"),
    zoo("torchvision", "resnext50_32x4d", 32, "conv groups"),
    zoo("torchvision", "densenet121", 32, "conv"),
    Case("torchvision_squeezenet1_1", squeezenet, image(64), frozenset(["torchvision", "conv"])),
    zoo("torchvision", "googlenet", 32, "conv", aux_logits=False, init_weights=False),
    zoo("torchvision", "inception_v3", 75, "conv", aux_logits=False, init_weights=False),
    zoo("torchvision", "mobilenet_v2", 32, "conv groups"),
    zoo("torchvision", "mobilenet_v3_small", 32, "conv groups"),
    zoo("torchvision", "shufflenet_v2_x1_0", 32, "conv groups"),
    zoo("torchvision", "efficientnet_b0", 32, "conv groups"),
    zoo("torchvision", "efficientnet_v2_s", 32, "conv groups"),
    zoo("torchvision", "regnet_y_400mf", 32, "conv groups"),
    zoo("torchvision", "mnasnet1_0", 32, "conv groups"),
    zoo("torchvision", "convnext_tiny", 32, "conv bare"),
    zoo("torchvision", "vit_b_16", 32, "attention bare slow", image_size=32),
    zoo("torchvision", "swin_t", 32, "attention bare"),
    zoo("torchvision", "swin_v2_t", 32, "attention bare"),
    zoo("torchvision", "maxvit_t", 224, "conv attention bare slow"),
    zoo("timm", "vit_tiny_patch16_224", 48, "attention bare", img_size=48),
    zoo("timm", "mixer_s32_224", 96, "", img_size=96),
    zoo("timm", "resnet26", 32, "conv"),
    zoo("timm", "res2net50_14w_8s", 32, "conv"),
    zoo("timm", "eca_resnext26ts", 32, "conv groups frozen"),
    zoo("timm", "nf_resnet26", 32, "conv bare frozen"),
    zoo("timm", "convnext_atto", 32, "conv bare"),
    zoo("timm", "xcit_nano_12_p16_224", 48, "attention bare", img_size=48),
    zoo("timm", "mobilevit_xxs", 64, "conv attention"),
]

CASES = HAND + HUGGING + ZOO
# A number in a reshape, an input for every pair of channels, every filter normed over its inputs.
NOTHING_TO_PRUNE = {"view_literal", "outer_product", "timm_nf_resnet26"}
