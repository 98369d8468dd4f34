"""Networks of the paper and for small images, with public parameter names; all others by name."""

from obc.models.fitting import fitted
from obc.models.mobilenet import MobileNetV2, mobilenet_v2
from obc.models.resnet import ResNet, resnet20, resnet56
from obc.models.resnet50 import BottleneckResNet, resnet50
from obc.models.resnet_padded import PaddedResNet, resnet20_padded, resnet56_padded
from obc.models.resolver import resolve
from obc.models.vgg import VGG, vgg16, vgg19
from obc.models.vit import ViT, vit_small
from obc.models.vit_b_16 import VisionTransformer, vit_b_16
from obc.models.yolov7 import YOLOv7, yolov7, yolov7_tiny

__all__ = [
    "VGG",
    "BottleneckResNet",
    "MobileNetV2",
    "PaddedResNet",
    "ResNet",
    "ViT",
    "VisionTransformer",
    "YOLOv7",
    "fitted",
    "mobilenet_v2",
    "resnet20",
    "resnet20_padded",
    "resnet50",
    "resnet56",
    "resnet56_padded",
    "resolve",
    "vgg16",
    "vgg19",
    "vit_b_16",
    "vit_small",
    "yolov7",
    "yolov7_tiny",
]
