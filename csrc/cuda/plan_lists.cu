/* SPDX-License-Identifier: MIT */
/* What one rank exchanges with each other, given the owners: see s2.h and plan.cuh. */
#include "plan.cuh"
#include "scan.h"

/* The numbers of an s2_exchange, in their order. */
enum {
    SENT_BLOCKS,
    SENT_NUMEL,
    RECEIVED_BLOCKS,
    RECEIVED_NUMEL,
    OWNED_BLOCKS,
    OWNED_NUMEL,
    FIELDS
};
static_assert(sizeof(s2_exchange) == FIELDS * sizeof(int64_t), "nothing but these");

/* Numbers that lie in scratch: by rank and tile, how many entries the tile has in the rank's part
 * of a list, and then how many those before it have. */
struct list_scratch {
    int64_t *sent, *received, *owned;
    int64_t *own_blocks; /* by segment: how many of its blocks this rank owns */
    int64_t *own_before; /* by segment: how many of those before it */
};

/* ---------------------------------------------------------------------------------------------- */
/* Kernels: exchanges                                                                             */
/* ---------------------------------------------------------------------------------------------- */

static __device__ inline void count_block(s2_counter *totals, int64_t rank, int field,
                                          int64_t numel)
{
    atomicAdd(&totals[rank * FIELDS + field], (s2_counter)1);
    atomicAdd(&totals[rank * FIELDS + field + 1], (s2_counter)numel);
}

/* Sums of integers, in which the order does not show. */
static __global__ void count_exchanges(plan p, const int16_t *owners, int64_t rank,
                                       s2_counter *exchanges)
{
    S2_SHARED(s2_counter, totals, S2_MAX_RANKS * FIELDS);
    const int64_t n = s2_plan_npositions(p);

    for (int64_t i = threadIdx.x; i < p.nranks * FIELDS; i += S2_THREADS)
        totals[i] = 0;
    __syncthreads();
    for (int64_t j = s2_thread(); j < n; j += s2_nthreads()) {
        const int64_t position = p.positions[j], owner = owners[j];
        const int64_t s = s2_segment_of(p.segments, p.nsegments, position);
        if (s < 0 || owner < 0 || owner >= p.nranks) continue;
        const int64_t numel = p.segments[s].block;
        count_block(totals, owner, OWNED_BLOCKS, numel);
        if (s2_plan_touches(p, rank, position)) count_block(totals, owner, SENT_BLOCKS, numel);
        for (int64_t peer = 0; peer < p.nranks && owner == rank; peer++) {
            if (s2_plan_touches(p, peer, position))
                count_block(totals, peer, RECEIVED_BLOCKS, numel);
        }
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < p.nranks * FIELDS; i += S2_THREADS) {
        if (totals[i] != 0) atomicAdd(&exchanges[i], totals[i]);
    }
}

/* ---------------------------------------------------------------------------------------------- */
/* Kernels: lists                                                                                 */
/* ---------------------------------------------------------------------------------------------- */

/* What a tile holds of each of its positions. */
struct tile_entry {
    int64_t position;
    int64_t segment;
    int owner; /* -1 behind the last */
    bool is_sent;
};

static __device__ inline tile_entry entry_of(const plan &p, const int16_t *owners, int64_t rank,
                                             int64_t j)
{
    if (j >= s2_plan_npositions(p)) return {0, -1, -1, false};
    const int64_t position = p.positions[j];
    const int64_t s = s2_segment_of(p.segments, p.nsegments, position);
    return {position, s, s < 0 ? -1 : owners[j], s2_plan_touches(p, rank, position)};
}

static __global__ void count_entries(plan p, const int16_t *owners, int64_t rank, list_scratch at)
{
    S2_SHARED(tile_entry, entries, S2_THREADS);

    for (int64_t tile = blockIdx.x; tile < p.ntiles; tile += gridDim.x) {
        const tile_entry mine = entry_of(p, owners, rank, tile * S2_THREADS + threadIdx.x);
        entries[threadIdx.x] = mine;
        if (mine.owner == rank)
            atomicAdd((s2_counter *)&at.own_blocks[mine.segment], (s2_counter)1);
        __syncthreads();
        if (threadIdx.x < p.nranks) {
            const int64_t peer = threadIdx.x;
            int64_t sent = 0, received = 0, owned = 0;
            for (int i = 0; i < S2_THREADS; i++) {
                const bool is_peers = entries[i].owner == peer;
                owned += is_peers;
                sent += is_peers && entries[i].is_sent;
                received +=
                    entries[i].owner == rank && s2_plan_touches(p, peer, entries[i].position);
            }
            at.sent[peer * p.ntiles + tile] = sent;
            at.received[peer * p.ntiles + tile] = received;
            at.owned[peer * p.ntiles + tile] = owned;
        }
        __syncthreads();
    }
}

