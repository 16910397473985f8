# SPDX-License-Identifier: MIT
"""Plans: how a bucket crosses the network.

``dense`` begins one AllReduce in the hook's body; the sparse plans take several rounds, in the
engine's lanes.  Each plan is in a file of its own, with its arithmetic and its formula of bytes.
"""
