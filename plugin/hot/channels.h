/* SPDX-License-Identifier: Apache-2.0 */
/* hot/channels.h - how many channels an operation has where NCCL does not say.
 *
 * NCCL 2.27 to 2.30 announces no channels for what runs on CollNet (SHARP), and for NVLS on several
 * nodes: src/enqueue.cc sets task->nChannels in its other branch only. The kernel events come all
 * the same. How many belong to an operation is known once no more have come for long
 * (upkeep/sweep.c); the next operation of its kind and size is over after as many.
 */
#ifndef NCCL_INSPECTOR_HOT_CHANNELS_H
#define NCCL_INSPECTOR_HOT_CHANNELS_H

#include "box/box.h"
#include "nccl/event.h"

#define CHANNELS_LEARNED 256u
/* One operation in so many is followed until it is still, whatever was learned: more channels would
 * not be seen. */
#define CHANNELS_PROBE 64u

struct channels {
	/* Hash of a kind and a size, how often fewer came, how many came. */
	_Atomic uint64_t learned[CHANNELS_LEARNED];
};

/* Whether the kernel events of an algorithm come although none are announced. */
static inline bool channels_untold(unsigned algo, int nnodes)
{
	return algo == BOX_ALGO_COLLNET_DIRECT || algo == BOX_ALGO_COLLNET_CHAIN ||
	       (algo == BOX_ALGO_NVLS && nnodes > 1);
}

/* Returns how many channels to expect of an operation of that key and size; EVENT_CHANNELS_UNKNOWN:
 * none was seen to its end yet. Any thread. */
uint8_t channels_expected(const struct channels *channels, uint32_t key, uint64_t bytes);

/* An operation of that key and size had `count` channels (1 to 64). By the sweep only. */
void channels_learn(struct channels *channels, uint32_t key, uint64_t bytes, uint8_t count);

#endif
