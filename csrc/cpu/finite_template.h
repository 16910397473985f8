/* SPDX-License-Identifier: MIT */
/*
 * Whether all elements are finite.  Before including this file define
 *
 *   TARGET          attribute of the function
 */

/*
 * An element is infinite or a NaN where all bits of its exponent are set.  Exactly then does adding
 * one to the exponent carry into the sign, which has been masked out; the carries of all elements
 * are ORed.  So a plain loop without a branch, that the compiler turns into vectors.
 */
#define ANY_CARRY(type)                                                                            \
    {                                                                                              \
        const type mask = (type)exponent, unit = (type)(exponent & (~exponent + 1));               \
        type carry = 0;                                                                            \
        for (int64_t i = 0; i < n; i++) {                                                          \
            type element;                                                                          \
            memcpy(&element, values + i * (int64_t)sizeof(type), sizeof(type));                    \
            carry |= (type)((element & mask) + unit);                                              \
        }                                                                                          \
        return carry >> (8 * sizeof(type) - 1) == 0;                                               \
    }

static TARGET bool all_finite(const uint8_t *values, int64_t n, int64_t width, uint64_t exponent)
{
    if (width == 8) ANY_CARRY(uint64_t)
    if (width == 4) ANY_CARRY(uint32_t)
    ANY_CARRY(uint16_t)
}

#undef ANY_CARRY
