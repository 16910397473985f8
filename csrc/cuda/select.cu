/* SPDX-License-Identifier: MIT */
/* Selection by a threshold and at random; select_top.cu selects an exact number of the largest. */
#include "../hash.h"
#include "select.cuh"

/* ---------------------------------------------------------------------------------------------- */
/* Kernels: threshold                                                                             */
/* ---------------------------------------------------------------------------------------------- */

static __global__ void select_above(const float *scores, int64_t n, int32_t most, uint32_t *words,
                                    int64_t nwords, s2_counter *count)
{
    int64_t selected = 0, total;

    for (int64_t word = s2_warp(); word < nwords; word += s2_nwarps()) {
        const int32_t magnitude = s2_magnitude_at(scores, n, word * S2_WARP + s2_lane());
        const uint32_t bits = __ballot_sync(S2_ALL_LANES, magnitude > most);
        if (s2_lane() != 0) continue;
        words[word] = bits;
        selected += __popc(bits);
    }
    s2_block_prefix(selected, &total);
    if (threadIdx.x == 0 && total != 0) atomicAdd(count, (s2_counter)total);
}

/* ---------------------------------------------------------------------------------------------- */
/* Kernels: random                                                                                */
/* ---------------------------------------------------------------------------------------------- */

/*
 * Floyd's algorithm, whose steps from n - keep to n - 1 depend on those before them: each draws a
 * number up to its own, and selects that, or its own where what it drew has been selected already.
 *
 * What a step drew has been selected already if an earlier step drew it.  Else it can only have
 * been selected by the step whose own number it is, and that was so if what this step drew had been
 * selected already; and so on.  So the earliest step that drew each number is found for all of them
 * at once, and then each step follows its own chain of steps.
 *
 * The steps of a chain descend, each drawn from all numbers below the one before: so a chain has
 * ln(n) of them in the mean at most, and one where few are kept.
 */
struct random_choice {
    uint64_t seed;
    int64_t n, keep;
    s2_counter *first; /* by number: n less the earliest step that drew it, or 0 */
};

static __device__ inline int64_t draw(const random_choice &r, int64_t step)
{
    return (int64_t)s2_hash_below_wide(s2_hash(r.seed, (uint64_t)step), (uint64_t)step + 1);
}

static __global__ void find_first(random_choice r)
{
    for (int64_t step = r.n - r.keep + s2_thread(); step < r.n; step += s2_nthreads())
        atomicMax(&r.first[draw(r, step)], (s2_counter)(r.n - step));
}

static __device__ inline bool selects_itself(const random_choice &r, int64_t step)
{
    for (;;) {
        const int64_t drawn = draw(r, step);
        if (drawn == step || r.first[drawn] != (s2_counter)(r.n - step)) return true;
        if (drawn < r.n - r.keep) return false;
        step = drawn;
    }
}

static __global__ void select_random(random_choice r, uint32_t *words)
{
    for (int64_t step = r.n - r.keep + s2_thread(); step < r.n; step += s2_nthreads()) {
        const int64_t chosen = selects_itself(r, step) ? step : draw(r, step);
        atomicOr(&words[chosen / 32], 1u << chosen % 32);
    }
}

/* ---------------------------------------------------------------------------------------------- */
/* Launchers                                                                                      */
/* ---------------------------------------------------------------------------------------------- */

s2_status s2_cuda_select_above(const float *scores, int64_t n, float threshold, uint8_t *bitmap,
                               int64_t nbytes, int64_t *count, cudaStream_t stream)
{
    S2_RETURN_IF_ERROR(s2_check_selected(n, bitmap, nbytes));
    S2_RETURN_IF_ERROR(s2_check_scores(scores, n));
    if (count == nullptr) return S2_NULL_POINTER;
    if (threshold < 0.0f) return S2_BAD_FACTOR;

    const int32_t most = (int32_t)(s2_float_bits(threshold) & 0x7fffffff) - 1;
    const int64_t nwords = nbytes / 4;
    cudaMemsetAsync(count, 0, sizeof(*count), stream);
    if (n != 0)
        S2_LAUNCH(select_above, s2_grid(nwords, S2_WARP), S2_THREADS, stream, scores, n, most,
                  (uint32_t *)bitmap, nwords, (s2_counter *)count);
    return s2_launched();
}

s2_status s2_cuda_select_random_scratch_nbytes(int64_t n, int64_t *nbytes)
{
    if (n < 0 || n > S2_MAX_NUMEL) return S2_BAD_SIZE;
    if (nbytes == nullptr) return S2_NULL_POINTER;
    *nbytes = n * (int64_t)sizeof(s2_counter);
    return S2_OK;
}

s2_status s2_cuda_select_random(uint64_t seed, int64_t n, int64_t keep, uint8_t *bitmap,
                                int64_t nbytes, void *scratch, int64_t scratch_nbytes,
                                cudaStream_t stream)
{
    int64_t wanted;

    S2_RETURN_IF_ERROR(s2_check_selected(n, bitmap, nbytes));
    if (keep < 0 || keep > n) return S2_BAD_SIZE;
    S2_RETURN_IF_ERROR(s2_cuda_select_random_scratch_nbytes(n, &wanted));
    S2_RETURN_IF_ERROR(s2_check_scratch(scratch, scratch_nbytes, wanted));

    const random_choice r = {seed, n, keep, (s2_counter *)scratch};
    if (n != 0) cudaMemsetAsync(bitmap, 0, (size_t)nbytes, stream);
    if (keep != 0) {
        cudaMemsetAsync(scratch, 0, (size_t)scratch_nbytes, stream);
        S2_LAUNCH(find_first, s2_grid(keep, 1), S2_THREADS, stream, r);
        S2_LAUNCH(select_random, s2_grid(keep, 1), S2_THREADS, stream, r, (uint32_t *)bitmap);
    }
    return s2_launched();
}
