# SPDX-License-Identifier: MIT
"""``python -m s2reducer``."""

import sys

from s2reducer.cli import main

if __name__ == "__main__":
    sys.exit(main())
