# SPDX-License-Identifier: MIT
"""ResNet-18 (arXiv 1512.03385) in its form for small images: a model with nothing sparse in it."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from .task import Task, generator_of

CLASSES = 10


class Block(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, incoming: int, outgoing: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(incoming, outgoing, 3, stride, padding=1, bias=False)
        self.second = nn.Conv2d(outgoing, outgoing, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(outgoing) for _ in range(2))
        self.around = nn.Sequential()
        if stride != 1 or incoming != outgoing:
            self.around = nn.Sequential(
                nn.Conv2d(incoming, outgoing, 1, stride, bias=False), nn.BatchNorm2d(outgoing)
            )

    def forward(self, x: Tensor) -> Tensor:
        inner = functional.relu(self.norms[0](self.first(x)))
        return functional.relu(self.norms[1](self.second(inner)) + self.around(x))


class ResNet18(nn.Module):
    """``forward`` takes images [n, 3, s, s] and classes [n]; 11.2 M parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()
        )
        channels = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
        self.blocks = nn.Sequential(
            *(
                block
                for incoming, outgoing, stride in channels
                for block in (Block(incoming, outgoing, stride), Block(outgoing, outgoing, 1))
            )
        )
        self.classes = nn.Linear(512, CLASSES)

    def forward(self, images: Tensor, classes: Tensor) -> Tensor:
        features = self.blocks(self.stem(images)).mean((2, 3))
        return functional.cross_entropy(self.classes(features), classes)


def resnet18(images: int = 8, size: int = 32) -> Task:
    """``images`` a rank, of size x size."""
    torch.manual_seed(0)

    def batch(rank: int, step: int) -> tuple[Tensor, Tensor]:
        generator = generator_of(rank, step)
        classes = torch.randint(CLASSES, (images,), generator=generator)
        return torch.randn(images, 3, size, size, generator=generator), classes

    return Task(ResNet18(), batch)
