"""Networks no library ships: CIFAR ResNets and VGG, a plain ViT; all others by name."""

from obc.models.fitting import fitted
from obc.models.resnet import ResNet, resnet20, resnet56
from obc.models.resolver import resolve
from obc.models.vgg import VGG, vgg19
from obc.models.vit import ViT, vit_small

__all__ = [
    "VGG",
    "ResNet",
    "ViT",
    "fitted",
    "resnet20",
    "resnet56",
    "resolve",
    "vgg19",
    "vit_small",
]
