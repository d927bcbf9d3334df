/* SPDX-License-Identifier: Apache-2.0 */
/* base/clock.h - the cheapest clock of the machine: TSC, cntvct, or CLOCK_MONOTONIC where the TSC
 * is not invariant. */
#ifndef NCCL_INSPECTOR_BASE_CLOCK_H
#define NCCL_INSPECTOR_BASE_CLOCK_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

/* Set once by clock_calibrate; false: ticks are CLOCK_MONOTONIC ns. */
extern bool clock_has_counter;

/* The time of a clock of the system, in ns. */
static inline uint64_t clock_ns(clockid_t id)
{
	struct timespec ts;

	clock_gettime(id, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* Ticks of the cheapest clock. They never go back within a thread; other threads of the machine
 * read the same clock. */
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

/* Returns the nanoseconds of one tick, in 2^-32. Takes 2 ms the first time. To be called once
 * before any clock_ticks, under the inspector's lock. */
uint64_t clock_calibrate(void);

/* `ns_per_tick_q32`: clock_calibrate(). */
static inline uint64_t clock_ticks_to_ns(uint64_t ticks, uint64_t ns_per_tick_q32)
{
	return (uint64_t)(((unsigned __int128)ticks * ns_per_tick_q32) >> 32);
}

#endif
