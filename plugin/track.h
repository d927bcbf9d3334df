/* SPDX-License-Identifier: Apache-2.0 */
/* track.h - the hot path: from event to counters, in preallocated slots.
 *
 * No lock, allocation, system call, log line or unbounded loop. An operation lives
 * in a slot of the box from its start until both sides are done with it: NCCL's
 * application thread (track_enqueued) and the thread that reports the kernels
 * (track_kernel_stop). Whoever comes last adds it to its key and frees the slot.
 *
 * A handle is a number in a pointer: kind, channel, slot and the slot's generation.
 * An event with a handle of an earlier generation is counted and does nothing.
 */
#ifndef NCCL_INSPECTOR_TRACK_H
#define NCCL_INSPECTOR_TRACK_H

#include "box.h"
#include "event.h"
#include "keys.h"

struct track {
	struct box *box;
	uint64_t ns_per_tick_q32;
	_Atomic bool active; /* false in a forked child: the box is the parent's */
	bool p2p;
	_Alignas(64) _Atomic uint64_t free_head; /* tag << 32 | slot + 1 */
	struct keys keys;
};

/* Makes every slot free. The box must be new. */
void track_init(struct track *track, struct box *box, uint64_t ns_per_tick_q32, bool p2p);

/* Context of a communicator: its record and generation in a pointer. Never NULL. */
void *track_context(unsigned comm, uint32_t generation);
/* Context of one that has no record: its operations are counted as dropped. */
void *track_context_beyond(void);
/* Record of a context, or UINT32_MAX for one that has none or is not ours. */
unsigned track_context_comm(const void *context, uint32_t *generation);

/* Handle for the event, NULL when there is nothing to follow. `context` may be anything. */
void *track_start(struct track *track, void *context, const struct event *event);
/* The application's side of an operation is done (NCCL's "stop" of Coll and P2p); other handles are ignored. */
void track_enqueued(struct track *track, void *handle);
/* One channel ended on the GPU. */
void track_kernel_stop(struct track *track, void *handle, uint64_t gpu_ns);

/* For sweep.c: exactly one caller gets true for each use (generation) of a slot. */
bool track_claim(struct box_op *op, uint32_t generation);
/* Claims an operation, adds it to its key and its communicator, and frees its slot. */
void track_complete(struct track *track, struct box_op *op, uint32_t generation);
/* Frees the slot of an operation that the caller has claimed. */
void track_free(struct track *track, struct box_op *op);

static inline void track_drop(struct track *track, enum box_drop reason)
{
	atomic_fetch_add_explicit(&track->box->header->dropped[reason], 1, memory_order_relaxed);
}

#endif
