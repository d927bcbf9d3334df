/* SPDX-License-Identifier: Apache-2.0 */
#include "hot/slots.h"

#include <stddef.h>

#include "hot/owner.h"

#define relaxed memory_order_relaxed

#define LOOKS 16u
#define CROWDED 8u /* slots in use, one after the other */
#define MOVES 8u
#define WINDOW 64u
/* An application that runs far ahead of its GPU has all slots of its thread in use, for long: it
 * gets more rings, while some are left to other threads, and then everybody's. */
#define RINGS_LEFT 4u
#define CROWDED_FOR 32u

static bool take_shared(struct box_op *op)
{
	uint32_t found = atomic_load_explicit(&op->generation, relaxed);

	if ((found & BOX_OP_STATE_MASK) != BOX_OP_FREE ||
	    !atomic_compare_exchange_strong_explicit(
		&op->generation, &found, found | BOX_OP_FILLING, memory_order_acquire, relaxed))
		return false;
	order_stores();
	return true;
}

/* Whether an operation could have that ring's next slot at once. */
static bool has_next(const struct track *track, const struct track_ring *ring)
{
	const struct box_op *op = &track->ops[atomic_load_explicit(&ring->cursor, relaxed)];

	return (atomic_load_explicit(&op->generation, memory_order_acquire) & BOX_OP_STATE_MASK) ==
	       BOX_OP_FREE;
}

/* Gives the thread a ring that no thread has, unless fewer than `left` would remain. TRACK_RINGS:
 * it got none. */
static uint32_t new_ring(struct track *track, uint64_t self, uint32_t left)
{
	uint32_t unowned = 0, ring;

	for (ring = 0; ring < TRACK_RINGS; ring++)
		unowned += !atomic_load_explicit(&track->rings[ring].owner, relaxed);
	if (unowned <= left)
		return TRACK_RINGS;
	for (ring = 0; ring < TRACK_RINGS; ring++) {
		uint64_t nobody = 0;

		if (!atomic_load_explicit(&track->rings[ring].owner, relaxed) &&
		    atomic_compare_exchange_strong(&track->rings[ring].owner, &nobody, self))
			break;
	}
	return ring;
}

/* A free slot of a ring, among the next ones. */
static struct box_op *take_of_ring(struct track *track, struct track_ring *ring)
{
	uint32_t at = atomic_load_explicit(&ring->cursor, relaxed);

	for (unsigned i = 0; i < LOOKS; i++, at = slots_next(at)) {
		struct box_op *op = &track->ops[at];
		uint32_t generation = atomic_load_explicit(&op->generation, memory_order_acquire);

		if ((generation & BOX_OP_STATE_MASK) == BOX_OP_FREE) {
			slots_begin(op, generation);
			atomic_store_explicit(&ring->cursor, slots_next(at), relaxed);
			return op;
		}
	}
	atomic_store_explicit(&ring->cursor, at, relaxed);
	return NULL;
}

/* A ring that the thread already has and whose next slot is free. TRACK_RINGS: it has no such
 * ring. */
static uint32_t other_ring(const struct track *track, uint64_t self)
{
	uint32_t ring = 0;

	while (ring < TRACK_RINGS &&
	       !(atomic_load_explicit(&track->rings[ring].owner, relaxed) == self &&
	         has_next(track, &track->rings[ring])))
		ring++;
	return ring;
}

/* The thread's ring in that communicator; a new one if it has none. */
static uint32_t ring_of_thread(struct track *track, const struct track_comm *app, uint64_t self)
{
	uint32_t ring = atomic_load_explicit(&app->ring, relaxed);

	if (atomic_load_explicit(&track->rings[ring].owner, relaxed) == self)
		return ring;
	for (ring = 0; ring < TRACK_RINGS; ring++)
		if (atomic_load_explicit(&track->rings[ring].owner, relaxed) == self)
			return ring;
	return new_ring(track, self, 0);
}

