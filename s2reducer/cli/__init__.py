# SPDX-License-Identifier: MIT
"""``python -m s2reducer``: the command line."""

import argparse
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    from s2reducer.cli import demo

    parser = argparse.ArgumentParser(
        prog="python -m s2reducer",
        description="Sparse gradient exchange for PyTorch's DistributedDataParallel.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    demo.add_arguments(
        commands.add_parser(
            "demo",
            help="train a small language model with plain DDP and with s2reducer, and compare",
            description=demo.DESCRIPTION,
        )
    )
    options = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    return demo.main(options)
