/* SPDX-License-Identifier: Apache-2.0 */
/* gpuclock.h - the host's clock and the "GPU's": the same rate, but another zero in each
 * process, so that nobody can compare one with the other and get away with it. */
#ifndef STANDIN_GPUCLOCK_H
#define STANDIN_GPUCLOCK_H

#include <stdint.h>
#include <time.h>

#define NS_PER_MS 1000000ull
#define NS_PER_S 1000000000ull

static inline uint64_t host_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

/* Set once, before any thread is started. */
extern uint64_t gpu_offset_ns;

static inline uint64_t gpu_ns(void)
{
	return host_ns() + gpu_offset_ns;
}

static inline void sleep_ms(uint64_t ms)
{
	struct timespec left = { .tv_sec = (time_t)(ms / 1000),
	                         .tv_nsec = (long)(ms % 1000 * NS_PER_MS) };

	while (ms && nanosleep(&left, &left))
		;
}

#endif
