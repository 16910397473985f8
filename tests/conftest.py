# SPDX-License-Identifier: MIT
"""What several test modules share."""

from collections.abc import Iterator

import pytest
from ranks import Ranks

MOST_RANKS = 4


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """Runs a function on up to ``MOST_RANKS`` ranks: ``ranks.run(2, function, argument)``."""
    pool = Ranks(MOST_RANKS)
    yield pool
    pool.close()