/* By one thread block. */
static __global__ void make_compact(plan p, list_scratch at, s2_segment *compact)
{
    int64_t blocks_before = 0, offset = 0, first_bit = 0;

    for (int64_t begin = 0; begin < p.nsegments; begin += S2_THREADS) {
        const int64_t s = begin + threadIdx.x;
        const bool is_there = s < p.nsegments;
        const int64_t nblocks = is_there ? at.own_blocks[s] : 0;
        const int64_t block = is_there ? p.segments[s].block : 0;
        const int64_t nbits = (nblocks + 63) / 64 * 64;
        int64_t all_blocks, all_numel, all_bits;
        const int64_t blocks = s2_block_prefix(nblocks, &all_blocks);
        const int64_t numel = s2_block_prefix(nblocks * block, &all_numel);
        const int64_t bits = s2_block_prefix(nbits, &all_bits);
        if (is_there) {
            at.own_before[s] = blocks_before + blocks;
            compact[s] = {offset + numel, nblocks * block, block, first_bit + bits};
        }
        blocks_before += all_blocks;
        offset += all_numel;
        first_bit += all_bits;
    }
}

/* A rank's part of a list, from where a tile goes on with it. */
struct list_part {
    int64_t *list;
    int64_t next, capacity;
};

static __device__ inline void push(list_part *part, int64_t entry)
{
    if (part->next >= 0 && part->next < part->capacity) part->list[part->next] = entry;
    part->next++;
}

struct plan_lists {
    list_part sent, received, owned;
};

/* Where the parts of this thread's rank begin. */
static __device__ inline plan_lists begin_parts(const plan &p, const s2_exchange *exchanges,
                                                plan_lists lists)
{
    const s2_exchange none = {0, 0, 0, 0, 0, 0};
    const s2_exchange mine = threadIdx.x < p.nranks ? exchanges[threadIdx.x] : none;
    int64_t total;
    lists.sent.next = s2_block_prefix(mine.sent_blocks, &total);
    lists.received.next = s2_block_prefix(mine.received_blocks, &total);
    lists.owned.next = s2_block_prefix(mine.owned_blocks, &total);
    return lists;
}

static __global__ void fill_lists(plan p, const int16_t *owners, int64_t rank,
                                  const s2_exchange *exchanges, list_scratch at,
                                  const s2_segment *compact, plan_lists lists)
{
    S2_SHARED(tile_entry, entries, S2_THREADS);
    S2_SHARED(int64_t, compact_bits, S2_THREADS);
    const plan_lists begin = begin_parts(p, exchanges, lists);

    for (int64_t tile = blockIdx.x; tile < p.ntiles; tile += gridDim.x) {
        const tile_entry mine = entry_of(p, owners, rank, tile * S2_THREADS + threadIdx.x);
        int64_t total, own = s2_block_prefix(mine.owner == rank, &total);
        entries[threadIdx.x] = mine;
        if (mine.owner == rank) {
            own += at.owned[rank * p.ntiles + tile] - at.own_before[mine.segment];
            compact_bits[threadIdx.x] = compact[mine.segment].first_bit + own;
        }
        __syncthreads();
        if (threadIdx.x < p.nranks) {
            const int64_t peer = threadIdx.x;
            plan_lists to = begin;
            to.sent.next += at.sent[peer * p.ntiles + tile];
            to.received.next += at.received[peer * p.ntiles + tile];
            to.owned.next += at.owned[peer * p.ntiles + tile];
            for (int i = 0; i < S2_THREADS; i++) {
                const tile_entry entry = entries[i];
                if (entry.owner == peer) push(&to.owned, entry.position);
                if (entry.owner == peer && entry.is_sent) push(&to.sent, entry.position);
                if (entry.owner == rank && s2_plan_touches(p, peer, entry.position))
                    push(&to.received, compact_bits[i]);
            }
        }
        /* The barriers of the next prefix come before the next entries. */
    }
}

