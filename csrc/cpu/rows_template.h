/* SPDX-License-Identifier: MIT */
/*
 * Loops over rows.  They are compiled for an instruction set as a whole: a copy that is a function
 * of its own, called once a row, cost a quarter of the speed (of 2 KB rows, with AVX-512).  Before
 * including this file define
 *
 *   TARGET                           attribute of the functions
 *   COPY_ROW(to, from, nbytes)       as memcpy()
 *   STREAM_ROW(to, from, nbytes)     the same past the caches, without reading the lines it writes;
 *                                    addresses and nbytes are multiples of 64
 *   STREAM_FENCE()                   makes streamed rows visible to others
 */

static TARGET void gather_rows(const uint8_t *values, const int64_t *positions, int64_t first,
                               int64_t n, int64_t row_nbytes, uint8_t *packed, bool stream)
{
    const int64_t ahead = s2_rows_ahead(row_nbytes);

    for (int64_t i = 0; i < n; i++, packed += row_nbytes) {
        const uint8_t *row = values + (positions[i] - first) * row_nbytes;
        if (i + ahead < n)
            s2_prefetch_row(values + (positions[i + ahead] - first) * row_nbytes, row_nbytes);
        if (stream)
            STREAM_ROW(packed, row, row_nbytes);
        else
            COPY_ROW(packed, row, row_nbytes);
    }
    if (stream) {
        STREAM_FENCE();
    }
}

static TARGET void scatter_rows(uint8_t *values, const int64_t *positions, int64_t first, int64_t n,
                                int64_t row_nbytes, const uint8_t *packed, bool stream)
{
    const int64_t ahead = s2_rows_ahead(row_nbytes);

    for (int64_t i = 0; i < n; i++, packed += row_nbytes) {
        uint8_t *row = values + (positions[i] - first) * row_nbytes;
        if (stream) {
            STREAM_ROW(row, packed, row_nbytes);
            continue;
        }
        if (i + ahead < n)
            s2_prefetch_row(values + (positions[i + ahead] - first) * row_nbytes, row_nbytes);
        COPY_ROW(row, packed, row_nbytes);
    }
    if (stream) {
        STREAM_FENCE();
    }
}

#undef COPY_ROW
#undef STREAM_ROW
#undef STREAM_FENCE
