/* SPDX-License-Identifier: Apache-2.0 */
/* slots.h - the pool of box_op for track.c. No lock: a slot belongs to who turns its state from free to filling. */
#ifndef NCCL_INSPECTOR_SLOTS_H
#define NCCL_INSPECTOR_SLOTS_H

#include "track.h"

/* A communicator goes round in a window of slots that stay in the cache, and moves on where that is crowded. */
#define SLOTS_WINDOW 64u

static inline bool slots_take_this(struct box_op *op, uint32_t *generation)
{
	uint32_t found = atomic_load_explicit(&op->generation, memory_order_relaxed);

	*generation = found;
	return (found & BOX_OP_STATE_MASK) == BOX_OP_FREE &&
	       atomic_compare_exchange_strong_explicit(&op->generation, &found, found | BOX_OP_FILLING,
						       memory_order_acquire, memory_order_relaxed);
}

static inline uint32_t slots_next(uint32_t at)
{
	return (at & ~(SLOTS_WINDOW - 1)) | ((at + 1) & (SLOTS_WINDOW - 1));
}

/* For slots_take: looks further than at the next slot. */
struct box_op *slots_search(struct track *track, struct track_comm *app, uint32_t *generation);

/* A slot for a communicator, being filled, and its generation then; NULL when all are in use. The pool gives up what
 * never got a kernel event and was overtaken by many later operations before it is out of slots. */
static inline struct box_op *slots_take(struct track *track, struct track_comm *app, uint32_t *generation)
{
	uint32_t at = atomic_load_explicit(&app->cursor, memory_order_relaxed);
	struct box_op *op = &track->ops[at % BOX_OPS];

	if (!track_likely(slots_take_this(op, generation)))
		return slots_search(track, app, generation);
	at = slots_next(at);
	atomic_store_explicit(&app->cursor, at, memory_order_relaxed);
	/* The next one was last written by the other thread: have it here when it is wanted. */
	__builtin_prefetch(&track->ops[at % BOX_OPS], 1);
	return op;
}

/* The caller has ended this use. */
static inline void slots_free(struct track *track, struct box_op *op, uint32_t generation)
{
	atomic_store_explicit(&op->gpu_start_ns, 0, memory_order_relaxed);
	atomic_store_explicit(&op->gpu_stop_ns, 0, memory_order_relaxed);
	atomic_store_explicit(&op->started_channels, 0, memory_order_relaxed);
	atomic_store_explicit(&op->stopped_channels, 0, memory_order_relaxed);
	atomic_store_explicit(&op->synced_ns, 0, memory_order_relaxed);
	atomic_store_explicit(&op->event_tick, 0, memory_order_relaxed);
	atomic_store_explicit(&op->known_tick, 0, memory_order_relaxed);
	atomic_store_explicit(&op->generation, (generation & ~BOX_OP_STATE_MASK) + 4, memory_order_release);
	if (!track_likely(!atomic_load_explicit(&track->full, memory_order_relaxed)))
		atomic_store_explicit(&track->full, false, memory_order_relaxed);
}

/* Whether an operation has no kernel event and later ones of its communicator are over: it will get none (a lost
 * start, a part without work). */
bool slots_overtaken(const struct track *track, const struct box_op *op);

#endif
