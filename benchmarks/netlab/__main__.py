# SPDX-License-Identifier: MIT
"""The command line: ``python -m benchmarks.netlab --hosts 4 --rate 1gbit script.py ...``."""

import argparse
import sys

from .lab import LabError
from .launch import RankError, ends_on_signals, open_network, run
from .rates import rate_argument


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.netlab",
        description="Runs a Python script on the hosts of a small network, as torchrun would.",
    )
    parser.add_argument("--hosts", type=int, default=2, help="one rank on each (default: 2)")
    parser.add_argument("--rate", type=rate_argument, default="1gbit", help="default: 1gbit")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    try:
        with ends_on_signals(), open_network(options.hosts, options.rate) as network:
            run(network, options.script, options.arguments)
    except (LabError, RankError, ValueError) as error:
        print(f"netlab: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
