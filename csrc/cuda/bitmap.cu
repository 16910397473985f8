/* SPDX-License-Identifier: MIT */
/*
 * Bitmaps.  From values, a warp makes the bits of some blocks: lanes look at a block together, the
 * ballot says in whose part there is something, and a second ballot gathers the blocks' bits.
 */
#include "block.cuh"
#include "scan.h"
#include "units.cuh"

/* ---------------------------------------------------------------------------------------------- */
/* Kernels: from values                                                                           */
/* ---------------------------------------------------------------------------------------------- */

/* What blocks are, one bit each. */
struct block_bits {
    uint32_t live; /* an element is not a zero */
    uint32_t any;  /* an element is not +0.0 */
};

/* The blocks of a segment, in bytes. */
struct block_bytes {
    const uint8_t *values;
    int64_t nbytes;
    int64_t block;
    int64_t nblocks;
};

static __device__ inline block_bytes bytes_of(const s2_segment &segment, const uint8_t *values,
                                              int64_t width)
{
    /* No longer than the segment, whatever was declared, so that no product overflows. */
    const int64_t block = s2_min(segment.block, segment.numel);
    return {values + segment.offset * width, segment.numel * width, block * width,
            segment.numel == 0 ? 0 : (segment.numel - 1) / block + 1};
}

/*
 * The bits of BITS blocks from number `first` on.  32 / lanes blocks are looked at in a step; lane
 * l keeps what is found of block l.
 */
template <int BITS>
static __device__ inline block_bits look_at_blocks(const block_bytes &b, int64_t first,
                                                   uint64_t magnitude_mask)
{
    const int lanes = s2_lanes(b.block, S2_WARP / BITS, S2_WARP);
    const int lane = s2_lane(), together = S2_WARP / lanes;
    const uint32_t lanes_mask = S2_ALL_LANES >> (S2_WARP - lanes);
    bool is_live = false, is_any = false;

    for (int step = 0; step < BITS / together; step++) {
        const int64_t number = first + step * together + lane / lanes;
        uint64_t bits = 0;
        if (number < b.nblocks) {
            const int64_t at = number * b.block;
            bits = s2_or_bytes(b.values + at, s2_min(b.block, b.nbytes - at), lane % lanes, lanes);
        }
        const uint32_t live = __ballot_sync(S2_ALL_LANES, (bits & magnitude_mask) != 0);
        const uint32_t any = __ballot_sync(S2_ALL_LANES, bits != 0);
        if (lane / together != step) continue;
        is_live = (live >> (lane % together * lanes) & lanes_mask) != 0;
        is_any = (any >> (lane % together * lanes) & lanes_mask) != 0;
    }
    return {__ballot_sync(S2_ALL_LANES, is_live), __ballot_sync(S2_ALL_LANES, is_any)};
}

static __device__ inline void store_bits(uint8_t *bitmap, int64_t bit, uint32_t bits, int nbits)
{
    if (nbits == 8)
        bitmap[bit / 8] = (uint8_t)bits;
    else
        ((uint32_t *)bitmap)[bit / 32] = bits;
}

template <int BITS>
static __global__ void find_nonzero(const s2_segment *segments, int64_t nsegments,
                                    const uint8_t *values, int64_t width, uint64_t magnitude_mask,
                                    uint8_t *bitmap, int64_t nbits, s2_counter *negative_zeros)
{
    for (int64_t bit = s2_warp() * BITS; bit < nbits; bit += s2_nwarps() * BITS) {
        const int64_t s = s2_segment_of(segments, nsegments, bit);
        block_bits bits = {0, 0};
        if (s >= 0) {
            const block_bytes b = bytes_of(segments[s], values, width);
            const int64_t first = bit - segments[s].first_bit;
            if (first < b.nblocks) bits = look_at_blocks<BITS>(b, first, magnitude_mask);
        }
        if (s2_lane() != 0) continue;
        store_bits(bitmap, bit, bits.live, BITS);
        if (bits.any != bits.live)
            atomicAdd(negative_zeros, (s2_counter)__popc(bits.any & ~bits.live));
    }
}

