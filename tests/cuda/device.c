/* SPDX-License-Identifier: MIT */
#include "device.h"

guarded device_arrays[DEVICE_ARRAYS];
int device_array_is_used[DEVICE_ARRAYS];

void device_new(void)
{
    device_open();
    for (int i = 0; i < DEVICE_ARRAYS; i++)
        device_arrays[i] = device_memory_new(DEVICE_NBYTES);
}

void device_delete(void)
{
    for (int i = 0; i < DEVICE_ARRAYS; i++)
        device_memory_delete(&device_arrays[i]);
    device_close();
}

void *device_array(int array, const void *source, int64_t nbytes, int64_t unit)
{
    placement where = {random_chance(50), random_chance(60) ? unit * random_below(4) : 0};
    if (where.at_back) where.distance += (unit - nbytes % unit) % unit;
    CHECK(array < DEVICE_ARRAYS);
    device_array_is_used[array] = 1;
    return source == NULL ? guarded_place(&device_arrays[array], nbytes, where)
                          : guarded_copy(&device_arrays[array], source, nbytes, where);
}

s2_cuda_layout device_layout(const case_layout *c)
{
    int64_t nbytes = c->layout.nsegments * (int64_t)sizeof(s2_segment);
    return (s2_cuda_layout){&c->layout, device_array(0, c->layout.segments, nbytes, 8)};
}

case_layout many_segments_new(void)
{
    case_layout c;
    memset(&c, 0, sizeof(c));
    c.memory = guarded_new(MANY_SEGMENTS * (int64_t)sizeof(s2_segment));
    s2_segment *segments =
        guarded_place(&c.memory, MANY_SEGMENTS * (int64_t)sizeof(s2_segment), (placement){1, 0});
    int64_t offset = 0, bit = 0;
    for (int s = 0; s < MANY_SEGMENTS; s++) {
        int64_t block = 1 + random_below(5), numel = random_below(20) * random_below(2);
        offset += random_below(3);
        bit += 64 * (random_below(4) == 0);
        segments[s] = (s2_segment){offset, numel, block, bit};
        offset += numel;
        bit = (bit + (numel + block - 1) / block + 63) / 64 * 64;
        c.nblocks += (numel + block - 1) / block;
    }
    c.layout = (s2_layout){segments, MANY_SEGMENTS, offset};
    CHECK(s2_layout_bitmap_nbytes(&c.layout, &c.bitmap_nbytes) == S2_OK);
    return c;
}

void device_check(void)
{
    for (int i = 0; i < DEVICE_ARRAYS; i++)
        guarded_check(&device_arrays[i]);
}
