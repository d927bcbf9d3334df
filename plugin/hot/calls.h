/* SPDX-License-Identifier: Apache-2.0 */
/* hot/calls.h - the application's calls: groups, the plans of kernels, and what is called in them.
 *
 * All functions take any context and any handle, and give NULL when there is nothing to follow.
 * They are called by the threads that call NCCL.
 */
#ifndef NCCL_INSPECTOR_HOT_CALLS_H
#define NCCL_INSPECTOR_HOT_CALLS_H

#include "hot/clockmix.h"
#include "hot/state.h"
#include "nccl/event.h"

/* A GroupApi begins. NCCL lets one thread at a time call it for a communicator. Returns the group's
 * handle. */
static inline void *track_group_start(struct track *track, void *context)
{
	uint32_t generation;
	unsigned comm = handle_context_comm(context, &generation);

	if (!track_likely(comm != UINT32_MAX &&
	                  atomic_load_explicit(&track->active, memory_order_relaxed)))
		return NULL;
	struct track_comm *app = &track->comms[comm];
	uint32_t number = atomic_load_explicit(&app->groups, memory_order_relaxed) + 1;

	number += !number;
	atomic_store_explicit(&app->groups, number, memory_order_relaxed);
	atomic_store_explicit(&app->open_group, number, memory_order_relaxed);
	atomic_store_explicit(&app->members, false, memory_order_relaxed);
	atomic_store_explicit(&app->group_thread, track_thread(), memory_order_relaxed);
	return handle_of((uint64_t)number << HANDLE_NUMBER_SHIFT |
	                 (uint64_t)comm << HANDLE_COMM_SHIFT | HANDLE_GROUP);
}

/* A Group of v1 to v4 begins; CUDA's thread begins one, too, when it replays a graph. Never NULL
 * for a communicator of ours, with a record or without: otherwise NCCL would not tell of its
 * operations. */
void *track_old_group_start(struct track *track, void *context);

/* For track_group_stop, which cannot do with a few instructions. Gives 0. */
int track_group_stop_slowly(struct track *track, uint64_t bits);

/* A group has returned. Gives 0. */
static inline int track_group_stop(struct track *track, void *group)
{
	uint64_t bits = handle_bits(group);
	struct track_comm *app = &track->comms[handle_comm(bits) % BOX_LIVE_COMMS];

	if (!track_likely(handle_kind(bits) == HANDLE_GROUP &&
	                  atomic_load_explicit(&app->open_group, memory_order_relaxed) ==
	                      handle_number(bits) &&
	                  atomic_load_explicit(&track->sample_every, memory_order_relaxed) <= 1 &&
	                  !atomic_load_explicit(&app->members, memory_order_relaxed)))
		return track_group_stop_slowly(track, bits);
	atomic_store_explicit(&app->open_group, 0, memory_order_relaxed);
	return 0;
}

/* A Group of v5 and later begins: the operations of one kernel's plan, which NCCL tells of in one
 * go. A Send that is told when its GroupApi is over, or that belongs to another communicator than
 * it, is in its plan's group: one that a graph replays, or of a communicator that does not block.
 * Returns the plan's handle; NULL: no Sends can come, or they are in their GroupApi. */
static inline void *track_plan_start(struct track *track, void *context)
{
	uint32_t generation;
	unsigned comm = handle_context_comm(context, &generation);

	if (comm == UINT32_MAX || !atomic_load_explicit(&track->active, memory_order_relaxed))
		return NULL;
	struct track_comm *app = &track->comms[comm];

	track_next_plan(app);
	if (!atomic_load_explicit(&app->has_p2p, memory_order_relaxed) ||
	    (atomic_load_explicit(&app->open_group, memory_order_relaxed) &&
	     atomic_load_explicit(&app->group_thread, memory_order_relaxed) == track_thread()))
		return NULL;
	return handle_of((uint64_t)track_next_group(app) << HANDLE_NUMBER_SHIFT |
	                 (uint64_t)comm << HANDLE_COMM_SHIFT | HANDLE_PLAN);
}

/* All operations of a plan have been told. */
void track_plan_stop(struct track *track, void *plan);

/* Counts a Send or Recv that is called in the GroupApi of that number. */
static inline void track_count_call(struct track_comm *app, uint32_t number)
{
	bool is_next = atomic_load_explicit(&app->call_group, memory_order_relaxed) == number;
	uint32_t calls =
	    is_next ? atomic_load_explicit(&app->group_calls, memory_order_relaxed) : 0;

	atomic_store_explicit(&app->group_calls, calls + 1, memory_order_relaxed);
	if (!is_next)
		atomic_store_explicit(&app->call_group, number, memory_order_relaxed);
	if (!atomic_load_explicit(&app->has_p2p, memory_order_relaxed))
		atomic_store_explicit(&app->has_p2p, true, memory_order_relaxed);
}

/* A call of Send or Recv in a group. Returns the handle for struct event.parent. */
static inline void *track_p2p_call(struct track *track, void *context, void *group)
{
	uint64_t bits = handle_bits(group);
	uint32_t generation;
	unsigned comm = handle_context_comm(context, &generation);

	if (comm != UINT32_MAX) {
		track_count_call(&track->comms[comm], handle_number(bits));
		clockmix_called(track, comm);
	}
	return handle_kind(bits) == HANDLE_GROUP && track->options.p2p
		   ? handle_of(handle_as(bits, HANDLE_P2P_CALL))
		   : NULL;
}

/* A Send or Recv is called into a graph. */
static inline void track_captured_p2p(struct track *track, void *context)
{
	uint32_t generation;
	unsigned comm = handle_context_comm(context, &generation);

	clockmix_captured(track, context);
	if (comm != UINT32_MAX)
		atomic_store_explicit(&track->comms[comm].has_p2p, true, memory_order_relaxed);
}

/* Whether NCCL is known to give events of the operations of a collective: then its calls tell us
 * nothing. */
static inline bool track_knows(struct track *track, const void *context, const char *func)
{
	uint32_t generation;
	unsigned comm = handle_context_comm(context, &generation);

	if (comm == UINT32_MAX || !func)
		return false;
	for (unsigned i = 0; i < TRACK_KNOWN; i++)
		if (atomic_load_explicit(&track->comms[comm].known[i], memory_order_relaxed) ==
		    func)
			return true;
	return false;
}

/* A call of a collective, for which an operation is to follow, or not. */
void track_coll_call(struct track *track, void *context, const struct event *event);

/* A call of a collective into a graph: its operations follow at each launch. */
void track_captured_call(struct track *track, void *context, const struct event *event);

#endif
