/* SPDX-License-Identifier: Apache-2.0 */
/* sustained.c - 20,000 operations a second, in bursts of a millisecond: is each of them counted? */
#include <time.h>

#include "bench.h"

#define CHANNELS 8u
#define BURST 20u
#define BURST_NS 1000000u

void measure_sustained(unsigned rounds)
{
	static struct player_op ops[BURST];
	struct side *side = &sides[OURS];
	uint64_t due = now_ns(), begin = due, cpu_before = other_threads_ns();

	for (unsigned r = 0; r < rounds; r++) {
		struct timespec until;

		for (unsigned i = 0; i < BURST; i++) {
			ops[i] = load_op(r * BURST + i, CHANNELS);
			player_enqueue(load_comm(side, r * BURST + i), &ops[i]);
		}
		for (unsigned i = 0; i < BURST; i++)
			load_kernel(side, &ops[i], r * BURST + i);
		told_ours += BURST;
		due += BURST_NS;
		until = (struct timespec){ (time_t)(due / 1000000000u), (long)(due % 1000000000u) };
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
	}
	say("sustained/cpu_ms", "ours", (double)(other_threads_ns() - cpu_before) / 1e6);
	say("rate", "ours", 1e9 * rounds * BURST / (double)(now_ns() - begin));
}
