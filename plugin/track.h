/* SPDX-License-Identifier: Apache-2.0 */
/* track.h - the hot path: from event to counters, in preallocated slots.
 *
 * No lock, allocation, system call, log line or unbounded loop. An operation lives
 * in a slot of the box from its start until its last kernel event, which comes from
 * another thread, perhaps before the start has returned. That thread adds it to its
 * key and frees the slot. What NCCL calls the stop of an operation (it is enqueued)
 * tells nothing and is not followed.
 *
 * Figures of a communicator are added up by one thread at a time: who finds
 * box_comm.busy odd leaves the operation to sweep.c, and never waits.
 *
 * A handle is a number in a pointer: kind, channel, slot and the slot's generation.
 * An event with a handle of an earlier generation is counted and does nothing.
 */
#ifndef NCCL_INSPECTOR_TRACK_H
#define NCCL_INSPECTOR_TRACK_H

#include "box.h"
#include "clock.h"
#include "event.h"
#include "groups.h"
#include "jsonring.h"
#include "keys.h"

/* What the application's thread keeps of a communicator. */
struct track_comm {
	_Alignas(64) _Atomic uint32_t cursor; /* where to look for a free slot */
	_Atomic uint32_t groups;              /* calls so far */
	_Atomic uint32_t open_group;          /* the one that has not returned; 0: none */
	_Atomic uint32_t seen_funcs;          /* a bit each: NCCL gives events of its operations */
};

struct track_options {
	bool p2p;                 /* follow Sends and Recvs */
	enum box_timing timing;
};

struct track {
	struct box *box;
	uint64_t ns_per_tick_q32;
	struct track_options options;
	_Atomic bool active;            /* false in a forked child: the box is the parent's */
	_Atomic bool full;              /* the pool was, and nothing has been freed since */
	_Atomic uint32_t sample_every;  /* kernel events for one operation in so many; 0 and 1: for all */
	struct jsonring *json;          /* where finished operations go; NULL: nowhere */
	struct trace_op *traces;        /* one for each slot; NULL unless verbose */
	_Atomic(int *) mask;            /* NCCL's activation mask; NULL while it may be gone */
	_Atomic int mask_all;           /* what we want of it, kernel events and all */
	_Alignas(64) _Atomic uint32_t sample_count; /* operations while sample_every > 1 */
	_Alignas(64) _Atomic uint64_t hot_ticks; /* in our functions, of one operation in TRACK_HOT_SAMPLE */
	_Alignas(64) struct keys keys;
	struct track_comm comms[BOX_LIVE_COMMS];
	struct groups groups;
};

#define TRACK_HOT_SAMPLE 256u

/* Makes every slot free. The box must be new. */
void track_init(struct track *track, struct box *box, uint64_t ns_per_tick_q32,
		const struct track_options *options);

/* Context of a communicator: its record and generation in a pointer. Never NULL. */
void *track_context(unsigned comm, uint32_t generation);
/* Context of one that has no record: its operations are counted as dropped. */
void *track_context_beyond(void);
/* Record of a context, or UINT32_MAX for one that has none or is not ours. */
unsigned track_context_comm(const void *context, uint32_t *generation);

/* The following take any context and any handle, and give NULL when there is nothing to follow. */

/* A Coll or P2p. */
void *track_operation(struct track *track, void *context, const struct event *event);
/* One channel begins on the GPU. */
void *track_kernel_start(struct track *track, void *operation, unsigned channel, uint64_t gpu_ns);
/* One channel ended. */
void track_kernel_stop(struct track *track, void *kernel, uint64_t gpu_ns);
/* NCCL's stop of a Coll or P2p: a line of the traces. */
void track_enqueued(struct track *track, void *operation);
/* A phase of a channel (v7): the first one is waiting for the peers. */
void *track_phase_start(struct track *track, void *kernel, unsigned phase);
void track_phase_stop(struct track *track, void *handle, uint64_t gpu_ns);
/* A group (v5 and later: GroupApi) begins and has returned. */
void *track_group_start(struct track *track, void *context);
void track_group_stop(struct track *track, void *group);
/* A call of Send or Recv in a group: for struct event.parent. */
void *track_p2p_call(struct track *track, void *group);
/* A call of a collective, for which an operation is to follow, or not. */
void track_coll_call(struct track *track, void *context, const struct event *event);
/* A collective that copy engines run: it is counted, without a time. */
void track_copy_engine(struct track *track, void *context, const struct event *event);
/* v1 to v3: id, name and rank come with each event. */
void track_name(struct track *track, void *context, uint64_t id, const char *name, int rank);

/* For sweep.c. Each takes one use (generation) of a slot to its end, exactly once; false: it is over, or somebody else
 * is busy with its communicator. */
bool track_complete(struct track *track, struct box_op *op, uint32_t generation);
bool track_expire(struct track *track, struct box_op *op, uint32_t generation);
bool track_end_untimed(struct track *track, struct box_op *op, uint32_t generation);

/* Whether the caller has the figures of a communicator to itself now; then track_leave. Never waits. */
bool track_enter(struct box_comm *comm);
void track_leave(struct box_comm *comm);

static inline bool track_in_use(uint32_t generation)
{
	return (generation & BOX_OP_STATE_MASK) == BOX_OP_USED;
}

/* Our own clock, for events without one of the GPU. */
static inline uint64_t track_now_ns(const struct track *track)
{
	return clock_ticks_to_ns(clock_ticks(), track->ns_per_tick_q32);
}

static inline void track_drop(struct track *track, enum box_drop reason)
{
	atomic_fetch_add_explicit(&track->box->header->dropped[reason], 1, memory_order_relaxed);
}

#endif