/* ---------------------------------------------------------------------------------------------- */
/* Kernels: sets                                                                                  */
/* ---------------------------------------------------------------------------------------------- */

static __global__ void or_words(uint64_t *words, const uint64_t *other, int64_t n)
{
    for (int64_t i = s2_thread(); i < n; i += s2_nthreads())
        words[i] |= other[i];
}

static __global__ void andnot_words(uint64_t *words, const uint64_t *other, int64_t n)
{
    for (int64_t i = s2_thread(); i < n; i += s2_nthreads())
        words[i] &= ~other[i];
}

/* For each of some bitmaps of n words, one behind the other, the counts of their segments.  A warp
 * adds up its words where they are of one segment, as nearly all are. */
static __global__ void count_bits(const s2_segment *segments, int64_t nsegments,
                                  const uint64_t *bitmaps, int64_t nbitmaps, int64_t n,
                                  s2_counter *counts)
{
    const int64_t each = (n + S2_WARP - 1) / S2_WARP; /* turns of a warp */

    for (int64_t turn = s2_warp(); turn < nbitmaps * each; turn += s2_nwarps()) {
        const int64_t bitmap = turn / each, first = turn % each * S2_WARP;
        const uint64_t *words = bitmaps + bitmap * n;
        const int64_t i = first + s2_lane(), last = s2_min(first + S2_WARP, n) - 1;
        const int64_t begins = s2_segment_of(segments, nsegments, 64 * first);
        const int64_t ends = s2_segment_of(segments, nsegments, 64 * last);
        int64_t count = i < n ? __popcll(words[i]) : 0;
        int64_t s = begins;

        if (begins == ends) {
            count = s2_warp_sum(count);
            if (s2_lane() != 0) continue;
        } else if (i < n) {
            s = s2_segment_of(segments, nsegments, 64 * i);
        }
        if (count != 0 && s >= 0) atomicAdd(&counts[bitmap * nsegments + s], (s2_counter)count);
    }
}

static __global__ void unite_words(const uint64_t *bitmaps, int64_t nbitmaps, int64_t n,
                                   uint64_t *words)
{
    for (int64_t i = s2_thread(); i < n; i += s2_nthreads()) {
        uint64_t word = 0;
        for (int64_t bitmap = 0; bitmap < nbitmaps; bitmap++)
            word |= bitmaps[bitmap * n + i];
        words[i] = word;
    }
}

/* `tiles` holds what comes before each. */
static __global__ void list_positions(const uint64_t *words, int64_t n, int64_t ntiles,
                                      const int64_t *tiles, int64_t *positions, int64_t capacity)
{
    for (int64_t tile = blockIdx.x; tile < ntiles; tile += gridDim.x) {
        const int64_t i = tile * S2_THREADS + threadIdx.x;
        uint64_t word = i < n ? words[i] : 0;
        int64_t total, at = s2_block_prefix(__popcll(word), &total) + tiles[tile];
        for (; word != 0 && at < capacity; word &= word - 1)
            positions[at++] = 64 * i + __ffsll((long long)word) - 1;
    }
}

static __global__ void set_bits(const int64_t *positions, int64_t capacity, const int64_t *count,
                                uint32_t *words, int64_t nbits)
{
    const int64_t n = s2_length(count, capacity);
    for (int64_t i = s2_thread(); i < n; i += s2_nthreads()) {
        const int64_t position = positions[i];
        if (position >= 0 && position < nbits) atomicOr(&words[position / 32], 1u << position % 32);
    }
}

/* ---------------------------------------------------------------------------------------------- */
/* Launchers                                                                                      */
/* ---------------------------------------------------------------------------------------------- */

/* An element without its sign, as often as it fits into a word. */
static uint64_t magnitude_mask(int64_t width)
{
    return width == 8   ? UINT64_C(0x7fffffffffffffff)
           : width == 4 ? UINT64_C(0x7fffffff7fffffff)
                        : UINT64_C(0x7fff7fff7fff7fff);
}

