// SPDX-License-Identifier: Apache-2.0
/* Twelve years later: a library to preload, for programs that must also work after 2038-01-19.
 *
 * A time namespace moves the clocks that nobody can set, but not the date. This library moves the
 * date, and with it all times of files, so that a file which was just written is as old as before.
 * The kernel and programs without the C library (Go's) stay in the present.
 */

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timeb.h>
#include <time.h>
#include <unistd.h>
#include <utime.h>
#include <dlfcn.h>

#define LATER_S 378691200 /* 4383 days */

static int real_clock(clockid_t clock, struct timespec *at)
{
	return (int)syscall(SYS_clock_gettime, clock, at);
}

static struct timespec earlier(const struct timespec *at)
{
	return (struct timespec){ at->tv_sec - LATER_S, at->tv_nsec };
}

int clock_gettime(clockid_t clock, struct timespec *at)
{
	if (real_clock(clock, at))
		return -1;
	if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI)
		at->tv_sec += LATER_S;
	return 0;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone)
{
	(void)zone;
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	*at = (struct timeval){ now.tv_sec, now.tv_nsec / 1000 };
	return 0;
}

time_t time(time_t *at)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME_COARSE, &now);
	if (at)
		*at = now.tv_sec;
	return now.tv_sec;
}

int timespec_get(struct timespec *at, int base)
{
	return clock_gettime(CLOCK_REALTIME, at) ? 0 : base;
}

/* Waits until a date. */

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *left)
{
	struct timespec real = *until;
	if (clock == CLOCK_REALTIME && flags & TIMER_ABSTIME)
		real = earlier(until);
	return syscall(SYS_clock_nanosleep, clock, flags, &real, left) ? errno : 0;
}

/* Nobody's other clock has come so far as to be taken for a date. */
static struct timespec real_end(const struct timespec *until)
{
	return until->tv_sec > LATER_S ? earlier(until) : *until;
}

#define UNTIL(name, what)                                                                          \
	int name(what *it, const struct timespec *until)                                           \
	{                                                                                          \
		static int (*next)(what *, const struct timespec *);                               \
		struct timespec end = real_end(until);                                             \
		if (!next)                                                                         \
			next = (int (*)(what *, const struct timespec *))dlsym(RTLD_NEXT, #name);  \
		return next(it, &end);                                                             \
	}

UNTIL(sem_timedwait, sem_t)
UNTIL(pthread_mutex_timedlock, pthread_mutex_t)
UNTIL(pthread_rwlock_timedrdlock, pthread_rwlock_t)
UNTIL(pthread_rwlock_timedwrlock, pthread_rwlock_t)

int pthread_cond_timedwait(pthread_cond_t *restrict it, pthread_mutex_t *restrict lock,
                           const struct timespec *restrict until)
{
	static int (*next)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
	struct timespec end = real_end(until);
	if (!next) /* On x86-64 there is an old one, too, of another size. */
		*(void **)&next = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
	if (!next)
		*(void **)&next = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
	return next(it, lock, &end);
}

/* Times of files. */

static int later(int status, struct stat *of)
{
	if (!status) {
		of->st_atim.tv_sec += LATER_S;
		of->st_mtim.tv_sec += LATER_S;
		of->st_ctim.tv_sec += LATER_S;
	}
	return status;
}

static int stat_at(int dir, const char *path, struct stat *of, int flags)
{
	return later((int)syscall(SYS_newfstatat, dir, path, of, flags), of);
}

/* Programs that were linked on an older system call the functions with a version. */
#define STATS(suffix, type)                                                                        \
	int stat##suffix(const char *path, type *of)                                               \
	{                                                                                          \
		return stat_at(AT_FDCWD, path, (struct stat *)of, 0);                              \
	}                                                                                          \
	int lstat##suffix(const char *path, type *of)                                              \
	{                                                                                          \
		return stat_at(AT_FDCWD, path, (struct stat *)of, AT_SYMLINK_NOFOLLOW);            \
	}                                                                                          \
	int fstat##suffix(int fd, type *of)                                                        \
	{                                                                                          \
		return stat_at(fd, "", (struct stat *)of, AT_EMPTY_PATH);                          \
	}                                                                                          \
	int fstatat##suffix(int dir, const char *path, type *of, int flags)                        \
	{                                                                                          \
		return stat_at(dir, path, (struct stat *)of, flags);                               \
	}                                                                                          \
	int __xstat##suffix(int version, const char *path, type *of)                               \
	{                                                                                          \
		return (void)version, stat##suffix(path, of);                                      \
	}                                                                                          \
	int __lxstat##suffix(int version, const char *path, type *of)                              \
	{                                                                                          \
		return (void)version, lstat##suffix(path, of);                                     \
	}                                                                                          \
	int __fxstat##suffix(int version, int fd, type *of)                                        \
	{                                                                                          \
		return (void)version, fstat##suffix(fd, of);                                       \
	}                                                                                          \
	int __fxstatat##suffix(int version, int dir, const char *path, type *of, int flags)        \
	{                                                                                          \
		return (void)version, fstatat##suffix(dir, path, of, flags);                       \
	}

_Static_assert(sizeof(struct stat) == sizeof(struct stat64), "a system with 64 bits");
STATS(, struct stat)
STATS(64, struct stat64)

int statx(int dir, const char *restrict path, int flags, unsigned mask, struct statx *restrict of)
{
	int status = (int)syscall(SYS_statx, dir, path, flags, mask, of);
	if (!status) {
		of->stx_atime.tv_sec += LATER_S;
		of->stx_btime.tv_sec += LATER_S;
		of->stx_ctime.tv_sec += LATER_S;
		of->stx_mtime.tv_sec += LATER_S;
	}
	return status;
}

static int set_times(int dir, const char *path, const struct timespec times[2], int flags)
{
	struct timespec real[2];
	for (int at = 0; times && at < 2; at++) {
		int is_date = times[at].tv_nsec != UTIME_NOW && times[at].tv_nsec != UTIME_OMIT;
		real[at] = is_date ? earlier(&times[at]) : times[at];
	}
	return (int)syscall(SYS_utimensat, dir, path, times ? real : NULL, flags);
}

int utimensat(int dir, const char *path, const struct timespec times[2], int flags)
{
	return set_times(dir, path, times, flags);
}

int futimens(int fd, const struct timespec times[2])
{
	return set_times(fd, NULL, times, 0);
}

static int set_values(int dir, const char *path, const struct timeval values[2], int flags)
{
	struct timespec times[2];
	for (int at = 0; values && at < 2; at++)
		times[at] = (struct timespec){ values[at].tv_sec, values[at].tv_usec * 1000 };
	return set_times(dir, path, values ? times : NULL, flags);
}

int utimes(const char *path, const struct timeval values[2])
{
	return set_values(AT_FDCWD, path, values, 0);
}

int lutimes(const char *path, const struct timeval values[2])
{
	return set_values(AT_FDCWD, path, values, AT_SYMLINK_NOFOLLOW);
}

int futimes(int fd, const struct timeval values[2])
{
	return set_values(fd, NULL, values, 0);
}

int futimesat(int dir, const char *path, const struct timeval values[2])
{
	return set_values(dir, path, values, 0);
}

int utime(const char *path, const struct utimbuf *both)
{
	if (!both)
		return set_times(AT_FDCWD, path, NULL, 0);
	struct timespec times[2] = { { both->actime, 0 }, { both->modtime, 0 } };
	return set_times(AT_FDCWD, path, times, 0);
}