/* The next free slot of the thread's own. */
static struct box_op *take_own(struct track *track, struct track_comm *app)
{
	uint64_t self = owner_id();
	uint32_t mine = ring_of_thread(track, app, self), other;

	if (mine == TRACK_RINGS)
		return NULL;
	other = has_next(track, &track->rings[mine]) ? mine : other_ring(track, self);
	if (other < TRACK_RINGS)
		mine = other;
	struct box_op *op = take_of_ring(track, &track->rings[mine]);

	if (!op) {
		mine = new_ring(track, self, RINGS_LEFT);
		op = mine < TRACK_RINGS ? take_of_ring(track, &track->rings[mine]) : NULL;
	}
	if (op)
		atomic_store_explicit(&app->ring, mine, relaxed);
	return op;
}

/* A window of the shared half that stays in the cache; on to another one where it is crowded. */
static struct box_op *take_near(struct track *track, struct track_comm *app)
{
	uint32_t at = atomic_load_explicit(&app->shared_cursor, relaxed);
	struct box_op *op = NULL;

	for (unsigned tries = 1; tries <= CROWDED * MOVES && !op; tries++) {
		op = &track->ops[SLOTS_SHARED + at % (BOX_OPS - SLOTS_SHARED)];
		at = (at & ~(WINDOW - 1)) | ((at + 1) & (WINDOW - 1));
		if (take_shared(op))
			break;
		op = NULL;
		if (tries % CROWDED == 0)
			at += 29 * WINDOW; /* any odd number visits all windows */
	}
	atomic_store_explicit(&app->shared_cursor, at, relaxed);
	return op;
}

/* How many operations a communicator may still have in flight, the one that wants a slot
 * included. */
static uint64_t share_left(const struct track *track, unsigned comm)
{
	const struct box_comm *own = &track->box->comms[comm];
	uint64_t over = atomic_load_explicit(&own->completed, relaxed) +
	                atomic_load_explicit(&own->untimed, relaxed) +
	                atomic_load_explicit(&own->lost, relaxed);
	uint64_t called = atomic_load_explicit(&track->comms[comm].index, relaxed),
		 end = over + SLOTS_OF_COMM + 1;

	return called < end ? end - called : 0;
}

struct box_op *slots_take_any(struct track *track, unsigned comm)
{
	struct box_op *op = NULL;

	if (!share_left(track, comm))
		return NULL;
	for (unsigned i = 0; i < SLOTS_RING / LOOKS && !op; i++)
		op = take_own(track, &track->comms[comm]);
	for (unsigned i = SLOTS_SHARED; i < BOX_OPS && !op; i++)
		if (take_shared(&track->ops[i]))
			op = &track->ops[i];
	return op;
}

/* Looks for a free slot of the thread's own first, and then of everybody's. */
static struct box_op *take(struct track *track, unsigned comm, uint64_t left)
{
	struct track_comm *app = &track->comms[comm];
	struct box_op *op = take_own(track, app);

	if (op)
		return op;
	op = take_near(track, app);
	if (op)
		atomic_store_explicit(
		    &app->crowded, left <= CROWDED_FOR ? (uint32_t)left - 1 : CROWDED_FOR, relaxed);
	return op;
}

/* As it was a few operations ago: without a look at the thread's own slots, nor at its share. */
static struct box_op *take_again(struct track *track, struct track_comm *app)
{
	uint32_t crowded = atomic_load_explicit(&app->crowded, relaxed);
	const struct track_ring *ring = &track->rings[atomic_load_explicit(&app->ring, relaxed)];

	if (!crowded || atomic_load_explicit(&ring->owner, relaxed) != owner_id())
		return NULL;
	atomic_store_explicit(&app->crowded, crowded - 1, relaxed);
	return take_near(track, app);
}

struct box_op *slots_search(struct track *track, unsigned comm)
{
	struct box_op *op = take_again(track, &track->comms[comm]);

	if (op)
		return op;
	uint64_t left = share_left(track, comm);

	return left ? take(track, comm, left) : NULL;
}
