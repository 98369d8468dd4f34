"""The small networks no library ships: CIFAR ResNets and VGG, and a plain ViT."""

from obc.models.resnet import ResNet, resnet20, resnet56
from obc.models.vgg import VGG, vgg19
from obc.models.vit import ViT, vit_small

__all__ = ["VGG", "ResNet", "ViT", "resnet20", "resnet56", "vgg19", "vit_small"]