/*
 * With 32 bits a warp, short blocks take one or two steps; longer ones would take up to 32, and a
 * table of few long rows would have too few warps.  So for these it is 8 bits.
 */
s2_status s2_cuda_bitmap_from_nonzero(const s2_cuda_layout *layout, const void *values,
                                      s2_dtype dtype, uint8_t *bitmap, int64_t nbytes,
                                      int64_t *negative_zeros, cudaStream_t stream)
{
    S2_RETURN_IF_ERROR(s2_check_values(layout, values, dtype));
    S2_RETURN_IF_ERROR(s2_check_layout_bitmap(layout, bitmap, nbytes));
    if (negative_zeros == nullptr) return S2_NULL_POINTER;

    const int64_t width = s2_dtype_nbytes(dtype), nsegments = layout->host->nsegments;
    const int64_t nbits = 8 * nbytes;
    const bool is_short = s2_longest_block(layout->host) * width <= 2 * S2_UNIT_NBYTES;
    s2_counter *zeros = (s2_counter *)negative_zeros;
    cudaMemsetAsync(negative_zeros, 0, sizeof(*negative_zeros), stream);
    if (is_short && nbytes != 0)
        S2_LAUNCH(find_nonzero<32>, s2_grid(nbits / 32, 32), S2_THREADS, stream, layout->segments,
                  nsegments, (const uint8_t *)values, width, magnitude_mask(width), bitmap, nbits,
                  zeros);
    else if (nbytes != 0)
        S2_LAUNCH(find_nonzero<8>, s2_grid(nbits / 8, 32), S2_THREADS, stream, layout->segments,
                  nsegments, (const uint8_t *)values, width, magnitude_mask(width), bitmap, nbits,
                  zeros);
    return s2_launched();
}

static s2_status check_pair(const uint8_t *bitmap, const uint8_t *other, int64_t nbytes)
{
    S2_RETURN_IF_ERROR(s2_check_bitmap(bitmap, nbytes));
    return s2_check_bitmap(other, nbytes);
}

s2_status s2_cuda_bitmap_or(uint8_t *bitmap, const uint8_t *other, int64_t nbytes,
                            cudaStream_t stream)
{
    S2_RETURN_IF_ERROR(check_pair(bitmap, other, nbytes));
    if (nbytes != 0)
        S2_LAUNCH(or_words, s2_grid(nbytes / 8, 1), S2_THREADS, stream, (uint64_t *)bitmap,
                  (const uint64_t *)other, nbytes / 8);
    return s2_launched();
}

s2_status s2_cuda_bitmap_andnot(uint8_t *bitmap, const uint8_t *other, int64_t nbytes,
                                cudaStream_t stream)
{
    S2_RETURN_IF_ERROR(check_pair(bitmap, other, nbytes));
    if (nbytes != 0)
        S2_LAUNCH(andnot_words, s2_grid(nbytes / 8, 1), S2_THREADS, stream, (uint64_t *)bitmap,
                  (const uint64_t *)other, nbytes / 8);
    return s2_launched();
}

static void enqueue_counts(const s2_cuda_layout *layout, const uint8_t *bitmaps, int64_t nbitmaps,
                           int64_t nbytes, int64_t *counts, cudaStream_t stream)
{
    const int64_t nsegments = layout->host->nsegments, n = nbytes / 8;

    if (nsegments != 0)
        cudaMemsetAsync(counts, 0, (size_t)(nbitmaps * nsegments) * sizeof(*counts), stream);
    if (n != 0)
        S2_LAUNCH(count_bits, s2_grid(nbitmaps * n, 1), S2_THREADS, stream, layout->segments,
                  nsegments, (const uint64_t *)bitmaps, nbitmaps, n, (s2_counter *)counts);
}

