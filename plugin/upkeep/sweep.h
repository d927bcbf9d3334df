/* SPDX-License-Identifier: Apache-2.0 */
/* upkeep/sweep.h - what the beat does for operations that never complete by themselves.
 *
 * All functions want the inspector's lock: nothing may be folded meanwhile.
 */
#ifndef NCCL_INSPECTOR_UPKEEP_SWEEP_H
#define NCCL_INSPECTOR_UPKEEP_SWEEP_H

#include "hot/slotless.h"
#include "hot/state.h"
#include "upkeep/queue.h"

struct sweep {
	/* Started and stopped channels of the slot, mixed, one round ago. */
	uint64_t seen_channels[BOX_OPS];
	/* Calls of one round ago for which NCCL gives no operation, it seems. */
	uint32_t called_ops[BOX_KEYS];
	uint64_t called_bytes[BOX_KEYS];
	uint32_t called_in[BOX_KEYS]; /* generation of the key's communicator */
	uint64_t strays[GROUPS];
	struct slotless_sweep slotless;
	struct queue queue;
};

/* Brings box_comm.enqueued up to date. By the beat. */
void sweep_count(struct track *track);

/* One round over the slots, about once a second; `now_tick`: clock_ticks(). By the beat. */
void sweep_round(struct sweep *sweep, struct track *track, uint64_t now_tick);

#endif
