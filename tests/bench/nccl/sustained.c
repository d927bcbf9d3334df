/* SPDX-License-Identifier: Apache-2.0 */
/* sustained.c - 20,000 operations a second, or 2,000, in bursts of a millisecond: is each of them
 * counted, and what do the plugin's threads take? */
#include <time.h>

#include "bench.h"

#define CHANNELS 8u
#define BURST_MAX 20u
#define BURST_NS 1000000u

static void play(unsigned rounds, unsigned burst)
{
	static struct player_op ops[BURST_MAX];
	struct side *side = &sides[OURS];
	uint64_t due = now_ns(), begin = due, cpu_before = other_threads_ns();

	for (unsigned r = 0; r < rounds; r++) {
		struct timespec until;

		for (unsigned i = 0; i < burst; i++) {
			ops[i] = load_op(r * burst + i, CHANNELS);
			player_enqueue(load_comm(side, r * burst + i), &ops[i]);
		}
		for (unsigned i = 0; i < burst; i++)
			load_kernel(side, &ops[i], r * burst + i);
		told_ours += burst;
		due += BURST_NS;
		until = (struct timespec){ (time_t)(due / 1000000000u), (long)(due % 1000000000u) };
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
	}
	say("sustained/cpu_ms", "ours", (double)(other_threads_ns() - cpu_before) / 1e6);
	say("rate", "ours", 1e9 * rounds * burst / (double)(now_ns() - begin));
}

void measure_sustained(unsigned rounds)
{
	play(rounds, BURST_MAX);
}

void measure_gentle(unsigned rounds)
{
	play(rounds, BURST_MAX / 10);
}
