/* SPDX-License-Identifier: Apache-2.0 */
#include "upkeep/call_times.h"

#include "base/clock.h"

void call_times_note(struct call_times *times, const struct track *track)
{
	unsigned at = times->rounds % CALL_ROUNDS;

	times->before_tick[at] = clock_ticks();
	for (unsigned i = 0; i < BOX_LIVE_COMMS; i++)
		times->called[at][i] =
		    (uint32_t)atomic_load_explicit(&track->comms[i].index, memory_order_relaxed);
	times->after_tick[at] = clock_ticks();
	times->rounds++;
}

void call_times_forget(struct call_times *times, unsigned comm)
{
	for (unsigned i = 0; i < CALL_ROUNDS; i++)
		times->called[i][comm] = 0;
}

bool call_times_find(const struct call_times *times, unsigned comm, uint32_t order,
                     uint64_t *least_tick, uint64_t *most_tick)
{
	unsigned known = times->rounds < CALL_ROUNDS ? times->rounds : CALL_ROUNDS, back = 0;

	/* From the latest round back: most operations are over soon after they were called. */
	while (back < known &&
	       (int32_t)(times->called[(times->rounds - 1 - back) % CALL_ROUNDS][comm] - order) >=
	           0)
		back++;
	if (!back)
		return false;
	*most_tick = times->after_tick[(times->rounds - back) % CALL_ROUNDS];
	*least_tick =
	    back < known ? times->before_tick[(times->rounds - 1 - back) % CALL_ROUNDS] : 0;
	return true;
}
