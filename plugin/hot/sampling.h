/* SPDX-License-Identifier: Apache-2.0 */
/* hot/sampling.h - kernel events for one operation in so many, to keep within the budget
 * (ask/budget.h). */
#ifndef NCCL_INSPECTOR_HOT_SAMPLING_H
#define NCCL_INSPECTOR_HOT_SAMPLING_H

#include "hot/state.h"
#include "nccl/abi.h"

/* From 2.31 on an operation without kernel events would mix up the times of all later ones
 * (hot/clockmix.h): they are asked for and not followed. */
#define KEEPS_MASK_SINCE 7u

/* While sampling: whether the operation that is told now is to be timed. NCCL looked at the mask
 * when the group began, and until the group ends nobody changes it. By the thread that calls
 * NCCL. */
static inline bool track_is_sampled(struct track *track)
{
	int *mask = atomic_load_explicit(&track->mask, memory_order_relaxed);

	if (track->options.api >= KEEPS_MASK_SINCE)
		return !atomic_load_explicit(&track->leaves_out, memory_order_relaxed);
	return !mask || __atomic_load_n(mask, __ATOMIC_RELAXED) & ABI_KERNEL_CH;
}

/* While sampling: decides whether the operations of the next group are to be timed, and has NCCL
 * asked accordingly. When a group has ended. */
void track_sample_next(struct track *track);

#endif
