# SPDX-License-Identifier: MIT
"""An ordinary DDP training script, and the two lines that make it send sparse gradients.

    torchrun --nproc_per_node 2 examples/01_two_lines.py

A small recommender: a table of users, a table of items, and the rating of a pair is the product of
their rows. A batch touches few rows of either table, yet DDP alone sends both tables at every step.
The ratings are made up here: hidden tables give them, so there is something to learn.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import s2reducer  # the first line

USERS, ITEMS, WIDTH = 20_000, 5_000, 32
BATCH, STEPS = 256, 200


class Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(USERS, WIDTH)
        self.items = nn.Embedding(ITEMS, WIDTH)
        self.average = nn.Parameter(torch.zeros(1))

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        return (self.users(users) * self.items(items)).sum(1) / WIDTH + self.average


def popular(count: int, generator: torch.Generator) -> Tensor:
    """``BATCH`` numbers below ``count``, low ones more often, as in real data."""
    return (torch.rand(BATCH, generator=generator) ** 3 * count).long()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    taste, quality = torch.randn(USERS), torch.randn(ITEMS)

    ddp = DistributedDataParallel(Recommender())
    state = s2reducer.register(ddp)  # the second line

    optimizer = torch.optim.Adagrad(ddp.parameters(), lr=0.3)
    draws = torch.Generator().manual_seed(1 + rank)
    for step in range(STEPS):
        users, items = popular(USERS, draws), popular(ITEMS, draws)
        ratings = 3 + taste[users] * quality[items]
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(ddp(users, items), ratings)
        loss.backward()
        optimizer.step()
        if rank == 0 and (step + 1) % 50 == 0:
            print(f"step {step + 1}: loss {loss.item():.3f}")

    if rank == 0:
        print(state.report())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
