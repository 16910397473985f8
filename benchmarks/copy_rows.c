/* SPDX-License-Identifier: MIT */
/*
 * The least that a gather or a scatter of rows can be: one memcpy a row.  bench_kernels.py compiles
 * this when it runs, and sets the kernels beside it.
 */
#include <stdint.h>
#include <string.h>

void gather_rows(char *packed, const char *table, const int64_t *rows, int64_t count, size_t nbytes)
{
    for (int64_t i = 0; i < count; i++)
        memcpy(packed + (size_t)i * nbytes, table + (size_t)rows[i] * nbytes, nbytes);
}

void scatter_rows(const char *packed, char *table, const int64_t *rows, int64_t count,
                  size_t nbytes)
{
    for (int64_t i = 0; i < count; i++)
        memcpy(table + (size_t)rows[i] * nbytes, packed + (size_t)i * nbytes, nbytes);
}
