/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

bool clock_has_counter;

static bool counter_is_invariant(void)
{
#if defined(__x86_64__)
	unsigned eax, ebx, ecx, edx;

	return __get_cpuid(0x80000007u, &eax, &ebx, &ecx, &edx) && (edx & (1u << 8));
#elif defined(__aarch64__)
	return true;
#else
	return false;
#endif
}

struct instant {
	uint64_t tick, ns;
};

/* The pair with the shortest time between its two counter reads was least disturbed. */
static struct instant take_instant(void)
{
	struct instant best = { 0, 0 };
	uint64_t best_gap = UINT64_MAX;

	for (int i = 0; i < 8; i++) {
		uint64_t before = clock_ticks();
		uint64_t ns = clock_ns(CLOCK_MONOTONIC);
		uint64_t gap = clock_ticks() - before;

		if (gap < best_gap) {
			best_gap = gap;
			best = (struct instant){ before + gap / 2, ns };
		}
	}
	return best;
}

uint64_t clock_calibrate(void)
{
	static uint64_t ns_per_tick_q32; /* callers hold the initialization lock */
	struct timespec pause = { 0, 2000000 };

	if (ns_per_tick_q32)
		return ns_per_tick_q32;
	clock_has_counter = counter_is_invariant();
	if (clock_has_counter) {
		struct instant first = take_instant();

		while (nanosleep(&pause, &pause)) /* a signal must not shorten it */
			;
		struct instant second = take_instant();

		if (second.tick > first.tick && second.ns > first.ns)
			ns_per_tick_q32 =
			    (uint64_t)(((unsigned __int128)(second.ns - first.ns) << 32) /
			               (second.tick - first.tick));
	}
	if (!ns_per_tick_q32) {
		clock_has_counter = false;
		ns_per_tick_q32 = 1ull << 32;
	}
	return ns_per_tick_q32;
}
