/* SPDX-License-Identifier: Apache-2.0 */
/* hot/slotless.h - members of a group that found no slot (hot/groups.h): their handle is the
 * group's token. */
#ifndef NCCL_INSPECTOR_HOT_SLOTLESS_H
#define NCCL_INSPECTOR_HOT_SLOTLESS_H

#include "hot/groups.h"
#include "hot/state.h"

/* What a round of the sweep remembers of each group. */
struct slotless_sweep {
	uint64_t token[GROUPS], channels[GROUPS]; /* started and stopped, mixed */
	uint64_t since_tick[GROUPS];              /* they have been so */
};

/* Adds a member, which `group` (its number + 1) has already counted, and returns its handle. By the
 * thread that calls NCCL. */
void *slotless_member(struct track *track, uint32_t group, const struct slotless *member);

/* As track_kernel_start and track_kernel_stop, by the bits of the handle. By the thread that
 * reports the kernels. */
void *slotless_kernel_start(struct track *track, uint64_t bits, uint64_t gpu_ns);
int slotless_kernel_stop(struct track *track, uint64_t bits, uint64_t gpu_ns);

/* For the sweep, once a second. Ends the members of each group of which
 * - all announced channels have ended, or
 * - all channels that began have ended and nothing has come for `settled_ns`, or
 * - nothing began for `overtaken_ns` while later operations were completed, or
 * - the communicator is gone. */
void slotless_round(struct slotless_sweep *sweep, struct track *track, uint64_t now_tick,
                    uint64_t settled_ns, uint64_t overtaken_ns);

#endif
