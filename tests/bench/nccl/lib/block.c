/* SPDX-License-Identifier: Apache-2.0 */
/* block.c - to be preloaded: a file system that stops answering.
 *
 * After block_from_now() every write to a file below $BLOCK_DIR, and every open, rename and removal
 * there, hangs for ever, as on a network file system whose server is gone. */
#include "block.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static _Atomic bool blocked;
static _Atomic int held;

void block_from_now(void)
{
	atomic_store(&blocked, true);
}

int block_held(void)
{
	return atomic_load(&held);
}

static void hang_below(int fd)
{
	const char *dir = getenv("BLOCK_DIR");
	char link[64], path[4096];
	ssize_t length;

	if (!atomic_load(&blocked) || !dir || fd < 0)
		return;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	length = readlink(link, path, sizeof(path) - 1);
	if (length <= 0)
		return;
	path[length] = '\0';
	if (strncmp(path, dir, strlen(dir)) != 0)
		return;
	atomic_fetch_add(&held, 1);
	for (;;)
		pause();
}

#define NEXT(name) ((__typeof__(&(name)))dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void *data, size_t size)
{
	hang_below(fd);
	return NEXT(write)(fd, data, size);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset)
{
	hang_below(fd);
	return NEXT(pwrite)(fd, data, size, offset);
}

ssize_t writev(int fd, const struct iovec *parts, int n)
{
	hang_below(fd);
	return NEXT(writev)(fd, parts, n);
}

int openat(int dir_fd, const char *path, int flags, ...)
{
	va_list args;
	mode_t mode;

	va_start(args, flags);
	mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
	va_end(args);
	hang_below(dir_fd);
	return NEXT(openat)(dir_fd, path, flags, mode);
}

int renameat(int from_fd, const char *from, int to_fd, const char *to)
{
	hang_below(from_fd);
	return NEXT(renameat)(from_fd, from, to_fd, to);
}

int unlinkat(int dir_fd, const char *path, int flags)
{
	hang_below(dir_fd);
	return NEXT(unlinkat)(dir_fd, path, flags);
}
