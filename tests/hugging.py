"""Hugging Face models from small random configurations; transformers is imported on demand."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from torch import nn

from tests import vision

# All sizes differ, so that no dimension passes for another.
DECODER = {
    "hidden_size": 24,
    "intermediate_size": 37,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 53,
    "max_position_embeddings": 41,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def import_transformers() -> ModuleType:
    """Import transformers, whose models import torchvision if installed, working or not."""
    if vision.installed("torchvision"):
        vision.import_torchvision()
    import transformers

    return transformers


def tokenizer() -> Any:
    """A tokenizer that reads single letters; its 53 tokens are the vocabulary of the models."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    letters = "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQ.,\n012"
    names = ["<pad>", "<s>", "</s>", *letters]
    plain = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, "<pad>"))
    plain.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    transformers = import_transformers()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, unk_token="<pad>", bos_token="<s>", eos_token="</s>"
    )


def decoder(name: str, **changes: Any) -> nn.Module:
    """A causal language model of the named family, two layers deep."""
    transformers = import_transformers()
    config = getattr(transformers, f"{name}Config")(**{**DECODER, **changes})
    return getattr(transformers, f"{name}ForCausalLM")(config)


def bert(attention: str) -> nn.Module:
    """A BERT that classifies sentences."""
    hf = import_transformers()
    config = hf.BertConfig(
        vocab_size=53,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=37,
        max_position_embeddings=29,
        type_vocab_size=3,
        num_labels=5,
        attn_implementation=attention,
    )
    return hf.BertForSequenceClassification(config)


def distilbert() -> nn.Module:
    """A DistilBERT that classifies sentences."""
    hf = import_transformers()
    config = hf.DistilBertConfig(
        vocab_size=53,
        max_position_embeddings=29,
        n_layers=2,
        n_heads=3,
        dim=18,
        hidden_dim=31,
        num_labels=5,
    )
    return hf.DistilBertForSequenceClassification(config)


def gpt2(attention: str) -> nn.Module:
    """A GPT-2, whose linear layers are Conv1D and whose head is its embedding."""
    hf = import_transformers()
    config = hf.GPT2Config(
        vocab_size=53,
        n_positions=29,
        n_embd=24,
        n_layer=2,
        n_head=4,
        n_inner=43,
        bos_token_id=1,
        eos_token_id=2,
        attn_implementation=attention,
    )
    return hf.GPT2LMHeadModel(config)


def vit() -> nn.Module:
    """A ViT for images of 24 pixels."""
    hf = import_transformers()
    config = hf.ViTConfig(
        hidden_size=20,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=33,
        image_size=24,
        patch_size=8,
        num_labels=6,
    )
    return hf.ViTForImageClassification(config)


def swin() -> nn.Module:
    """A Swin with two stages and a shifted window in each."""
    hf = import_transformers()
    config = hf.SwinConfig(
        image_size=32,
        patch_size=2,
        embed_dim=12,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
        mlp_ratio=2.5,
        num_labels=5,
    )
    return hf.SwinForImageClassification(config)


def convnext() -> nn.Module:
    """A ConvNeXt with three stages."""
    hf = import_transformers()
    config = hf.ConvNextConfig(
        num_stages=3, patch_size=2, hidden_sizes=[10, 14, 18], depths=[1, 2, 1], num_labels=5
    )
    return hf.ConvNextForImageClassification(config)


def segformer() -> nn.Module:
    """A SegFormer whose decoder joins four scales."""
    hf = import_transformers()
    config = hf.SegformerConfig(
        depths=[1, 1, 1, 1],
        sr_ratios=[4, 2, 2, 1],
        hidden_sizes=[8, 12, 18, 20],
        num_attention_heads=[1, 2, 3, 5],
        mlp_ratios=[2, 3, 2, 3],
        decoder_hidden_size=14,
        num_labels=5,
    )
    return hf.SegformerForSemanticSegmentation(config)


def t5(gated: bool) -> nn.Module:
    """A T5 whose inner attention width differs from its model width, as it may."""
    hf = import_transformers()
    config = hf.T5Config(
        vocab_size=53,
        d_model=22,
        d_kv=6,
        d_ff=35,
        num_layers=2,
        num_decoder_layers=2,
        num_heads=3,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=15,
        feed_forward_proj="gated-gelu" if gated else "relu",
        decoder_start_token_id=0,
    )
    return hf.T5ForConditionalGeneration(config)


def whisper(classify: bool) -> nn.Module:
    """Whisper's encoder alone, or with the classification head it is given for audio."""
    hf = import_transformers()
    config = hf.WhisperConfig(
        vocab_size=53,
        num_mel_bins=7,
        encoder_layers=2,
        encoder_attention_heads=4,
        encoder_ffn_dim=37,
        decoder_layers=1,
        decoder_attention_heads=2,
        decoder_ffn_dim=31,
        d_model=20,
        max_source_positions=13,
        max_target_positions=11,
        classifier_proj_size=15,
        num_labels=5,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    return (
        hf.WhisperForAudioClassification(config)
        if classify
        else hf.models.whisper.modeling_whisper.WhisperEncoder(config)
    )
