/* SPDX-License-Identifier: Apache-2.0 */
#include "hooks.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* The allocator by glibc's own names: dlsym may need memory itself. */
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *old, size_t bytes);

struct hooks hooks;
static _Thread_local struct hook_counts counts;
static _Thread_local bool is_main;

static ssize_t (*real_write)(int, const void *, size_t);
static int (*real_mkdir)(const char *, mode_t);
static int (*real_clock_gettime)(clockid_t, struct timespec *);
static int (*real_mutex_lock)(pthread_mutex_t *);
static int (*real_read_lock)(pthread_rwlock_t *);
static int (*real_write_lock)(pthread_rwlock_t *);

static void *next(const char *name)
{
	void *found = dlsym(RTLD_NEXT, name);

	if (!found) {
		fprintf(stderr, "the C library has no %s\n", name);
		exit(2);
	}
	return found;
}

/* As early as a program can be: the loader's own calls come before. */
__attribute__((constructor)) static void find_real(void)
{
	real_write = (ssize_t (*)(int, const void *, size_t))next("write");
	real_mkdir = (int (*)(const char *, mode_t))next("mkdir");
	real_clock_gettime = (int (*)(clockid_t, struct timespec *))next("clock_gettime");
	real_mutex_lock = (int (*)(pthread_mutex_t *))next("pthread_mutex_lock");
	real_read_lock = (int (*)(pthread_rwlock_t *))next("pthread_rwlock_rdlock");
	real_write_lock = (int (*)(pthread_rwlock_t *))next("pthread_rwlock_wrlock");
}

void hooks_open(void)
{
	is_main = true;
}

struct hook_counts hooks_counts(void)
{
	return counts;
}

ssize_t write(int fd, const void *data, size_t length)
{
	if (!is_main) {
		if (hooks.write_ms < 0) {
			hooks.writes_stuck++;
			for (;;)
				pause();
		}
		if (hooks.write_ms)
			usleep((useconds_t)hooks.write_ms * 1000);
		hooks.writes++;
	}
	return real_write(fd, data, length);
}

int mkdir(const char *path, mode_t mode)
{
	if (hooks.mkdir_race)
		real_mkdir(path, mode);
	return real_mkdir(path, mode);
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
	int error = real_clock_gettime(clock, now);

	counts.clocks++;
	if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)
		now->tv_sec += hooks.clock_step_s;
	return error;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
	struct timespec time;
	int error = clock_gettime(CLOCK_REALTIME, &time);

	(void)zone;
	now->tv_sec = time.tv_sec;
	now->tv_usec = time.tv_nsec / 1000;
	return error;
}

int pthread_mutex_lock(pthread_mutex_t *lock)
{
	counts.locks++;
	return real_mutex_lock(lock);
}

int pthread_rwlock_rdlock(pthread_rwlock_t *lock)
{
	counts.locks++;
	return real_read_lock(lock);
}

int pthread_rwlock_wrlock(pthread_rwlock_t *lock)
{
	counts.locks++;
	return real_write_lock(lock);
}

static bool is_refused(void)
{
	return hooks.short_of_memory && !is_main;
}

void *malloc(size_t bytes)
{
	return is_refused() ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
	return is_refused() ? NULL : __libc_calloc(count, bytes);
}

void *realloc(void *old, size_t bytes)
{
	return is_refused() ? NULL : __libc_realloc(old, bytes);
}
