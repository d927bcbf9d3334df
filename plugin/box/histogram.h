/* SPDX-License-Identifier: Apache-2.0 */
/* box/histogram.h - a histogram of times with a bounded relative error.
 *
 * 32 equal buckets below 1024 ns, then 32 equal buckets for each doubling up to
 * 2^37 ns (137 s), above which the last bucket takes all. A time in bucket i is
 * known to 1/64 of itself (1.6 %) when the middle of the bucket stands for it.
 */
#ifndef NCCL_INSPECTOR_BOX_HISTOGRAM_H
#define NCCL_INSPECTOR_BOX_HISTOGRAM_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/log2.h"

#define HIST_SUB_BITS 5u
#define HIST_SUB (1u << HIST_SUB_BITS)
#define HIST_FIRST_BITS 10u
#define HIST_LAST_BITS 37u
#define HIST_BUCKETS (HIST_SUB * (1u + HIST_LAST_BITS - HIST_FIRST_BITS)) /* 896 */

struct hist {
	/* When one is full all are halved: their shape is what is wanted of them. */
	_Atomic uint32_t count[HIST_BUCKETS];
};

/* The bucket of a time. */
static inline unsigned hist_bucket(uint64_t ns)
{
	if (ns < (1u << HIST_FIRST_BITS))
		return (unsigned)(ns >> (HIST_FIRST_BITS - HIST_SUB_BITS));
	unsigned log2 = log2_floor(ns);

	if (log2 >= HIST_LAST_BITS)
		return HIST_BUCKETS - 1;
	unsigned sub = (unsigned)(ns >> (log2 - HIST_SUB_BITS)) & (HIST_SUB - 1);

	return HIST_SUB * (1u + log2 - HIST_FIRST_BITS) + sub;
}

/* Lower bound of bucket i, ns. */
static inline uint64_t hist_lower_ns(unsigned i)
{
	if (i < HIST_SUB)
		return (uint64_t)i << (HIST_FIRST_BITS - HIST_SUB_BITS);
	unsigned log2 = i / HIST_SUB - 1u + HIST_FIRST_BITS;

	return (uint64_t)(HIST_SUB + i % HIST_SUB) << (log2 - HIST_SUB_BITS);
}

#endif
