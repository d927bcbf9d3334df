/* SPDX-License-Identifier: Apache-2.0 */
#include "hot/state.h"

#define relaxed memory_order_relaxed

struct box_op all_free_ops[BOX_OPS];

void track_follow_comm(struct track *track, unsigned comm)
{
	const struct box_comm *record = &track->box->comms[comm];
	bool lives = atomic_load_explicit(&record->state, relaxed) == BOX_COMM_LIVE;
	bool is_mixed = atomic_load_explicit(&track->mixes[comm].since, relaxed);
	void *context = handle_context(comm, atomic_load_explicit(&record->generation, relaxed));

	atomic_store_explicit(&track->comms[comm].context,
	                      lives && track_is_fast(track) && !is_mixed ? context : NULL, relaxed);
}

void track_end_comm(struct track *track, unsigned comm)
{
	atomic_store_explicit(&track->comms[comm].context, NULL, relaxed);
}
