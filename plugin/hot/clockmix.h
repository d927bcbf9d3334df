/* SPDX-License-Identifier: Apache-2.0 */
/* hot/clockmix.h - whether the GPU times that NCCL gives are those of the communicator's own
 * operations.
 *
 * NCCL finds the times of an operation by a number: its host and its kernels both count the works
 * of each channel. Where one of them counts a work that the other does not, every later operation
 * of the communicator gets the times of an earlier one, and nothing shows it. What makes the two
 * numbers differ is known for each interface (enum box_mixed), so from then on the communicator's
 * operations are counted without times.
 *
 * Sources: NCCL 2.26 to 2.30, src/enqueue.cc and src/proxy.cc (incWorkCounter), src/device/common.h
 * (profiler); for 2.31 and later NVIDIA/nccl #2368 and #2369. All of it can be seen with `make
 * test-nccl`.
 */
#ifndef NCCL_INSPECTOR_HOT_CLOCKMIX_H
#define NCCL_INSPECTOR_HOT_CLOCKMIX_H

#include "hot/state.h"

/* The number of the plan in box_op.group. */
static inline uint16_t clockmix_plan(uint32_t group)
{
	return (uint16_t)(group >> CLOCKMIX_PLAN_SHIFT);
}

/* Whether a plan is a later one than another. */
static inline bool clockmix_is_later(uint16_t plan, uint16_t other)
{
	return plan != other && (uint16_t)(plan - other) < UINT16_MAX / 2;
}

/* The times of operation `since` of a communicator and of all later ones are not believed from now
 * on. The first reason stays. Any thread. */
void clockmix_mark(struct track *track, unsigned comm, uint64_t since, enum box_mixed why);

/* The next functions are called by the threads that call NCCL. */

/* A rank sends something to itself: operation `index`. */
void clockmix_self(struct track *track, unsigned comm, uint64_t index);

/* Something is called into a graph. Any context. */
void clockmix_captured(struct track *track, void *context);

/* Something is called, and not into a graph. Inline, because each Send and Recv passes here. */
static inline void clockmix_called(struct track *track, unsigned comm)
{
	_Atomic uint8_t *graph = &track->comms[comm].graph;

	if (!track_likely(atomic_load_explicit(graph, memory_order_relaxed) != CLOCKMIX_CAPTURED))
		atomic_store_explicit(graph, CLOCKMIX_NOT_LATEST, memory_order_relaxed);
}

/* A graph is launched: NCCL tells of what was captured. Any context. */
void clockmix_replayed(struct track *track, void *context);

/* A Broadcast is called. */
void clockmix_broadcast(struct track *track, unsigned comm);

/* NCCL tells of a Broadcast as of other operations, so its host counted it. Returns whether the
 * communicator's times are right after all. */
bool clockmix_broadcast_told(struct track *track, unsigned comm);

/* NCCL was not asked for kernel events for some time: marks every communicator that lives. Under
 * the inspector's lock. */
void clockmix_unasked(struct track *track);

/* An operation whose times NCCL announced got none, though later ones are over. By the sweep. */
void clockmix_untold(struct track *track, const struct box_op *op);

/* Notes the times of an operation that is over, and returns whether they can be its own. `is_next`:
 * it is the first of its plan that is over. Needed only if the communicator is marked, or with v4.
 * The caller has the communicator to itself. */
bool clockmix_look(struct track *track, unsigned comm, const struct box_op *op, bool is_next);

/* A communicator begins in that record. Under the inspector's lock. */
void clockmix_new_comm(struct track *track, unsigned comm);

#endif
