/* SPDX-License-Identifier: Apache-2.0 */
/* hot/reclaim.h - operations that will get no kernel event any more, and their slots when the pool
 * is out of them. */
#ifndef NCCL_INSPECTOR_HOT_RECLAIM_H
#define NCCL_INSPECTOR_HOT_RECLAIM_H

#include "hot/slots.h"
#include "hot/state.h"

/* An operation is overtaken when so many later ones of its communicator are over. */
#define RECLAIM_OVERTAKEN_OPS 64u

/* Whether an operation is overtaken and has no kernel event: it will get none (NCCL lost the start,
 * or its part had no work). Any thread. */
bool reclaim_is_overtaken(const struct track *track, const struct box_op *op);

/* Whether an operation is overtaken, whatever its own events. Any thread. */
bool reclaim_is_left_behind(const struct track *track, const struct box_op *op);

/* For reclaim_take: looks further than at the next slot, and then gives up what waits in vain. */
struct box_op *reclaim_search(struct track *track, unsigned comm);

/* A slot for an operation of that communicator, in the state of being filled. When the pool has
 * none, what waits in vain is given up for it. NULL: that was in vain, too, and until the sweep's
 * next round nothing more is given up. By the thread that calls NCCL. */
static inline struct box_op *reclaim_take(struct track *track, unsigned comm)
{
	uint32_t slot, generation;
	struct box_op *op = slots_take_next(track, &track->comms[comm], &slot, &generation);

	return track_likely(op) ? op : reclaim_search(track, comm);
}

#endif
