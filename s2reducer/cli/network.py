# SPDX-License-Identifier: MIT
"""Bytes on the wire: by formula, by the interface's counter, and the time they would take."""

from pathlib import Path

from s2reducer.transport import ring_nbytes

LINK_GBITS = (1, 10, 25, 100)
_LOOPBACK_SENT = Path("/sys/class/net/lo/statistics/tx_bytes")


def union_bytes(parameters: list[tuple[int, int, float]], element_size: int, ranks: int) -> int:
    """What the ``union`` plan sends per rank and step, headers aside, for (numel, block, density of
    the union) of each parameter: one bit a block, then the live blocks, both by AllReduce."""
    elements = sum(numel * density for numel, _, density in parameters)
    bits = sum(-(-numel // block) for numel, block, _ in parameters)
    return ring_nbytes(round(elements) * element_size + -(-bits // 8), ranks)


def loopback_sent() -> int | None:
    """Bytes that all programs of this machine have sent over ``lo``, TCP/IP headers and
    acknowledgements included; None where the system does not tell."""
    try:
        return int(_LOOPBACK_SENT.read_text())
    except (OSError, ValueError):
        return None


def predicted_seconds(compute_seconds: float, nbytes: float, gbits: float) -> float:
    """A step on a link of ``gbits`` Gbit/s: compute, then send; no overlap and no latency."""
    return compute_seconds + nbytes * 8 / (gbits * 1e9)
