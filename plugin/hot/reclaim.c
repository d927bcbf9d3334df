/* SPDX-License-Identifier: Apache-2.0 */
#include "hot/reclaim.h"

#include "hot/complete.h"
#include "nccl/event.h"

#define relaxed memory_order_relaxed
#define GIVEN_UP_AT_ONCE 64u

bool reclaim_is_left_behind(const struct track *track, const struct box_op *op)
{
	uint32_t index = atomic_load_explicit(&op->comm, relaxed);
	const struct box_comm *comm = &track->box->comms[index % BOX_COMMS];

	return atomic_load_explicit(&comm->last_sequence, relaxed) >
	       atomic_load_explicit(&op->index, relaxed) + RECLAIM_OVERTAKEN_OPS;
}

bool reclaim_is_overtaken(const struct track *track, const struct box_op *op)
{
	return !atomic_load_explicit(&op->started_channels, relaxed) &&
	       reclaim_is_left_behind(track, op);
}

/* NCCL does not say how many channels come (by 2.26 of any operation), so the sweep waits for more.
 * Where slots are short that many later ones must do. */
static bool is_settled(const struct track *track, const struct box_op *op)
{
	bool is_untold = track->options.timing == BOX_TIMING_CPU ||
	                 atomic_load_explicit(&op->kind, relaxed) >> 24 == EVENT_CHANNELS_UNKNOWN;
	uint64_t started = atomic_load_explicit(&op->started_channels, relaxed);
	uint32_t comm = atomic_load_explicit(&op->comm, relaxed);

	return is_untold && started &&
	       started == atomic_load_explicit(&op->stopped_channels, memory_order_acquire) &&
	       atomic_load_explicit(&track->comms[comm % BOX_LIVE_COMMS].index, relaxed) >
	           atomic_load_explicit(&op->index, relaxed) + RECLAIM_OVERTAKEN_OPS;
}

/* Looks at each slot, and gives up what waits in vain itself. */
static void give_up(struct track *track)
{
	unsigned given_up = 0;

	/* Everybody's first: of another thread's ring the caller may take none. */
	for (unsigned i = 0; i < BOX_OPS && given_up < GIVEN_UP_AT_ONCE; i++) {
		struct box_op *used = &track->ops[(SLOTS_SHARED + i) % BOX_OPS];
		uint32_t found = atomic_load_explicit(&used->generation, memory_order_acquire);

		if (track_in_use(found) && reclaim_is_overtaken(track, used))
			given_up += track_end_untimed(track, used, found, TRACK_SLOT_HANDED_ON);
		else if (track_in_use(found) && is_settled(track, used))
			given_up += track_settle(track, used, found, TRACK_SLOT_FREE);
	}
}

struct box_op *reclaim_search(struct track *track, unsigned comm)
{
	struct box_op *op = slots_search(track, comm);

	if (op || atomic_load_explicit(&track->full, relaxed))
		return op;
	give_up(track);
	op = slots_take_any(track, comm);
	if (!op)
		atomic_store_explicit(&track->full, true, relaxed);
	return op;
}
