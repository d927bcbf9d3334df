/* SPDX-License-Identifier: Apache-2.0 */
/* hot/slotless.h - members of a group that found no slot (hot/groups.h): their handle is the group's token. */
#ifndef NCCL_INSPECTOR_HOT_SLOTLESS_H
#define NCCL_INSPECTOR_HOT_SLOTLESS_H

#include "hot/groups.h"
#include "hot/state.h"

/* What a round of the sweep remembers of each group. */
struct slotless_sweep {
	uint64_t token[GROUPS], channels[GROUPS]; /* started and stopped, mixed */
	uint64_t since_tick[GROUPS];              /* they have been so */
};

/* The handle of a member that `group` (its number + 1) has already counted. */
void *slotless_member(struct track *track, uint32_t group, const struct slotless *member);

/* As track_kernel_start and track_kernel_stop, by the handle's word. */
void *slotless_kernel_start(struct track *track, uint64_t bits, uint64_t gpu_ns);
int slotless_kernel_stop(struct track *track, uint64_t bits, uint64_t gpu_ns);

/* For upkeep/sweep.c, once a second: ends those whose announced channels have ended, those that have been still for
 * `settled_ns` with all channels ended that began, and those of which nothing began in `overtaken_ns` while later operations
 * were completed, or whose communicator is gone. */
void slotless_round(struct slotless_sweep *sweep, struct track *track, uint64_t now_tick, uint64_t settled_ns,
		    uint64_t overtaken_ns);

#endif
