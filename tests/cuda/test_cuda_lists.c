/* SPDX-License-Identifier: MIT */
/* That the kernels write and read packed lists as the C core does, and know what is no list. */
#include "device.h"

enum { POSITIONS, LIST, VALID, SCRATCH };
enum { MAX_COUNT = 3000 };

static int64_t positions[MAX_COUNT], count, nbits, nbytes;
static uint8_t *list; /* as the C core writes it */

/* Lists from none to all of the bits, of few bits and of very many. */
static void draw_list(int i)
{
    int64_t gap = random_chance(20) ? 1 : 1 + random_below((int64_t)1 << random_below(34));
    int64_t next = random_below(gap);
    count = random_chance(20) ? random_below(3) : random_below(MAX_COUNT + 1);
    for (int64_t k = 0; k < count; k++) {
        positions[k] = next;
        next += 1 + random_below(gap);
    }
    nbits = next + (random_chance(50) ? 0 : random_below(gap));
    if (count == 0) nbits = random_below(2) * nbits;
    test_case("list %d: %" PRId64 " of %" PRId64 " bits", i, count, nbits);
    CHECK(s2_list_nbytes(nbits, count, &nbytes) == S2_OK);
    list = test_malloc(nbytes);
    CHECK(s2_list_encode(positions, count, nbits, list, nbytes) == S2_OK);
}

static void check_decode(void)
{
    static int64_t wanted[MAX_COUNT];
    int64_t scratch_nbytes;
    s2_status status = s2_list_decode(list, nbytes, count, nbits, wanted);
    CHECK(s2_cuda_list_scratch_nbytes(nbits, count, &scratch_nbytes) == S2_OK);
    const uint8_t *source = device_array(LIST, list, nbytes, 8);
    int64_t *got = device_array(POSITIONS, NULL, 8 * count, 8);
    int *valid = device_array(VALID, NULL, 4, 4);
    void *scratch = device_array(SCRATCH, NULL, scratch_nbytes, 16);
    ON_DEVICE(NULL, s2_cuda_list_decode(source, nbytes, count, nbits, got, valid, scratch,
                                        scratch_nbytes, device_stream));
    CHECK(*valid == (status == S2_OK));
    if (status == S2_OK) CHECK(memcmp(got, wanted, (size_t)(8 * count)) == 0);
}

static void test_list(int i)
{
    draw_list(i);
    const int64_t *source = device_array(POSITIONS, positions, 8 * count, 8);
    uint8_t *got = device_array(LIST, NULL, nbytes, 8);
    ON_DEVICE(NULL, s2_cuda_list_encode(source, count, nbits, got, nbytes, device_stream));
    CHECK(memcmp(got, list, (size_t)nbytes) == 0);
    check_decode();

    /* And now for what is no list, or another. */
    for (int64_t flips = 1 + random_below(3); nbytes > 0 && flips > 0; flips--) {
        int64_t bit = random_below(8 * nbytes);
        list[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    check_decode();
    free(list);
}

/* Positions that the rules do not allow do no harm. */
static void test_no_positions(void)
{
    draw_list(-1);
    for (int64_t k = 0; k < count; k++)
        positions[k] = (int64_t)random_bits();
    const int64_t *source = device_array(POSITIONS, positions, 8 * count, 8);
    uint8_t *got = device_array(LIST, NULL, nbytes, 8);
    ON_DEVICE(NULL, s2_cuda_list_encode(source, count, nbits, got, nbytes, device_stream));
    free(list);
}

#define REFUSES(status, call)                                                                      \
    do {                                                                                           \
        test_case("%s", #call);                                                                    \
        CHECK((call) == (status));                                                                 \
    } while (0)

/* Nothing is launched: the stream is none. */
static void test_bad_arguments(void)
{
    uint64_t memory[2] = {0}, scratch[16] = {0};
    int64_t numbers[4] = {3, 12, 13, 27}, n;
    uint8_t *bytes = (uint8_t *)memory;
    int valid;
    REFUSES(S2_BAD_SIZE, s2_cuda_list_encode(numbers, 4, 3, bytes, 16, NULL));
    REFUSES(S2_BAD_SIZE, s2_cuda_list_encode(numbers, 4, 32, bytes, 8, NULL));
    REFUSES(S2_NULL_POINTER, s2_cuda_list_encode(NULL, 4, 32, bytes, 16, NULL));
    REFUSES(S2_NULL_POINTER, s2_cuda_list_encode(numbers, 4, 32, NULL, 16, NULL));
    REFUSES(S2_BAD_ADDRESS, s2_cuda_list_encode(numbers, 4, 32, bytes + 1, 16, NULL));
    REFUSES(S2_BAD_SIZE, s2_cuda_list_scratch_nbytes(-1, 4, &n));
    REFUSES(S2_NULL_POINTER,
            s2_cuda_list_decode(bytes, 16, 4, 32, numbers, NULL, scratch, 56, NULL));
    REFUSES(S2_BAD_SIZE, s2_cuda_list_decode(bytes, 16, 4, 32, numbers, &valid, scratch, 8, NULL));
}

int main(void)
{
    test_begin("test_cuda_lists");
    device_new();
    for (int i = 0; i < 80; i++)
        test_list(i);
    for (int i = 0; i < 10; i++)
        test_no_positions();
    test_bad_arguments();
    device_delete();
    return test_end();
}
