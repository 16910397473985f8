# SPDX-License-Identifier: MIT
"""What several test modules share."""

import os
import random
from collections.abc import Iterator

import machine
import pytest
import torch
from emulated import DEVICES, Device, device_named
from ranks import Ranks
from seeds import SEED

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
def seed() -> None:
    """For ``usefixtures``: what a test draws is drawn again where ``S2_TEST_SEED`` is given."""
    print(f"S2_TEST_SEED={SEED}")  # pytest shows it where a test fails
    random.seed(SEED)
    torch.manual_seed(SEED)


@pytest.fixture(scope="module", params=DEVICES)
def device(request: pytest.FixtureRequest) -> Device:
    """The emulated device, and the real one if there is one, with the operators for it."""
    return device_named(request.param)


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
