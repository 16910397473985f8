# SPDX-License-Identifier: MIT
"""A ResNet for small images, Fashion-MNIST or CIFAR-10; the metric is the test set's accuracy.

    torchrun --nproc_per_node 2 examples/resnet_fashion_mnist.py

The network is the one that He et al. made for CIFAR-10 (arXiv 1512.03385, section 4.2), of depth
6n + 2. The images come from Debian's package dataset-fashion-mnist. The default settings are a
little more than one epoch of the depth 8, and should end above 85 %. CIFAR-10 is read by
torchvision:

    torchrun --nproc_per_node 2 examples/resnet_fashion_mnist.py --dataset cifar10 \\
        --data DIRECTORY --depth 20 --augment --steps 64000

Nothing is sparse in its gradients: ``auto`` sends as many bytes as DDP does.
"""

import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import corpora
import harness
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import s2reducer

WIDTHS = (16, 32, 64)  # channels of the three stages
TEST_BATCH = 500


class Block(nn.Module):
    """Two convolutions, and what came in added to what they give."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.stride, self.more_channels = stride, outputs - inputs

    def forward(self, images: Tensor) -> Tensor:
        # He's option A, which has no parameters: every second pixel, zeros in the new channels.
        same = images[:, :, :: self.stride, :: self.stride]
        same = functional.pad(same, (0, 0, 0, 0, 0, self.more_channels))
        return functional.relu(self.convolutions(images) + same)


class ResNet(nn.Module):
    """Images, [n, channels, height, width], to the scores of the classes."""

    def __init__(self, depth: int, channels: int, classes: int = 10) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        inputs = WIDTHS[0]
        for width in WIDTHS:
            for number in range((depth - 2) // 6):
                first_of_stage = number == 0 and width != WIDTHS[0]
                blocks.append(Block(inputs, width, stride=2 if first_of_stage else 1))
                inputs = width
        self.layers = nn.Sequential(
            nn.Conv2d(channels, WIDTHS[0], 3, padding=1, bias=False),
            nn.BatchNorm2d(WIDTHS[0]),
            nn.ReLU(inplace=True),
            *blocks,
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(WIDTHS[-1], classes),
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.layers(images)
        return scores


class Images:
    """A set of images, scaled as the training set is: mean 0 and deviation 1 of each channel."""

    def __init__(self, images: Tensor, labels: Tensor, scale: tuple[Tensor, Tensor]) -> None:
        self.images, self.labels = images, labels
        self.mean, self.deviation = scale

    def __len__(self) -> int:
        return len(self.images)

    def take(self, numbers: Sequence[int] | Tensor) -> tuple[Tensor, Tensor]:
        numbers = torch.as_tensor(numbers)
        return (self.images[numbers].float() - self.mean) / self.deviation, self.labels[numbers]


def load(args: Namespace) -> tuple[Images, Images]:
    """(training set, test set)"""
    if args.dataset == "cifar10":
        parts = [corpora.read_cifar10(args.data, train) for train in (True, False)]
    else:
        parts = [corpora.read_fashion_mnist(args.data, part) for part in ("train", "t10k")]
    pixels = parts[0][0].transpose(0, 1).flatten(1).float()
    scale = pixels.mean(1).view(-1, 1, 1), pixels.std(1).view(-1, 1, 1)
    training, test = (Images(images, labels, scale) for images, labels in parts)
    return training, test


def augment(images: Tensor) -> Tensor:
    """Half of the images mirrored, and the batch moved by up to four pixels."""
    mirrored = torch.rand(len(images)) < 0.5
    images = torch.where(mirrored.view(-1, 1, 1, 1), images.flip(3), images)
    down, right = torch.randint(9, (2,)).tolist()
    height, width = images.shape[2:]
    padded = functional.pad(images, (4, 4, 4, 4))
    return padded[:, :, down : down + height, right : right + width]


@torch.no_grad()
def accuracy(model: nn.Module, test: Images, rank: int, ranks: int) -> float:
    for buffer in model.buffers():
        dist.broadcast(buffer, 0)  # each rank has met other images; rank 0's statistics count
    model.eval()
    right = 0
    for numbers in torch.arange(rank, len(test), ranks).split(TEST_BATCH):
        images, labels = test.take(numbers)
        right += int((model(images).argmax(1) == labels).sum())
    model.train()
    return harness.sum_over_ranks(right)[0] / len(test)


def parse(argv: Sequence[str] | None) -> Namespace:
    parser = harness.flags(__doc__, steps=600, batch=64)
    parser.add_argument("--dataset", choices=("fashion-mnist", "cifar10"), default="fashion-mnist")
    parser.add_argument("--data", type=Path, default=corpora.FASHION_MNIST, metavar="DIRECTORY")
    parser.add_argument("--depth", type=int, default=8, help="6n + 2: 8, 14, 20 ... (8)")
    parser.add_argument("--rate", type=float, default=0.1, help="of learning, the highest (0.1)")
    parser.add_argument("--augment", action="store_true", help="mirrors and moves images")
    args = parser.parse_args(argv)
    if args.depth < 8 or args.depth % 6 != 2:
        parser.error(f"argument --depth: {args.depth} is not 8, 14, 20 ...")
    return args


def main(
    argv: Sequence[str] | None = None,
    install: Callable[[DistributedDataParallel], Any] | None = None,
) -> dict[str, Any]:
    """Trains, and gives the losses and the metric; ``install`` registers another hook than ours."""
    args = parse(argv)
    with harness.ranks(args.seed) as (rank, ranks):
        training, test = load(args)
        model = ResNet(args.depth, channels=training.images.shape[1])
        ddp = DistributedDataParallel(model)

        state = None
        if install is not None:
            state = install(ddp)
        elif args.s2reducer:
            state = s2reducer.register(ddp, plan=args.plan)

        optimizer = torch.optim.SGD(ddp.parameters(), lr=args.rate, momentum=0.9, weight_decay=1e-4)
        schedule = harness.schedule(optimizer, args.steps)
        run = harness.Run(args, state, [model, optimizer, schedule])
        for step in run.steps():
            images, labels = training.take(
                corpora.shuffled_batch(
                    len(training),
                    step,
                    seed=args.seed,
                    batch=args.batch,
                    rank=rank,
                    ranks=ranks,
                )
            )
            if args.augment:
                images = augment(images)
            optimizer.zero_grad()
            loss = functional.cross_entropy(ddp(images), labels)
            loss.backward()
            optimizer.step()
            schedule.step()
            run.add_loss(loss)
        return run.result("test accuracy", accuracy(model, test, rank, ranks))


if __name__ == "__main__":
    try:
        main()
    except corpora.CorpusError as error:
        sys.exit(f"{error}")
