# SPDX-License-Identifier: MIT
"""Changes to the CUDA kernels, each of which breaks one of them in one way.

test_cuda_emulation.py makes them one by one: the tests of the kernel must fail, and must say what
they are meant to say.
"""

from dataclasses import dataclass

SANITIZE, RACES = "SANITIZE=1", "RACES=1"

# What a failing program says.
DIFFERENT = r"CHECK\(.*\) failed"
RACE = "a race: "
OUTSIDE = "AddressSanitizer|read or wrote outside of a buffer|margin_byte"
STUCK = "threads wait for others that have returned, or wait elsewhere"


@dataclass(frozen=True)
class Mutant:
    file: str
    old: str  # stands in the file once
    new: str
    says: str  # on standard error
    program: str
    kind: str = SANITIZE
    unit: str = ""  # the file that is compiled, where `file` is a header


MUTANTS = {
    # Barriers and races.
    "no barrier before sums are read": Mutant(
        "block.cuh",
        "warp_sums[warp] = upto;\n    __syncthreads();",
        "warp_sums[warp] = upto;",
        RACE,
        "bitmap",
        RACES,
        "bitmap",
    ),
    "no barrier before sums are read, by the bits": Mutant(
        "block.cuh",
        "warp_sums[warp] = upto;\n    __syncthreads();",
        "warp_sums[warp] = upto;",
        f"{OUTSIDE}|{DIFFERENT}|runtime error",
        "bitmap",
        SANITIZE,
        "bitmap",
    ),
    "no barrier before sums are overwritten": Mutant(
        "block.cuh",
        "all += warp_sums[i];\n    }\n    __syncthreads();",
        "all += warp_sums[i];\n    }",
        RACE,
        "bitmap",
        RACES,
        "bitmap",
    ),
    "a barrier that some threads skip": Mutant(
        "scan.cu",
        "s2_block_prefix(i < n ? __popcll(words[i]) : 0, &total);\n        if (threadIdx.x == 0)",
        "if (i < n) s2_block_prefix(__popcll(words[i]), &total);\n        if (threadIdx.x == 0)",
        STUCK,
        "bitmap",
    ),
    "no barrier before a tile is walked over": Mutant(
        "plan.cu",
        "kept[threadIdx.x] = 0;\n        __syncthreads();",
        "kept[threadIdx.x] = 0;",
        RACE,
        "plan",
        RACES,
    ),
    "no barrier before the next tile": Mutant(
        "plan_lists.cu",
        "at.owned[peer * p.ntiles + tile] = owned;\n        }\n        __syncthreads();",
        "at.owned[peer * p.ntiles + tile] = owned;\n        }",
        RACE,
        "plan",
        RACES,
    ),
    "bits that are set without an atomic operation": Mutant(
        "bitmap.cu",
        "atomicOr(&words[position / 32], 1u << position % 32);",
        "words[position / 32] |= 1u << position % 32;",
        RACE,
        "bitmap",
        RACES,
    ),
    "places in lists without an atomic operation": Mutant(
        "cells.cu",
        "atomicAdd(&cells.counts[cell], 1u);",
        "cells.counts[cell]++;",
        RACE,
        "sketch",
        RACES,
    ),
    "all lanes write a cell's count": Mutant(
        "peel.cu",
        "if (lane == 0) left_in(p, c) = nleft;",
        "left_in(p, c) = nleft;",
        RACE,
        "sketch",
        RACES,
    ),
    "no barrier before digits are counted": Mutant(
        "select_top.cu",
        "own[i] = 0;\n    __syncthreads();",
        "own[i] = 0;",
        RACE,
        "select",
        RACES,
    ),
    "no barrier before the next tile of a sort": Mutant(
        "sort.cu",
        "ranks[i]] = words[i];\n        }\n        __syncthreads();",
        "ranks[i]] = words[i];\n        }",
        RACE,
        "coo_sort",
        RACES,
    ),
    "digits that are counted without an atomic operation": Mutant(
        "sort.cu",
        "atomicAdd(&counts[digit_of(p, p.from[i])], 1u);",
        "counts[digit_of(p, p.from[i])]++;",
        RACE,
        "coo_sort",
        RACES,
    ),
    # Warps.
    "lanes of one digit in the opposite order": Mutant(
        "sort.cu",
        "+ (unsigned)__popc(lower);",
        "+ (unsigned)__popc(peers & ~lower) - 1;",
        DIFFERENT,
        "coo_sort",
    ),
    "a ballot that reads the votes of other blocks": Mutant(
        "bitmap.cu",
        "S2_ALL_LANES >> (S2_WARP - lanes);",
        "S2_ALL_LANES;",
        DIFFERENT,
        "bitmap",
    ),
    "a ballot of half a warp": Mutant(
        "bitmap.cu",
        "__ballot_sync(S2_ALL_LANES, is_live)",
        "__ballot_sync(0xffffu, is_live)",
        "a lane is not in its own mask",
        "bitmap",
    ),
    "a lane that keeps the bit of another block": Mutant(
        "bitmap.cu",
        "if (lane / together != step) continue;",
        "if (lane % together != step) continue;",
        DIFFERENT,
        "bitmap",
    ),
    "sums of squares that go on into the next block": Mutant(
        "owed.cu",
        "for (int half = SUMS / 2; half > 0; half /= 2)",
        "for (int half = SUMS; half > 0; half /= 2)",
        DIFFERENT,
        "owed",
    ),
    "digits that are alike counted once": Mutant(
        "select_top.cu", "(uint32_t)__popc(alike)", "1u + 0 * alike", DIFFERENT, "select"
    ),
    # Tails.
    "one word too many": Mutant(
        "bitmap.cu",
        "int64_t count = i < n ?",
        "int64_t count = i <= n ?",
        f"{OUTSIDE}|{DIFFERENT}",
        "bitmap",
    ),
    "a short block taken for a whole one": Mutant(
        "bitmap.cu",
        "s2_min(b.block, b.nbytes - at), lane % lanes",
        "b.block, lane % lanes",
        f"{OUTSIDE}|{DIFFERENT}",
        "bitmap",
    ),
    "the filling of a short block": Mutant(
        "rows.cu", "if (at.present != at.length)", "if (false)", DIFFERENT, "blocks"
    ),
    "one element too many": Mutant(
        "rows.cu",
        "e < at.present; e += r.lanes)\n            divide(packed",
        "e <= at.present; e += r.lanes)\n            divide(packed",
        f"{OUTSIDE}|{DIFFERENT}",
        "blocks",
    ),
    "blocks without room": Mutant(
        "rows.cu",
        "return found->packed >= 0 && found->packed <= r.packed_numel - found->length;",
        "return true;",
        OUTSIDE,
        "blocks",
    ),
    "the last element is not looked at": Mutant(
        "values.cu",
        "for (int64_t i = s2_thread(); i < n; i += s2_nthreads())\n        found",
        "for (int64_t i = s2_thread(); i < n - 1; i += s2_nthreads())\n        found",
        DIFFERENT,
        "values",
    ),
    "a tile of words that is always whole": Mutant(
        "sort.cu",
        "const int64_t end = s2_min(p.n, (tile + 1) * TILE);",
        "const int64_t end = (tile + 1) * TILE;",
        f"{OUTSIDE}|{DIFFERENT}",
        "coo_sort",
    ),
    # Sums that one thread block hands to another.
    "rows that begin anew in every tile": Mutant(
        "coo_sort.cu", "(i == 0 || s.words", "(threadIdx.x == 0 || s.words", DIFFERENT, "coo_sort"
    ),
    "tiles begin where the first does": Mutant(
        "bitmap.cu", "&total) + tiles[tile];", "&total) + tiles[0];", DIFFERENT, "bitmap"
    ),
    "a carry that forgets all but the last tiles": Mutant(
        "scan.cu", "carry += total;", "carry = total;", DIFFERENT, "bitmap"
    ),
    "no carry between rounds over segments": Mutant(
        "rows.cu",
        "runs[s] = {first, carry + before};",
        "runs[s] = {first, before};",
        DIFFERENT,
        "blocks",
    ),
    "no carry between rounds over segments of the compact layout": Mutant(
        "plan_lists.cu", "offset += all_numel;", "", DIFFERENT, "plan"
    ),
    "left-over blocks of earlier tiles": Mutant(
        "plan.cu", "first += at.left_over[tile];", "", DIFFERENT, "plan"
    ),
    "equal scores that are counted from their own tile on": Mutant(
        "select_top.cu", "&total) + tiles[tile];", "&total) + tiles[0];", DIFFERENT, "select"
    ),
    "digits that are counted with those of the pass before": Mutant(
        "select_top.cu", "counts[i] = 0;\n        larger", "larger", DIFFERENT, "select"
    ),
    "ranks beyond a warp's that begin at zero": Mutant(
        "sums.cu", "begin == 0 ? nullptr : totals", "nullptr", DIFFERENT, "sums"
    ),
    # Lists.
    "low bits that end in the next word": Mutant(
        "lists.cu",
        "if (shift + n > 64) atomicOr",
        "if (shift + n > 64 && n == 0) atomicOr",
        DIFFERENT,
        "lists",
    ),
    "a list that does not ascend": Mutant(
        "lists.cu",
        "good &= i == 0 || position_of(set, i - 1, low, shape.low_bits) < position;",
        "",
        DIFFERENT,
        "lists",
    ),
    "a list with a row twice": Mutant(
        "coo_sort.cu",
        "lists[i - 1] < lists[i]",
        "lists[i - 1] <= lists[i]",
        DIFFERENT,
        "coo_sort",
    ),
    # Order and arithmetic.
    "a cap that is reached is passed": Mutant(
        "plan.cu",
        "if (candidates > at.caps[rank]) break;",
        "if (candidates >= at.caps[rank]) break;",
        DIFFERENT,
        "plan",
    ),
    "a step that does not ask what decides about the one it depends on": Mutant(
        "select.cu",
        "if (drawn < r.n - r.keep) return false;\n        step = drawn;",
        "return false;",
        DIFFERENT,
        "select",
    ),
    "ranks that are added backwards": Mutant(
        "sums.cu",
        "for (int r = 0; r < some.n; r++) {\n                const",
        "for (int r = some.n - 1; r >= 0; r--) {\n                const",
        DIFFERENT,
        "sums",
    ),
    "infinities that are owed no more": Mutant(
        "owed.cuh", "s2_is_finite(taken) ? taken : 0.0f", "taken", DIFFERENT, "owed", unit="owed"
    ),
    "repeats that are added backwards": Mutant(
        "coo.cu",
        "const int64_t row = r.order[i];",
        "const int64_t row = r.order[first + end - 1 - i];",
        DIFFERENT,
        "coo",
    ),
    "cells that take blocks in any order": Mutant(
        "cells.cu",
        "S2_LAUNCH(sort_lists, grid, S2_THREADS, stream, cells, ncells);",
        "(void)sort_lists;",
        DIFFERENT,
        "sketch",
    ),
    "the upper of the two in the middle, twice": Mutant(
        "sketch.cu", "key_at(keys, (rows - 1) / 2)", "key_at(keys, rows / 2)", DIFFERENT, "sketch"
    ),
    "a product where only a division is exact": Mutant(
        "convert.cuh",
        "is_exact ? x * reciprocal : x / divisor",
        "x * reciprocal",
        DIFFERENT,
        "values",
        unit="values",
    ),
    "blocks that are subtracted in every round": Mutant(
        "peel.cu",
        "if (p.decoded[i] != TAKEN) continue;\n            sum +=",
        "if (p.decoded[i] == STUCK) continue;\n            sum +=",
        DIFFERENT,
        "sketch",
    ),
    "rounds that count what earlier ones took": Mutant(
        "peel.cu", "p.taken[(round + 1) % 2] = 0;", "", DIFFERENT, "sketch"
    ),
    # Host and device.
    "a launch on the default stream": Mutant(
        "scan.cu",
        "S2_LAUNCH(scan_row, nrows, S2_THREADS, stream,",
        "S2_LAUNCH(scan_row, nrows, S2_THREADS, ((void)stream, nullptr),",
        "stream == device_stream",
        "bitmap",
    ),
    "a host that reads from the device": Mutant(
        "bitmap.cu",
        "s2_scan_bits(words, n, tiles, count, stream);",
        "s2_scan_bits(words, n, tiles, count, stream);\n    if (*count == 0) return S2_OK;",
        OUTSIDE,
        "bitmap",
    ),
    "a kernel that reads from the host": Mutant(
        "rows.cu",
        "S2_LAUNCH(find_runs, 1, S2_THREADS, stream, layout->segments,",
        "S2_LAUNCH(find_runs, 1, S2_THREADS, stream, layout->host->segments,",
        OUTSIDE,
        "blocks",
    ),
}
