/* SPDX-License-Identifier: Apache-2.0 */
/* hot/record.h - what the samples and the JSON lines are told of an operation that is over. Inline,
 * because each operation passes through it: for hot/complete.c and hot/group_end.c only. The caller
 * has the communicator to itself (hot/owner.h). */
#ifndef NCCL_INSPECTOR_HOT_RECORD_H
#define NCCL_INSPECTOR_HOT_RECORD_H

#include "base/clock.h"
#include "box/bandwidth.h"
#include "hot/atomics.h"
#include "hot/ends.h"
#include "hot/jsonring.h"
#include "hot/keys.h"
#include "hot/state.h"
#include "nccl/event.h"

_Static_assert((uint16_t)KEYS_NONE == ENDS_NO_KEY && BOX_KEYS <= ENDS_NO_KEY,
               "a key fits into a record");

/* struct box_sample.flags, but for BOX_SAMPLE_GROUP. */
static inline uint8_t record_flags(const struct track *track)
{
	return track->options.timing == BOX_TIMING_CPU ? BOX_SAMPLE_CPU_TIMED : 0;
}

/* struct json_record.flags, but for JSON_GROUP. */
static inline uint16_t record_json_flags(const struct track *track)
{
	return track->options.timing == BOX_TIMING_CPU ? JSON_CPU_TIMED : 0;
}

/* struct box_sample.mantissa: the upper 16 bits of a number of bytes. */
static inline uint16_t record_mantissa(uint64_t bytes)
{
	unsigned size_class = bandwidth_size_class(bytes | 1);

	return (uint16_t)(bytes >> (size_class > 15 ? size_class - 15 : 0));
}

/* Whether the time of its call is taken of the operation with that place among those of its
 * communicator. */
static inline bool record_is_called(const struct track *track, uint64_t order)
{
	return !track_likely(!track->json && !track_takes_call(order));
}

/* The time from the call to the kernel's begin (GPU's clock) in us, at least 1. For an operation
 * with the time of its call. */
__attribute__((noinline, unused)) static uint32_t record_queued_us(const struct track *track,
                                                                   const struct box_comm *comm,
                                                                   uint64_t began_gpu_ns,
                                                                   uint64_t tick)
{
	int64_t least = atomic_load_explicit(&comm->clock_ahead_ns, memory_order_relaxed);
	int64_t before = atomic_load_explicit(&comm->clock_ahead_before_ns, memory_order_relaxed);
	int64_t called_ns = (int64_t)clock_ticks_to_ns(tick, track->ns_per_tick_q32);
	int64_t queued =
	    ((int64_t)began_gpu_ns + (before < least ? before : least) - called_ns) / 1000;

	return queued < 1 ? 1 : queued > UINT32_MAX ? UINT32_MAX : (uint32_t)queued;
}

/* Hands an operation over to the samples, unless it belongs to a large group. `start`, `stop`:
 * GPU's clock. */
static inline __attribute__((always_inline)) void record_operation(struct track *track,
                                                                   const struct box_op *op,
                                                                   uint32_t key, uint64_t start,
                                                                   uint64_t stop, uint64_t bytes)
{
	unsigned comm = atomic_load_explicit(&op->comm, memory_order_relaxed) % BOX_LIVE_COMMS;
	uint32_t group = track_group_of(op);

	if (!track_likely(!group) && groups_joined(&track->groups, group) > TRACK_GROUP_SAMPLES)
		return;
	uint32_t place = ends_place(&track->ends, track->box, comm);

	if (!track_likely(place != ENDS_FULL))
		return;
	struct box_sample *end = &track->ends.ends[place];
	uint32_t peer =
	    (uint32_t)(atomic_load_explicit(&op->peer, memory_order_relaxed) - EVENT_NO_PEER);
	uint64_t order = atomic_load_explicit(&op->index, memory_order_relaxed);
	bool is_called = record_is_called(track, order);

	atomic_store_explicit(&end->start_ns, start, memory_order_relaxed);
	end->stop_ns = stop;
	end->index = (uint32_t)atomic_load_explicit(&op->sequence, memory_order_relaxed) + !peer;
	end->kind = (uint16_t)key; /* KEYS_NONE becomes ENDS_NO_KEY */
	end->peer = (uint16_t)(peer < BOX_SAMPLE_PEER_BEYOND ? peer : BOX_SAMPLE_PEER_BEYOND);
	end->queued_us =
	    is_called
	        ? record_queued_us(track, &track->box->comms[comm], start,
	                           atomic_load_explicit(&op->enqueue_tick, memory_order_relaxed))
	        : (uint32_t)order;
	end->mantissa = record_mantissa(bytes);
	end->flags = (uint8_t)(record_flags(track) | (is_called ? 0 : ENDS_ORDER));
	end->channels = (uint8_t)(atomic_load_explicit(&op->kind, memory_order_relaxed) >> 24);
	ends_hand_over(track->box, comm, place);
	/* Two to a line of the cache, which the beat thread has read: have the one after next here
	 * when it is wanted. */
	prefetch_to_write(end + 4);
}

/* Hands a group over as one operation. */
static inline void record_group(struct track *track, unsigned comm, uint32_t key,
                                const struct group_facts *facts)
{
	uint32_t place = ends_place(&track->ends, track->box, comm);

	if (place == ENDS_FULL)
		return;
	struct box_sample *end = &track->ends.ends[place];

	atomic_store_explicit(&end->start_ns, facts->start_ns, memory_order_relaxed);
	end->stop_ns = facts->stop_ns;
	end->index = facts->number;
	end->kind = (uint16_t)key;
	end->peer = 0;
	end->queued_us = facts->enqueue_tick
	                     ? record_queued_us(track, &track->box->comms[comm], facts->start_ns,
	                                        facts->enqueue_tick)
	                     : (uint32_t)facts->last_index;
	end->mantissa = record_mantissa(facts->bytes);
	end->flags = (uint8_t)(record_flags(track) | BOX_SAMPLE_GROUP |
	                       (facts->enqueue_tick ? 0 : ENDS_ORDER));
	end->channels = 0;
	ends_hand_over(track->box, comm, place);
}

#endif
