/* SPDX-License-Identifier: Apache-2.0 */
/* hot/plausible.h - whether the times of an operation that is over can be true.
 *
 * The caller has the communicator to itself (hot/owner.h).
 */
#ifndef NCCL_INSPECTOR_HOT_PLAUSIBLE_H
#define NCCL_INSPECTOR_HOT_PLAUSIBLE_H

#include "hot/state.h"

/* An operation cannot have run longer than it has been known, nor begun before that, except for the
 * time from its launch until NCCL first tells of it. */
#define PLAUSIBLE_SLACK_NS INT64_C(1000000000)
/* The clocks are compared for one operation in so many. */
#define CLOCKS_EVERY 64u

/* Compares our clock with the GPU's, which showed `stop` at the end of the operation that we have
 * just heard of. */
void plausible_compare_clocks(struct track *track, struct box_comm *comm, uint64_t stop);

/* Whether an operation lasted longer than it has been known (since the tick `since`), which cannot
 * be. */
static inline __attribute__((always_inline)) bool
plausible_lasted_longer(const struct track *track, uint64_t start, uint64_t stop, uint64_t since)
{
	return !track_likely(stop - start <= PLAUSIBLE_SLACK_NS) &&
	       stop - start > clock_ticks_to_ns(clock_ticks() - since, track->ns_per_tick_q32) +
	                          PLAUSIBLE_SLACK_NS;
}

/* Whether it began before it was known, which cannot be either. */
static inline __attribute__((always_inline)) bool
plausible_began_before(const struct track *track, const struct box_comm *comm, uint64_t start,
                       uint64_t since)
{
	int64_t least = atomic_load_explicit(&comm->clock_ahead_ns, memory_order_relaxed);
	int64_t before = atomic_load_explicit(&comm->clock_ahead_before_ns, memory_order_relaxed);
	/* By our clock. */
	int64_t began_ns = (int64_t)(start + (uint64_t)(before < least ? before : least));

	return began_ns + PLAUSIBLE_SLACK_NS <
	       (int64_t)clock_ticks_to_ns(since, track->ns_per_tick_q32);
}

/* Whether duration and begin of an operation that is over go with the time since which we know of
 * it. Compares the clocks now and then. */
static inline __attribute__((always_inline)) bool
plausible_operation(struct track *track, struct box_comm *comm, const struct box_op *op)
{
	uint64_t start = atomic_load_explicit(&op->gpu_start_ns, memory_order_relaxed);
	uint64_t stop = atomic_load_explicit(&op->gpu_stop_ns, memory_order_relaxed);
	uint64_t round = atomic_load_explicit(&track->sweep_tick, memory_order_acquire);
	uint64_t since = atomic_load_explicit(&op->known_tick, memory_order_relaxed);
	uint64_t index = atomic_load_explicit(&op->index, memory_order_relaxed);
	uint64_t compared = atomic_load_explicit(&comm->clock_since_tick, memory_order_relaxed);

	if (!since)
		since = round;
	if (stop <= start || plausible_lasted_longer(track, start, stop, since))
		return false;
	/* The last round's time will do to see that it is long ago. */
	if (!track_likely(index % CLOCKS_EVERY && compared &&
	                  (int64_t)(round - compared) < (int64_t)track->clocks_ticks))
		plausible_compare_clocks(track, comm, stop);
	return !plausible_began_before(track, comm, start, since);
}

/* The same for the members of a group that have no slot; `token`: the group's. True where there are
 * none. */
bool plausible_slotless(struct track *track, struct box_comm *comm, uint64_t token);

#endif
