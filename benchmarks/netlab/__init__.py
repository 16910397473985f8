# SPDX-License-Identifier: MIT
"""A small network on one machine: P hosts, a switch between them, links of a given rate.

Each host is a Linux network namespace with an interface ``eth0``; a veth pair leads from it to a
bridge in a namespace of its own, and both ends of the pair are shaped, so a host sends and receives
at the link's rate at most.  Nothing outside these namespaces is touched, and nothing else can be
reached from inside.

    python -m benchmarks.netlab --hosts 4 --rate 1gbit script.py argument ...

runs a script on every host as torchrun would; ``run`` is the same from Python.  A rank of the
script may read its own interface in between, with ``Meter`` of ``netlab.counters``.

Without root, `ip` or `tc` the ranks are plain processes on loopback, and every figure has to say
so: ``NETLAB_KIND`` is then ``loopback``.
"""

from .counters import Counters, Meter, Traffic
from .lab import Lab, LabError, Loopback, why_no_lab
from .launch import RankError, ends_on_signals, open_network, run
from .rates import bits_per_second, rate_argument

__all__ = [
    "Counters",
    "Lab",
    "LabError",
    "Loopback",
    "Meter",
    "RankError",
    "Traffic",
    "bits_per_second",
    "ends_on_signals",
    "open_network",
    "rate_argument",
    "run",
    "why_no_lab",
]
