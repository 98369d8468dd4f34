"""Models of images and sounds for the sweep: transformers, timm, torchvision, ultralytics."""

from __future__ import annotations

import importlib.util
from functools import partial
from typing import Any

from torch import Tensor, nn

from tests.examples import floats, image, tokens
from tests.sweep.families import Family, hugging, timm, torchvision

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
VIT = {**SIZES, "intermediate_size": 48}
STAGES = {"hidden_sizes": [16, 24, 32, 40], "depths": [1, 1, 1, 1]}
SOUND = {**VIT, "conv_dim": [16, 24], "conv_kernel": [10, 3], "conv_stride": [5, 2]}
SOUND_POSITIONS = {"num_conv_pos_embedding_groups": 4, "num_conv_pos_embeddings": 16}


def pixels(kind: str, size: int, **settings: Any) -> Family:
    """A model of transformers that looks at an image."""
    build = partial(hugging, kind, {"image_size": size, **settings})
    return Family("transformers", kind, build, lambda: {"pixel_values": floats(1, 3, size, size)})


def sound(kind: str, samples: int = 400, **settings: Any) -> Family:
    """A model of transformers that listens to a wave."""
    build = partial(hugging, kind, {**SOUND, **SOUND_POSITIONS, **settings})
    return Family("transformers", kind, build, lambda: {"input_values": floats(1, samples)})


def groupvit() -> Family:
    """A model that compares images with texts."""
    settings = {
        "text_config": {**VIT, "vocab_size": 99, "eos_token_id": 98},
        "vision_config": {
            **{**VIT, "image_size": 32, "patch_size": 8, "depths": [2, 2, 2]},
            **{"num_group_tokens": [8, 4, 0], "num_output_groups": [8, 4, 0]},
        },
        "projection_dim": 24,
        "projection_intermediate_dim": 40,
    }
    return Family(
        "transformers",
        "GroupViTModel",
        partial(hugging, "GroupViTModel", settings),
        lambda: {"input_ids": tokens(99, 2, 8), "pixel_values": floats(2, 3, 32, 32)},
        # Groups of tokens, which a softmax runs over after a norm: zeros do not show them there.
        spared="group_projector.1.fc2",
    )


def clip() -> Family:
    """Another."""
    settings = {
        "text_config": {**VIT, "vocab_size": 99, "eos_token_id": 98},
        "vision_config": {**VIT, "image_size": 32, "patch_size": 8},
        "projection_dim": 24,
    }
    return Family(
        "transformers",
        "CLIPModel",
        partial(hugging, "CLIPModel", settings),
        lambda: {"input_ids": tokens(99, 2, 8), "pixel_values": floats(2, 3, 32, 32)},
    )


def of_timm(name: str, size: int = 64, **settings: Any) -> Family:
    return Family("timm", name, partial(timm, name, **settings), image(size, batch=1))


def of_torchvision(name: str, size: int = 64, **settings: Any) -> Family:
    return Family("torchvision", name, partial(torchvision, name, **settings), image(size))


def detector(name: str, **settings: Any) -> Family:
    """A detector of torchvision; its example is a list of images."""

    def example() -> tuple[list[Tensor]]:
        return ([floats(3, 64, 64)],)

    return Family("torchvision", name, partial(_detector, name, **settings), example)


def _detector(name: str, **settings: Any) -> nn.Module:
    model = torchvision(name, num_classes=4, weights_backbone=None, **settings)
    # Its post-processing needs torchvision's compiled operators, which not every machine loads.
    model.postprocess_detections = lambda heads, *_: [heads]
    model.transform.postprocess = lambda heads, *_: heads
    return model


def yolo(name: str) -> Family:
    """A definition of ultralytics, without weights."""
    return Family("ultralytics", name, partial(_yolo, name), image(64, batch=1))


def _yolo(name: str) -> nn.Module:
    from ultralytics import RTDETR, YOLO  # AGPL: only where it is installed

    kind = RTDETR if name.startswith("rtdetr") else YOLO
    model: nn.Module = kind(f"{name}.yaml").model.float()
    return model


