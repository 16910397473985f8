# SPDX-License-Identifier: MIT
"""Owner plans and position lists, against the reference and against what they promise."""

import json
import random
from itertools import chain
from pathlib import Path

import pytest
import torch
from seeds import SEED
from torch import Tensor

from s2reducer import ops, reference
from s2reducer.segments import segments_of

pytestmark = pytest.mark.usefixtures("seed")
VECTORS = Path(__file__).parent / "vectors" / "hash.json"


# ------------------------------------------------------------------------------------------------
# Lists
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nbits", [1, 2, 7, 64, 65, 1000, 4097, 1_000_003, 10**9])
def test_lists_come_back(nbits: int) -> None:
    for count in sorted({0, 1, min(nbits, 3), nbits // 3, nbits - 1, nbits}):
        if count > 100_000:
            continue
        where = torch.tensor(sorted(random.sample(range(nbits), count)), dtype=torch.int64)
        packed = torch.full((ops.list_nbytes(nbits, count),), 255, dtype=torch.uint8)
        ops.list_encode(where, nbits, packed)
        back = torch.full_like(where, -1)
        ops.list_decode(packed, nbits, back)
        assert torch.equal(back, where)
        if count:
            low_bits = (nbits // count).bit_length() - 1
            assert packed.numel() <= count * (3 + low_bits) / 8 + 16


def test_the_list_of_the_header_is_laid_out_as_described() -> None:
    packed = torch.empty(ops.list_nbytes(32, 4), dtype=torch.uint8)
    ops.list_encode(torch.tensor([3, 12, 13, 27]), 32, packed)
    low = 3 | 4 << 3 | 5 << 6 | 3 << 9
    assert bytes(packed.tolist()) == low.to_bytes(8, "little") + (0b1001101).to_bytes(8, "little")


def test_bytes_that_are_no_list_are_refused() -> None:
    back = torch.full((4,), 7)
    for junk in (b"\0" * 16, b"\xff" * 16, b"\0" * 8 + b"\x0f" + b"\0" * 7):
        with pytest.raises(RuntimeError, match="list does not hold 4 positions below 32"):
            ops.list_decode(torch.frombuffer(bytearray(junk), dtype=torch.uint8), 32, back)
    with pytest.raises(RuntimeError, match="list must have 16 bytes for 4 positions below 32"):
        ops.list_decode(torch.zeros(8, dtype=torch.uint8), 32, back)
    with pytest.raises(RuntimeError, match="positions must ascend strictly and lie below 32"):
        ops.list_encode(torch.tensor([3, 12, 12, 27]), 32, torch.zeros(16, dtype=torch.uint8))
    assert back.tolist() == [7] * 4


# ------------------------------------------------------------------------------------------------
# Owners
# ------------------------------------------------------------------------------------------------


class Case:
    """The live blocks of some ranks in a bucket of some segments."""

    def __init__(self, nranks: int, shapes: list[tuple[int, int]], densities: list[float]) -> None:
        self.segments = segments_of([n * b for n, b in shapes], [b for _, b in shapes])
        self.nbytes = ops.bitmap_nbytes(self.segments)
        places = [position for position, *_ in reference.blocks(self.segments)]
        self.touched = [
            [p for p in places if random.random() < densities[rank % len(densities)]]
            for rank in range(nranks)
        ]
        self.union = sorted({p for where in self.touched for p in where})
        self.positions = torch.tensor(self.union, dtype=torch.int64)
        rows = [reference.bitmap(where, self.nbytes) for where in self.touched]
        self.bitmaps = torch.stack(rows).contiguous()

    def owners(self, seed: int) -> Tensor:
        owners = torch.full((len(self.union),), -7, dtype=torch.int16)
        ops.plan_owners(self.bitmaps, self.segments, self.positions, seed, owners)
        return owners

    def lists(self, owners: Tensor, rank: int) -> dict[str, Tensor]:
        exchanges = torch.full((len(self.touched), 6), -7)
        arguments = (self.bitmaps, self.segments, self.positions, owners, rank, exchanges)
        ops.plan_exchanges(*arguments)
        sent = torch.full((int(exchanges[:, 0].sum()),), -7)
        received = torch.full((int(exchanges[:, 2].sum()),), -7)
        owned = torch.full((len(self.union),), -7)
        compact = torch.full_like(self.segments, -7)
        ops.plan_lists(*arguments, sent, received, owned, compact)
        return {
            "exchanges": exchanges,
            "sent": sent,
            "received": received,
            "owned": owned,
            "compact": compact,
        }


SHAPES = [[(300, 4)], [(70, 8), (0, 4), (130, 8)], [(100, 1), (64, 16), (65, 3)], [(1, 5)]]


def cases() -> list[Case]:
    return [
        Case(nranks, shapes, densities)
        for nranks in (1, 2, 3, 8, 17)
        for shapes in SHAPES
        for densities in ([0.1], [0.9, 0.02, 0.02], [0.0], [1.0])
    ]


def test_owners_are_those_of_the_reference() -> None:
    for case in cases():
        for seed in (0, random.getrandbits(64)):
            expected = reference.owners(case.touched, case.segments, seed)
            assert case.owners(seed).tolist() == expected


def test_an_owner_touched_its_block() -> None:
    even = Case(4, [(12_000, 8)], [0.1])
    owners = even.owners(5).tolist()
    touched = [set(where) for where in even.touched]
    at_home = sum(p in touched[o] for p, o in zip(even.union, owners, strict=True))
    # The shares scatter by 3 % around an even one, so that the cap seldom has to move a block.
    assert at_home >= 0.97 * len(owners)


@pytest.mark.parametrize(("nranks", "at_most"), [(3, 1.15), (4, 1.15), (8, 1.10), (16, 1.05)])
def test_a_rank_that_has_50_times_more_sends_no_more_than_the_others(
    nranks: int, at_most: float
) -> None:
    """At most so many times what ranks would send in the mean if all might own an even share."""
    case = Case(nranks, [(12_000, 8)], [0.5, *[0.01] * (nranks - 1)])
    owners = case.owners(5).tolist()
    owned = [owners.count(rank) for rank in range(nranks)]
    kept = [len(set(where)) for where in case.touched]
    for position, owner in zip(case.union, owners, strict=True):
        kept[owner] -= position in case.touched[owner]
    sent = [away + (nranks - 1) * here for away, here in zip(kept, owned, strict=True)]

    union = len(case.union)
    cap = union * 21 // 20 // nranks
    even = (len(case.touched[0]) - cap + (nranks - 1) * union) / nranks
    assert max(sent) <= at_most * even
    assert max(sent) <= 1.02 * sum(sent) / nranks


def test_all_256_ranks() -> None:
    case = Case(256, [(500, 2)], [0.05])
    owners = case.owners(1)
    assert owners.tolist() == reference.owners(case.touched, case.segments, 1)
    lists = case.lists(owners, 255)
    assert int(lists["exchanges"][:, 4].sum()) == len(case.union)


def test_lists_say_who_sends_what_where() -> None:
    for case in cases():
        owners = case.owners(3)
        owner_of = dict(zip(case.union, owners.tolist(), strict=True))
        lengths = {position: block for position, _, block in reference.blocks(case.segments)}
        nranks = len(case.touched)
        for rank in range(min(nranks, 3)):
            lists = case.lists(owners, rank)
            owned = [[p for p in case.union if owner_of[p] == other] for other in range(nranks)]
            sent = [[p for p in case.touched[rank] if owner_of[p] == o] for o in range(nranks)]
            compact = compact_positions(owned[rank], case.segments, lists["compact"])
            received = [
                [compact[p] for p in owned[rank] if p in set(case.touched[other])]
                for other in range(nranks)
            ]
            assert lists["owned"].tolist() == list(chain(*owned))
            assert lists["sent"].tolist() == list(chain(*sent))
            assert lists["received"].tolist() == list(chain(*received))
            for other, row in enumerate(lists["exchanges"].tolist()):
                back = {place: p for p, place in compact.items()}
                assert row == [
                    len(sent[other]),
                    sum(lengths[p] for p in sent[other]),
                    len(received[other]),
                    sum(lengths[back[place]] for place in received[other]),
                    len(owned[other]),
                    sum(lengths[p] for p in owned[other]),
                ]


def compact_positions(owned: list[int], segments: Tensor, compact: Tensor) -> dict[int, int]:
    """Checks the compact layout, and says where in it each owned block is."""
    result = {}
    offset = bit = 0
    firsts = [*segments[:, 3].tolist(), 1 << 62]
    for index, (block, row) in enumerate(
        zip(segments[:, 2].tolist(), compact.tolist(), strict=True)
    ):
        mine = [p for p in owned if firsts[index] <= p < firsts[index + 1]]
        if segments[index, 1] == 0:
            mine = []
        assert row == [offset, len(mine) * block, block, bit]
        result.update({p: bit + number for number, p in enumerate(mine)})
        offset += len(mine) * block
        bit += (len(mine) + 63) // 64 * 64
    return result


def test_every_rank_may_own_everything() -> None:
    """The plan ``gather``: the same lists, with oneself as the owner of all."""
    case = Case(3, [(100, 4)], [0.2])
    everything = torch.full((len(case.union),), 1, dtype=torch.int16)
    lists = case.lists(everything, 1)
    assert lists["sent"].tolist() == case.touched[1]
    index = {position: number for number, position in enumerate(case.union)}
    assert lists["received"].tolist() == [index[p] for where in case.touched for p in where]


def test_what_does_not_fit_is_refused() -> None:
    case = Case(3, [(100, 4)], [0.2])
    owners = case.owners(0)
    with pytest.raises(RuntimeError, match="positions must be those of the set bits"):
        ops.plan_owners(case.bitmaps, case.segments, case.positions[1:], 0, owners[1:])
    with pytest.raises(RuntimeError, match=r"owners must have the .* elements of positions"):
        ops.plan_owners(case.bitmaps, case.segments, case.positions, 0, owners[1:])
    with pytest.raises(RuntimeError, match="rank must lie between 0 and 2, but is 3"):
        case.lists(owners, 3)
    with pytest.raises(RuntimeError, match="owners must lie between 0 and 2, but one is 9"):
        case.lists(torch.full_like(owners, 9), 0)
    exchanges = case.lists(owners, 0)["exchanges"]
    empty, compact = torch.empty(0, dtype=torch.int64), torch.empty_like(case.segments)
    shared = (case.bitmaps, case.segments, case.positions, owners, 0)
    with pytest.raises(RuntimeError, match=r"exchanges must be what plan_exchanges gives .* 0 and"):
        ops.plan_lists(*shared, exchanges, empty, empty, torch.empty_like(case.positions), compact)
    with pytest.raises(RuntimeError, match="positions must be those of the set bits"):
        ops.plan_exchanges(*shared[:2], case.positions[1:], owners[1:], 0, exchanges)
    many = case.bitmaps[:1].repeat(257, 1)
    with pytest.raises(RuntimeError, match="bitmaps must have 1 to 256 rows, but has 257"):
        ops.plan_owners(many, case.segments, case.positions, 0, owners)


# ------------------------------------------------------------------------------------------------
# The hash
# ------------------------------------------------------------------------------------------------


def test_hash_vectors() -> None:
    vectors = json.loads(VECTORS.read_text())
    assert len(vectors) >= 20
    for vector in vectors:
        value = reference.hash64(int(vector["seed"]), int(vector["number"]))
        assert value == int(vector["hash"])
        assert reference.hash_below(value, vector["n"]) == vector["below"]


def test_candidates_are_spread_evenly() -> None:
    """Chi-square over 8 ranks that all touched everything: 7 degrees of freedom, one in 10^6."""
    positions = range(20_000)
    counts = [0] * 8
    for position in positions:
        counts[reference.hash_below(reference.hash64(SEED, position), 8)] += 1
    expected = len(positions) / 8
    assert sum((count - expected) ** 2 / expected for count in counts) < 40.5
