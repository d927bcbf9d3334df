/* SPDX-License-Identifier: Apache-2.0 */
#include "slots.h"

#include <stddef.h>

#define relaxed memory_order_relaxed

#define CROWDED 8u /* slots in use, one after the other */
#define MOVES 8u
#define OVERTAKEN_OPS 64u
#define GIVEN_UP_AT_ONCE 64u

bool slots_overtaken(const struct track *track, const struct box_op *op)
{
	uint32_t index = atomic_load_explicit(&op->comm, relaxed);
	const struct box_comm *comm = &track->box->comms[index % BOX_COMMS];

	return !atomic_load_explicit(&op->started_channels, relaxed) &&
	       atomic_load_explicit(&comm->last_sequence, relaxed) >
		       atomic_load_explicit(&op->index, relaxed) + OVERTAKEN_OPS;
}

/* The whole pool was looked at in vain, or nearly: look at each slot, and give up what waits in vain itself. */
static struct box_op *search_all(struct track *track, uint32_t *generation)
{
	unsigned given_up = 0;

	for (unsigned i = 0; i < BOX_OPS && given_up < GIVEN_UP_AT_ONCE; i++) {
		struct box_op *op = &track->ops[i];
		uint32_t found = atomic_load_explicit(&op->generation, memory_order_acquire);

		if (!given_up && slots_take_this(op, generation))
			return op;
		if (track_in_use(found) && slots_overtaken(track, op))
			given_up += track_end_untimed(track, op, found);
	}
	for (unsigned i = 0; given_up && i < BOX_OPS; i++)
		if (slots_take_this(&track->ops[i], generation))
			return &track->ops[i];
	return NULL;
}

struct box_op *slots_search(struct track *track, struct track_comm *app, uint32_t *generation)
{
	uint32_t at = atomic_load_explicit(&app->cursor, relaxed);
	struct box_op *op;

	for (unsigned tries = 0; tries < CROWDED * MOVES; tries++) {
		op = &track->ops[at % BOX_OPS];
		at = slots_next(at);
		if (slots_take_this(op, generation)) {
			atomic_store_explicit(&app->cursor, at, relaxed);
			return op;
		}
		if (tries % CROWDED == CROWDED - 1)
			at += 29 * SLOTS_WINDOW; /* any odd number visits all windows */
	}
	atomic_store_explicit(&app->cursor, at, relaxed);
	if (atomic_load_explicit(&track->full, relaxed))
		return NULL;
	op = search_all(track, generation);
	if (!op)
		atomic_store_explicit(&track->full, true, relaxed);
	return op;
}