/* ---------------------------------------------------------------------------------------------- */
/* Launchers                                                                                      */
/* ---------------------------------------------------------------------------------------------- */

s2_status s2_cuda_plan_exchanges(const s2_cuda_layout *layout, const uint8_t *bitmaps,
                                 int64_t nranks, int64_t nbytes, const int64_t *positions,
                                 int64_t capacity, const s2_cuda_run *runs, const int16_t *owners,
                                 int64_t rank, s2_exchange *exchanges, cudaStream_t stream)
{
    plan p;

    S2_RETURN_IF_ERROR(
        s2_plan_check(layout, bitmaps, nranks, nbytes, positions, capacity, runs, &p));
    if (rank < 0 || rank >= nranks) return S2_BAD_SIZE;
    if (s2_is_null(owners, capacity) || exchanges == nullptr) return S2_NULL_POINTER;

    cudaMemsetAsync(exchanges, 0, (size_t)nranks * sizeof(*exchanges), stream);
    if (capacity != 0)
        S2_LAUNCH(count_exchanges, s2_grid(capacity, 1), S2_THREADS, stream, p, owners, rank,
                  (s2_counter *)exchanges);
    return s2_launched();
}

s2_status s2_cuda_plan_lists_scratch_nbytes(int64_t capacity, int64_t nranks, int64_t nsegments,
                                            int64_t *nbytes)
{
    if (nsegments < 0 || nsegments > S2_MAX_NUMEL / 4) return S2_BAD_SIZE;
    return s2_plan_scratch(capacity, nranks, 3 * nranks, 2 * nsegments, nbytes);
}

s2_status s2_cuda_plan_lists(const s2_cuda_layout *layout, const uint8_t *bitmaps, int64_t nranks,
                             int64_t nbytes, const int64_t *positions, int64_t capacity,
                             const s2_cuda_run *runs, const int16_t *owners, int64_t rank,
                             const s2_exchange *exchanges, int64_t *sent, int64_t nsent,
                             int64_t *received, int64_t nreceived, int64_t *owned,
                             s2_segment *compact, void *scratch, int64_t scratch_nbytes,
                             cudaStream_t stream)
{
    plan p;
    int64_t wanted;

    S2_RETURN_IF_ERROR(
        s2_plan_check(layout, bitmaps, nranks, nbytes, positions, capacity, runs, &p));
    const int64_t nsegments = p.nsegments, ncounts = nranks * p.ntiles;
    if (rank < 0 || rank >= nranks) return S2_BAD_SIZE;
    S2_RETURN_IF_ERROR(s2_check_positions(sent, nsent));
    S2_RETURN_IF_ERROR(s2_check_positions(received, nreceived));
    if (s2_is_null(owners, capacity) || exchanges == nullptr || s2_is_null(owned, capacity) ||
        s2_is_null(compact, nsegments))
        return S2_NULL_POINTER;
    if (!s2_is_aligned(compact, sizeof(int64_t))) return S2_BAD_ADDRESS;
    S2_RETURN_IF_ERROR(s2_cuda_plan_lists_scratch_nbytes(capacity, nranks, nsegments, &wanted));
    S2_RETURN_IF_ERROR(s2_check_scratch(scratch, scratch_nbytes, wanted));
    if (nsegments == 0) return s2_launched();

    int64_t *numbers = (int64_t *)scratch;
    const list_scratch at = {numbers, numbers + ncounts, numbers + 2 * ncounts,
                             numbers + 3 * ncounts, numbers + 3 * ncounts + nsegments};
    const plan_lists lists = {{sent, 0, nsent}, {received, 0, nreceived}, {owned, 0, capacity}};
    const int64_t grid = s2_grid(capacity, 1);
    cudaMemsetAsync(at.own_blocks, 0, (size_t)nsegments * sizeof(int64_t), stream);
    if (capacity != 0) {
        S2_LAUNCH(count_entries, grid, S2_THREADS, stream, p, owners, rank, at);
        s2_scan_rows(numbers, 3 * nranks, p.ntiles, nullptr, stream);
    }
    S2_LAUNCH(make_compact, 1, S2_THREADS, stream, p, at, compact);
    if (capacity != 0)
        S2_LAUNCH(fill_lists, grid, S2_THREADS, stream, p, owners, rank, exchanges, at, compact,
                  lists);
    return s2_launched();
}
