# SPDX-License-Identifier: MIT
"""Inserting and peeling on one thread, beside a memcpy.

An insertion moves rows x n x block floats into cells, so the yardstick is a memcpy of as many
bytes: of the values, once for each row.  Peeling follows an insertion in every turn, and stands
beside it.
"""

import torch
from copies import memcpy
from paired import Spread, measure, seconds

from s2reducer import ops
from sketching.tables import new_table, peel, whole_numbers

ROWS, CELLS, SEED = 3, 1.3, 1
BLOCKS = (64, 128, 512)


def insertion(block: int, megabytes: float, turns: int) -> dict[str, object]:
    nblocks = int(megabytes * 1e6 / (4 * block))
    values = whole_numbers(nblocks, block, torch.Generator().manual_seed(0))
    table, ids = new_table(ROWS, CELLS, nblocks, block), torch.arange(nblocks)
    ops.sketch_insert(table, SEED, ids, values)
    peeled = peel(table, SEED, ids)
    assert torch.equal(peeled.values[peeled.decoded], values[peeled.decoded]), "wrong values"
    del peeled
    copy = torch.empty_like(values)

    def copies(_: int) -> None:
        for _ in range(ROWS):
            memcpy(copy, values)

    table.zero_()
    pair = measure(lambda _: ops.sketch_insert(table, SEED, ids, values), turns, memcpy=copies)
    nbytes = ROWS * values.nbytes
    return {
        "block": block,
        "blocks": nblocks,
        "insert": nbytes / pair["memcpy"].subject.median / 1e9,
        "memcpy": nbytes / pair["memcpy"].yardstick.median / 1e9,
        "of_memcpy": pair["memcpy"].speed.as_dict(),
    }


def peeling(nblocks: int, block: int, turns: int) -> dict[str, object]:
    """Of a full table; clearing it is not timed."""
    values = whole_numbers(nblocks, block, torch.Generator().manual_seed(0))
    table, ids = new_table(ROWS, CELLS, nblocks, block), torch.arange(nblocks)
    out, bounds, norms = torch.zeros(nblocks, block), torch.zeros(nblocks), torch.zeros(nblocks)
    decoded = torch.zeros(nblocks, dtype=torch.bool)
    scratch = torch.zeros(ops.sketch_scratch_nbytes(table, nblocks), dtype=torch.uint8)

    def insert() -> None:
        ops.sketch_insert(table, SEED, ids, values)

    def take() -> None:
        ops.sketch_peel(table, SEED, ids, 1, None, out, decoded, bounds, norms, scratch)

    inserts, peels = [], []
    for _ in range(turns + 1):
        table.zero_()
        inserts.append(seconds(insert))
        peels.append(seconds(take))
        assert torch.equal(out[decoded], values[decoded]), "wrong values"
    ratios = [taken / put for taken, put in zip(peels[1:], inserts[1:], strict=True)]
    return {
        "block": block,
        "blocks": nblocks,
        "insert_ms": 1e3 * Spread.of(inserts[1:]).median,
        "peel_ms": 1e3 * Spread.of(peels[1:]).median,
        "peel_over_insert": Spread.of(ratios).as_dict(),
    }


def insertions(quick: bool, turns: int) -> list[dict[str, object]]:
    return [insertion(block, 4 if quick else 200, turns) for block in BLOCKS]


def peelings(quick: bool, turns: int) -> list[dict[str, object]]:
    nblocks = 2000 if quick else 100_000
    return [peeling(nblocks, block, turns) for block in ((512,) if quick else BLOCKS)]
