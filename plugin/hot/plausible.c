/* SPDX-License-Identifier: Apache-2.0 */
#include "hot/plausible.h"

#define relaxed memory_order_relaxed

/* The distance of our clock and the GPU's: the smallest one seen of late is nearest to it, for we
 * hear of an end only after it. */
void plausible_compare_clocks(struct track *track, struct box_comm *comm, uint64_t stop)
{
	uint64_t now = clock_ticks(),
		 since = atomic_load_explicit(&comm->clock_since_tick, relaxed);
	int64_t ahead = (int64_t)(clock_ticks_to_ns(now, track->ns_per_tick_q32) - stop);
	int64_t least = atomic_load_explicit(&comm->clock_ahead_ns, relaxed);

	uint64_t past_ns = clock_ticks_to_ns(now - since, track->ns_per_tick_q32);

	if (!since || past_ns > TRACK_CLOCKS_NS) {
		atomic_store_explicit(&comm->clock_ahead_before_ns,
		                      since && past_ns < 2 * TRACK_CLOCKS_NS ? least : ahead,
		                      relaxed);
		atomic_store_explicit(&comm->clock_since_tick, now, relaxed);
		least = INT64_MAX;
	}
	if (ahead < least)
		atomic_store_explicit(&comm->clock_ahead_ns, ahead, relaxed);
}

bool plausible_slotless(struct track *track, struct box_comm *comm, uint64_t token)
{
	uint64_t start, stop, since;

	if (!groups_slotless_times(&track->groups, token, &start, &stop, &since))
		return true; /* there is nothing to tell */
	if (stop <= start || plausible_lasted_longer(track, start, stop, since))
		return false;
	if (!atomic_load_explicit(&comm->clock_since_tick, relaxed))
		plausible_compare_clocks(track, comm, stop);
	return !plausible_began_before(track, comm, start, since);
}