PICTURES = [
    pixels("Dinov2ForImageClassification", 28, **SIZES, patch_size=14),
    pixels("DeiTForImageClassification", 32, **VIT, patch_size=8),
    pixels("BeitForImageClassification", 32, **VIT, patch_size=8),
    pixels("Data2VecVisionForImageClassification", 32, **VIT, patch_size=8),
    pixels(
        "ViTMAEForPreTraining",
        32,
        **VIT,
        patch_size=8,
        **{
            "decoder_hidden_size": 24,
            "decoder_num_hidden_layers": 1,
            "decoder_num_attention_heads": 4,
            "decoder_intermediate_size": 40,
        },
    ),
    pixels(
        "YolosForObjectDetection",
        32,
        **{**VIT, "image_size": [32, 32]},
        patch_size=8,
        num_detection_tokens=5,
    ),
    pixels("ConvNextV2ForImageClassification", 64, **STAGES),
    pixels("ResNetForImageClassification", 64, **STAGES, embedding_size=16),
    pixels("RegNetForImageClassification", 64, **STAGES, embedding_size=16, groups_width=8),
    pixels(
        "MobileViTForImageClassification",
        64,
        hidden_sizes=[24, 32, 40],
        neck_hidden_sizes=[8, 12, 16, 24, 32, 40, 48],
    ),
    pixels("PoolFormerForImageClassification", 64, **STAGES),
    pixels("PvtForImageClassification", 64, **STAGES, num_attention_heads=[1, 2, 4, 4]),
    pixels("PvtV2ForImageClassification", 64, **STAGES, num_attention_heads=[1, 2, 4, 4]),
    pixels(
        "SegformerForSemanticSegmentation",
        64,
        **STAGES,
        num_attention_heads=[1, 2, 4, 4],
        decoder_hidden_size=32,
    ),
    pixels(
        "DPTForDepthEstimation",
        32,
        **{**VIT, "num_hidden_layers": 4},
        patch_size=8,
        backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[16, 16, 24, 32],
        fusion_hidden_size=16,
    ),
    pixels(
        "LevitForImageClassification",
        64,
        hidden_sizes=[32, 48, 64],
        num_attention_heads=[2, 3, 4],
        depths=[1, 1, 1],
        key_dim=[8, 8, 8],
    ),
    pixels(
        "Swinv2ForImageClassification",
        32,
        embed_dim=16,
        depths=[1, 1],
        num_heads=[2, 4],
        window_size=4,
        patch_size=2,
    ),
    pixels(
        "FocalNetForImageClassification",
        32,
        embed_dim=16,
        depths=[1, 1],
        hidden_sizes=[16, 32],
        focal_levels=[2, 2],
        focal_windows=[3, 3],
        patch_size=4,
    ),
    pixels("MobileNetV1ForImageClassification", 64, depth_multiplier=0.25),
    pixels("BitForImageClassification", 64, **STAGES, embedding_size=16, num_groups=8),
    pixels("ViTMSNForImageClassification", 32, **VIT, patch_size=8),
    pixels(
        "GLPNForDepthEstimation",
        64,
        **STAGES,
        num_attention_heads=[1, 2, 4, 4],
        decoder_hidden_size=16,
    ),
    groupvit(),
    clip(),
    sound("Wav2Vec2ForCTC", vocab_size=20),
    sound("HubertForCTC", vocab_size=20),
    sound("WavLMForSequenceClassification", vocab_size=20),
    *(
        of_timm(name)
        for name in (
            "test_byobnet",
            "test_convnext2",
            "test_efficientnet",
            "test_efficientnet_ln",
            "test_mambaout",
            "test_nfnet",
            "cs3darknet_s",
            "cspdarknet53",
            "dla34",
            "dpn48b",
            "edgenext_xx_small",
            "fasternet_t0",
            "fastvit_t8",
            "ghostnet_100",
            "ghostnetv2_100",
            "hardcorenas_a",
            "hgnet_tiny",
            "hrnet_w18_small",
            "lcnet_050",
            "mixnet_s",
            "mobilenetv3_small_050",
            "mobilenetv4_conv_small",
            "mobileone_s0",
            "mobilevit_xxs",
            "mobilevitv2_050",
            "nextvit_small",
            "poolformerv2_s12",
            "repvgg_a0",
            "repvit_m0_9",
            "resnest14d",
            "rexnet_100",
            "selecsls42",
            "shvit_s1",
            "skresnet18",
            "starnet_s1",
            "swiftformer_xs",
            "tinynet_e",
            "vovnet39a",
            "xception41",
            "efficientvit_b0",
            "cpubone_nano",
        )
    ),
    *(
        of_timm(name, 64, img_size=64)
        for name in (
            "test_vit",
            "test_vit3",
            "cait_xxs24_224",
            "coat_tiny",
            "convit_tiny",
            "deit3_small_patch16_224",
            "eva02_tiny_patch14_224",
            "gmlp_s16_224",
            "pit_ti_224",
            "resmlp_12_224",
            "tnt_s_legacy_patch16_224",
            "visformer_tiny",
            "volo_d1_224",
        )
    ),
    of_timm("sam2_hiera_tiny", 64),
    of_timm("crossvit_tiny_240", 240),
    of_timm("inception_v4", 96),
    of_timm("efficientformerv2_s0", 224),
    of_timm("twins_svt_small", 224),
    of_timm("nasnetalarge", 96),
    of_timm("davit_tiny", 64),
    of_timm("pvt_v2_b0", 64),
    of_torchvision("googlenet", num_classes=6, aux_logits=True, init_weights=False),
    of_torchvision("mobilenet_v3_large", num_classes=6),
    of_torchvision("shufflenet_v2_x0_5", num_classes=6),
    of_torchvision("mnasnet0_5", num_classes=6),
    of_torchvision("regnet_x_400mf", num_classes=6),
    of_torchvision("fcn_resnet50", num_classes=4, weights_backbone=None, aux_loss=True),
    of_torchvision(
        "deeplabv3_mobilenet_v3_large", num_classes=4, weights_backbone=None, aux_loss=True
    ),
    of_torchvision("lraspp_mobilenet_v3_large", num_classes=4, weights_backbone=None),
    Family(
        "torchvision",
        "r3d_18",
        partial(torchvision, "r3d_18", num_classes=6),
        lambda: floats(1, 3, 4, 32, 32),
    ),
    detector("retinanet_resnet50_fpn", min_size=64, max_size=64),
    detector("fcos_resnet50_fpn", min_size=64, max_size=64),
    detector("ssdlite320_mobilenet_v3_large"),
    *(
        yolo(name)
        for name in (
            *("yolov3-tiny", "yolov5n", "yolov6n", "yolov8n", "yolov8n-seg", "yolov8n-pose"),
            *("yolov8n-ghost", "yolov9t", "yolov10n", "yolo11n", "yolo11n-cls", "yolo12n"),
            *("yolo26n", "rtdetr-l"),
        )
        if importlib.util.find_spec("ultralytics")
    ),
]
