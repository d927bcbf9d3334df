/* SPDX-License-Identifier: Apache-2.0 */
/* count.c - to be preloaded: counts the calls of locks and clocks, per thread.
 *
 * What a program does without the C library (the processor's tick counter, an atomic instruction)
 * cannot be seen here, and costs a few nanoseconds. */
#include "count.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/time.h>
#include <time.h>

static _Thread_local struct counts counts;

struct counts count_so_far(void)
{
	return counts;
}

#define NEXT(name) ((__typeof__(&(name)))dlsym(RTLD_NEXT, #name))

#define COUNT_LOCK(name, type)                                                                     \
	int name(type *lock)                                                                       \
	{                                                                                          \
		static __typeof__(&(name)) next;                                                   \
		if (!next)                                                                         \
			next = NEXT(name);                                                         \
		counts.locks++;                                                                    \
		return next(lock);                                                                 \
	}

COUNT_LOCK(pthread_mutex_lock, pthread_mutex_t)
COUNT_LOCK(pthread_mutex_trylock, pthread_mutex_t)
COUNT_LOCK(pthread_rwlock_rdlock, pthread_rwlock_t)
COUNT_LOCK(pthread_rwlock_wrlock, pthread_rwlock_t)
COUNT_LOCK(pthread_rwlock_tryrdlock, pthread_rwlock_t)
COUNT_LOCK(pthread_rwlock_trywrlock, pthread_rwlock_t)
COUNT_LOCK(pthread_spin_lock, pthread_spinlock_t)

int clock_gettime(clockid_t clock, struct timespec *now)
{
	static __typeof__(&clock_gettime) next;

	if (!next)
		next = NEXT(clock_gettime);
	counts.clocks++;
	return next(clock, now);
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
	static __typeof__(&gettimeofday) next;

	if (!next)
		next = NEXT(gettimeofday);
	counts.clocks++;
	return next(now, zone);
}

time_t time(time_t *now)
{
	static __typeof__(&time) next;

	if (!next)
		next = NEXT(time);
	counts.clocks++;
	return next(now);
}
