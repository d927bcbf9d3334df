/* SPDX-License-Identifier: Apache-2.0 */
/* base/clock.h - the cheapest clock of the machine: TSC, cntvct, or CLOCK_MONOTONIC where the TSC is not invariant. */
#ifndef NCCL_INSPECTOR_BASE_CLOCK_H
#define NCCL_INSPECTOR_BASE_CLOCK_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

extern bool clock_has_counter; /* set once by clock_calibrate; false: ticks are CLOCK_MONOTONIC ns */

static inline uint64_t clock_ns(clockid_t id)
{
	struct timespec ts;

	clock_gettime(id, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static inline uint64_t clock_ticks(void)
{
#if defined(__x86_64__)
	if (__builtin_expect(clock_has_counter, 1))
		return __rdtsc();
#elif defined(__aarch64__)
	if (__builtin_expect(clock_has_counter, 1)) {
		uint64_t ticks;

		__asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
		return ticks;
	}
#endif
	return clock_ns(CLOCK_MONOTONIC);
}

/* Nanoseconds in 2^-32 for one tick. Takes 2 ms the first time; call before any clock_ticks. */
uint64_t clock_calibrate(void);

static inline uint64_t clock_ticks_to_ns(uint64_t ticks, uint64_t ns_per_tick_q32)
{
	return (uint64_t)(((unsigned __int128)ticks * ns_per_tick_q32) >> 32);
}

#endif
