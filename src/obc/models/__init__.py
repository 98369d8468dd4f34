"""Networks no library ships: CIFAR ResNets and VGG, a plain ViT; all others by name."""

from obc.models.fitting import fitted
from obc.models.resnet import ResNet, resnet20, resnet56
from obc.models.resnet_padded import PaddedResNet, resnet20_padded, resnet56_padded
from obc.models.resolver import resolve
from obc.models.vgg import VGG, vgg16, vgg19
from obc.models.vit import ViT, vit_small

__all__ = [
    "VGG",
    "PaddedResNet",
    "ResNet",
    "ViT",
    "fitted",
    "resnet20",
    "resnet20_padded",
    "resnet56",
    "resnet56_padded",
    "resolve",
    "vgg16",
    "vgg19",
    "vit_small",
]