s2_status s2_cuda_bitmap_count(const s2_cuda_layout *layout, const uint8_t *bitmap, int64_t nbytes,
                               int64_t *counts, cudaStream_t stream)
{
    S2_RETURN_IF_ERROR(s2_check_layout_bitmap(layout, bitmap, nbytes));
    if (s2_is_null(counts, layout->host->nsegments)) return S2_NULL_POINTER;

    enqueue_counts(layout, bitmap, 1, nbytes, counts, stream);
    return s2_launched();
}

s2_status s2_cuda_bitmap_unite(const s2_cuda_layout *layout, const uint8_t *bitmaps, int64_t nranks,
                               int64_t nbytes, uint8_t *bitmap, int64_t *counts,
                               cudaStream_t stream)
{
    if (nranks < 1 || nranks > S2_MAX_RANKS) return S2_BAD_SIZE;
    S2_RETURN_IF_ERROR(s2_check_layout_bitmap(layout, bitmaps, nbytes));
    if (nbytes > S2_MAX_NUMEL / nranks) return S2_BAD_SIZE;
    S2_RETURN_IF_ERROR(s2_check_bitmap(bitmap, nbytes));
    const int64_t nsegments = layout->host->nsegments, n = nbytes / 8;
    if (s2_is_null(counts, nsegments)) return S2_NULL_POINTER;

    if (n != 0)
        S2_LAUNCH(unite_words, s2_grid(n, 1), S2_THREADS, stream, (const uint64_t *)bitmaps, nranks,
                  n, (uint64_t *)bitmap);
    enqueue_counts(layout, bitmaps, nranks, nbytes, counts, stream);
    enqueue_counts(layout, bitmap, 1, nbytes, counts + nranks * nsegments, stream);
    return s2_launched();
}

s2_status s2_cuda_bitmap_scratch_nbytes(int64_t nbytes, int64_t *scratch_nbytes)
{
    if (scratch_nbytes == nullptr) return S2_NULL_POINTER;
    if (nbytes < 0 || nbytes % 8 != 0 || nbytes > S2_MAX_NUMEL) return S2_BAD_SIZE;
    *scratch_nbytes = s2_ntiles(nbytes / 8) * (int64_t)sizeof(int64_t);
    return S2_OK;
}

s2_status s2_cuda_bitmap_positions(const uint8_t *bitmap, int64_t nbytes, int64_t *positions,
                                   int64_t capacity, int64_t *count, void *scratch,
                                   int64_t scratch_nbytes, cudaStream_t stream)
{
    int64_t wanted;

    S2_RETURN_IF_ERROR(s2_check_bitmap(bitmap, nbytes));
    S2_RETURN_IF_ERROR(s2_check_positions(positions, capacity));
    if (count == nullptr) return S2_NULL_POINTER;
    S2_RETURN_IF_ERROR(s2_cuda_bitmap_scratch_nbytes(nbytes, &wanted));
    S2_RETURN_IF_ERROR(s2_check_scratch(scratch, scratch_nbytes, wanted));

    const uint64_t *words = (const uint64_t *)bitmap;
    const int64_t n = nbytes / 8;
    int64_t *tiles = (int64_t *)scratch;
    s2_scan_bits(words, n, tiles, count, stream);
    if (n != 0)
        S2_LAUNCH(list_positions, s2_grid(n, 1), S2_THREADS, stream, words, n, s2_ntiles(n), tiles,
                  positions, capacity);
    return s2_launched();
}

s2_status s2_cuda_bitmap_from_positions(const int64_t *positions, int64_t capacity,
                                        const int64_t *count, uint8_t *bitmap, int64_t nbytes,
                                        cudaStream_t stream)
{
    S2_RETURN_IF_ERROR(s2_check_bitmap(bitmap, nbytes));
    S2_RETURN_IF_ERROR(s2_check_positions(positions, capacity));

    if (nbytes != 0) cudaMemsetAsync(bitmap, 0, (size_t)nbytes, stream);
    if (capacity != 0 && nbytes != 0)
        S2_LAUNCH(set_bits, s2_grid(capacity, 1), S2_THREADS, stream, positions, capacity, count,
                  (uint32_t *)bitmap, 8 * nbytes);
    return s2_launched();
}
