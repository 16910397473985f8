# SPDX-License-Identifier: MIT
"""The seed of random tests: that of ``S2_TEST_SEED``, to repeat a run, or another every time."""

import os
import random

SEED = int(os.environ.get("S2_TEST_SEED", random.SystemRandom().randrange(1 << 32)))
