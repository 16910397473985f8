# SPDX-License-Identifier: MIT
"""Rates of links, as `tc` writes them, and the queues that go with them."""

import argparse
import re

# In the place of a rate: no lab, but the loopback interface, which has none.
LOOPBACK = "loopback"

_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}

# A packet that TCP hands over for later segmentation has up to 64 KiB of data, and 46 headers of 66
# bytes once it is cut.  A bucket that holds it whole spares the kernel the cutting.
_LARGEST_PACKET_NBYTES = 70_000
# Or, if more, what passes while the shaper's timer is late by so much.  A whole bucket may leave at
# once after a pause, so it should be small.
_TIMER_SECONDS = 250e-6
# The longest queue.  A switch's port buffers some milliseconds of its rate; but when seven hosts
# send to one, a short queue costs TCP its packets and then 200 ms for each lost tail, which would
# measure TCP's timers and not the exchange.
LATENCY_SECONDS = 50e-3


def bits_per_second(rate: str) -> float:
    """``"1gbit"`` is 1e9.

    Raises:
        ValueError: ``rate`` is no positive number with one of the units kbit, mbit and gbit.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]bit)", rate.lower())
    if match is None or float(match[1]) == 0:
        raise ValueError(
            f"a rate is a number and a unit (kbit, mbit or gbit), such as 1gbit, but got {rate!r}"
        )
    return float(match[1]) * _UNITS[match[2]]


def rate_argument(text: str) -> str:
    """A rate on a command line, or LOOPBACK: the `type` of an argument of argparse."""
    if text == LOOPBACK:
        return text
    try:
        bits_per_second(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def shaper(rate: str) -> list[str]:
    """The arguments of a `tc qdisc` that lets so many bits pass a second."""
    bits = bits_per_second(rate)
    burst = max(_LARGEST_PACKET_NBYTES, round(bits / 8 * _TIMER_SECONDS))
    return ["tbf", "rate", f"{bits:.0f}bit", "burst", str(burst), "latency", f"{LATENCY_SECONDS}s"]
