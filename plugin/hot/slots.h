/* SPDX-License-Identifier: Apache-2.0 */
/* hot/slots.h - the pool of struct box_op: take, free, rest.
 *
 * No lock: a slot belongs to the thread that turns its state from free to filling. A pool without a
 * free slot gives none; what is to be given up then is decided in hot/reclaim.h.
 */
#ifndef NCCL_INSPECTOR_HOT_SLOTS_H
#define NCCL_INSPECTOR_HOT_SLOTS_H

#include "hot/atomics.h"
#include "hot/handle.h"
#include "hot/owner.h"
#include "hot/state.h"

/* Half of the pool is in rings. Only one thread takes slots of a ring, so it needs no atomic
 * exchange, which would make it wait until all its stores have arrived: 0.1 us when the other
 * thread has their lines. One communicator is often called by two threads in turns (forward and
 * backward pass), so a ring belongs to a thread and not to a communicator. A thread that runs far
 * ahead of its GPU gets more rings, but some are kept for other threads. No ring is given back when
 * its thread ends: it belongs to the number of the thread (owner_id), which the C library gives to
 * a later thread. A thread without a ring uses the other half of the pool, which all threads
 * share. */
#define SLOTS_SHARED (BOX_OPS / 2) /* the first of these */
#define SLOTS_RING (SLOTS_SHARED / TRACK_RINGS)
/* One communicator has at most so many slots, so that one that is stuck leaves some to the
 * others. */
#define SLOTS_OF_COMM (BOX_OPS / 2)

_Static_assert((SLOTS_RING & (SLOTS_RING - 1)) == 0, "a ring wraps by a mask");

/* A slot for an operation of that communicator, in the state of being filled. Looks further than
 * slots_take_next, and gives the thread a ring if it has none. NULL: none is free among those it
 * looks at, or the communicator has its share. By the thread that calls NCCL. */
struct box_op *slots_search(struct track *track, unsigned comm);

/* The same, but looks at every slot that the thread may take. */
struct box_op *slots_take_any(struct track *track, unsigned comm);

/* The next slot of a ring. All take their turn: if fewer did, the next one would often be one that
 * the other thread has just now. */
static inline uint32_t slots_next(uint32_t slot)
{
	return (slot & ~(SLOTS_RING - 1)) | ((slot + 1) & (SLOTS_RING - 1));
}

/* A free slot that is the caller's is being filled from now on: the state comes before anything in
 * it changes. */
static inline void slots_begin(struct box_op *op, uint32_t generation)
{
	atomic_store_explicit(&op->generation, generation | BOX_OP_FILLING, memory_order_relaxed);
	order_stores();
}

/* Takes the slot of the thread's ring whose turn it is. Returns it in the state of being filled,
 * with its index and the generation it had; NULL: it is in use, or the communicator was last called
 * by another thread. By the thread that calls NCCL. */
static inline __attribute__((always_inline)) struct box_op *
slots_take_next(struct track *track, struct track_comm *app, uint32_t *slot, uint32_t *found)
{
	struct track_ring *ring =
	    &track->rings[atomic_load_explicit(&app->ring, memory_order_relaxed)];

	if (!track_likely(atomic_load_explicit(&ring->owner, memory_order_relaxed) == owner_id()))
		return NULL;
	uint32_t at = atomic_load_explicit(&ring->cursor, memory_order_relaxed),
		 next = slots_next(at);
	struct box_op *op = &track->ops[at];
	uint32_t generation = atomic_load_explicit(&op->generation, memory_order_acquire);

	if (!track_likely((generation & BOX_OP_STATE_MASK) == BOX_OP_FREE))
		return NULL;
	slots_begin(op, generation);
	atomic_store_explicit(&ring->cursor, next, memory_order_relaxed);
	/* The next one was last written by the other thread: have it here when it is wanted. */
	prefetch_to_write(&track->ops[next]);
	*slot = at;
	*found = generation;
	return op;
}

/* What the application's thread says of an operation. */
struct slots_use {
	uint32_t comm, comm_generation, key, kind, peer_entry, group;
	int peer;
	uint64_t index, sequence, bytes, enqueue_tick;
};

