# SPDX-License-Identifier: MIT
"""What several test modules share."""

import os
from collections.abc import Iterator

import machine
import pytest
import torch
from ranks import Ranks

MOST_RANKS = 8


def pytest_configure() -> None:
    missing = machine.missing() if os.environ.get("CI") else []
    if missing:
        raise pytest.UsageError(f"tests would be skipped on CI, which lacks {', '.join(missing)}")


def pytest_report_header() -> str:
    return machine.describe_kernels()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("cuda"):
                item.add_marker(pytest.mark.skip(reason="torch finds no CUDA device"))


@pytest.fixture
def on_one_thread() -> Iterator[None]:
    """Threads of a tiny model wait for each other longer than they work, if others work as well."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """Runs a function on up to ``MOST_RANKS`` ranks: ``ranks.run(2, function, argument)``."""
    pool = Ranks(MOST_RANKS)
    yield pool
    pool.close()
