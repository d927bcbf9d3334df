/* SPDX-License-Identifier: Apache-2.0 */
#include "hot/sampling.h"

#include "nccl/abi.h"

#define relaxed memory_order_relaxed

/* The golden ratio has no period in common with what the application repeats, nor with
 * TRACK_HOT_SAMPLE. */
void track_sample_next(struct track *track)
{
	uint32_t every = atomic_load_explicit(&track->sample_every, relaxed);
	uint32_t count = atomic_fetch_add_explicit(&track->sample_count, 1, relaxed);
	bool full = (uint64_t)(count * 0x9e3779b1u) * every >> 32 == 0;
	int *mask = atomic_load_explicit(&track->mask, relaxed);
	int all = atomic_load_explicit(&track->mask_all, relaxed), light = all & ~ABI_DETAIL;
	int had = full ? light : all;

	if (track->options.api >= KEEPS_MASK_SINCE) {
		atomic_store_explicit(&track->leaves_out, !full, relaxed);
		return;
	}
	/* Only between our own two values: any other is somebody else's, and stays. */
	if (mask && all)
		__atomic_compare_exchange_n(mask, &had, full ? all : light, false, __ATOMIC_RELAXED,
		                            __ATOMIC_RELAXED);
}