/* The generation of the use that begins of a slot that is being filled. */
static inline uint32_t slots_generation(const struct box_op *op)
{
	return (atomic_load_explicit(&op->generation, memory_order_relaxed) & ~BOX_OP_STATE_MASK) |
	       BOX_OP_USED;
}

/* Gives a slot that is being filled to an operation. Returns its handle, which other threads may
 * use from now on. */
static inline __attribute__((always_inline)) void *
slots_use(struct box_op *op, uint32_t slot, uint32_t generation, const struct slots_use *use)
{
	atomic_store_explicit(&op->comm, use->comm, memory_order_relaxed);
	atomic_store_explicit(&op->comm_generation, use->comm_generation, memory_order_relaxed);
	atomic_store_explicit(&op->key, use->key, memory_order_relaxed);
	atomic_store_explicit(&op->kind, use->kind, memory_order_relaxed);
	atomic_store_explicit(&op->peer, use->peer, memory_order_relaxed);
	atomic_store_explicit(&op->peer_entry, use->peer_entry, memory_order_relaxed);
	atomic_store_explicit(&op->group, use->group, memory_order_relaxed);
	atomic_store_explicit(&op->index, use->index, memory_order_relaxed);
	atomic_store_explicit(&op->sequence, use->sequence, memory_order_relaxed);
	atomic_store_explicit(&op->bytes, use->bytes, memory_order_relaxed);
	atomic_store_explicit(&op->enqueue_tick, use->enqueue_tick, memory_order_relaxed);
	atomic_store_explicit(&op->generation, generation, memory_order_release);
	return handle_of(handle_of_use(slot, generation));
}

/* Makes the handles of a use stale that the caller has ended. The caller has its communicator to
 * itself, here and below. */
static inline void slots_make_stale(struct box_op *op)
{
	uint64_t handle = atomic_load_explicit(&op->handle, memory_order_relaxed);

	handle &= ~(HANDLE_LOOKED_AT | HANDLE_HANDED_ON);
	atomic_store_explicit(&op->handle, handle + (4ull << HANDLE_GENERATION_SHIFT),
	                      memory_order_relaxed);
}

/* Makes a slot free whose handles are stale. */
static inline void slots_clear(struct box_op *op, uint32_t generation)
{
	atomic_store_explicit(&op->gpu_start_ns, 0, memory_order_relaxed);
	atomic_store_explicit(&op->gpu_stop_ns, 0, memory_order_relaxed);
	atomic_store_explicit(&op->started_channels, 0, memory_order_relaxed);
	atomic_store_explicit(&op->stopped_channels, 0, memory_order_relaxed);
	atomic_store_explicit(&op->synced_ns, 0, memory_order_relaxed);
	atomic_store_explicit(&op->event_tick, 0, memory_order_relaxed);
	atomic_store_explicit(&op->known_tick, 0, memory_order_relaxed);
	atomic_store_explicit(&op->generation, (generation & ~BOX_OP_STATE_MASK) + 4,
	                      memory_order_release);
}

/* Frees the slot of a use that the caller has ended. */
static inline void slots_free(struct box_op *op, uint32_t generation)
{
	slots_make_stale(op);
	slots_clear(op, generation);
}

/* The same, and what is left in it is cleared once more when its next operation begins: its kernel
 * events take the slow way until then. */
static inline void slots_hand_on(struct box_op *op, uint32_t generation)
{
	slots_make_stale(op);
	atomic_store_explicit(
	    &op->handle, atomic_load_explicit(&op->handle, memory_order_relaxed) | HANDLE_LOOKED_AT,
	    memory_order_relaxed);
	slots_clear(op, generation);
}

/* As slots_free, if the thread of the kernels may have found the handle good just now and has yet
 * to store what it was told: the slot is nobody's until the sweep's next round clears it. */
static inline void slots_rest(struct box_op *op, uint32_t generation)
{
	slots_make_stale(op);
	atomic_store_explicit(&op->generation, generation | BOX_OP_GIVEN_UP, memory_order_release);
}

#endif
