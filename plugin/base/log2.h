/* SPDX-License-Identifier: Apache-2.0 */
/* base/log2.h - binary logarithm in fixed point (2^-20), without libm and in a few nanoseconds.
 *
 * The geometric mean of bandwidths is the mean of their logarithms; its sum is kept in the hot
 * path.
 */
#ifndef NCCL_INSPECTOR_BASE_LOG2_H
#define NCCL_INSPECTOR_BASE_LOG2_H

#include <stdint.h>

#define LOG2_ONE (1 << 20)
#define LOG2_TABLE_BITS 8u

extern int32_t log2_table[(1u << LOG2_TABLE_BITS) + 1];

/* Fills the table; call once before log2_q20. */
void log2_init(void);

/* The whole part of log2 of a value above 0, in one instruction. */
static inline unsigned log2_floor(uint64_t value)
{
	return 63u ^ (unsigned)__builtin_clzll(value);
}

/* log2(value) in 2^-20, with an error of less than 5 units; 0 for 0. After log2_init. */
static inline int32_t log2_q20(uint64_t value)
{
	if (!value)
		return 0;
	unsigned whole = log2_floor(value);
	uint64_t mantissa = value << (63u ^ whole) << 1; /* the bits after the leading one */
	unsigned slot = (unsigned)(mantissa >> (64 - LOG2_TABLE_BITS));
	int64_t rest = (int64_t)((mantissa << LOG2_TABLE_BITS) >> 44); /* 20 bits */
	int32_t low = log2_table[slot];

	return (int32_t)whole * LOG2_ONE + low +
	       (int32_t)(((log2_table[slot + 1] - low) * rest) >> 20);
}

#endif
