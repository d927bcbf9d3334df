/* SPDX-License-Identifier: Apache-2.0 */
#include "prom/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BESIDE_BYTES 208u
#define END "# EOF\n"
#define END_BYTES (sizeof(END) - 1)
#define ROOM_STEP_BYTES 16384u

static void name_beside(const char *name, char beside[BESIDE_BYTES])
{
	snprintf(beside, BESIDE_BYTES, ".%s.tmp", name);
}

static int write_all(int fd, const char *data, size_t length)
{
	while (length) {
		ssize_t n = write(fd, data, length);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n ? -errno : -EIO;
		data += n;
		length -= (size_t)n;
	}
	return 0;
}

/* What a file of this text gets: it grows by new kinds of operations and longer numbers. */
static size_t room_for(size_t length)
{
	size_t room =
	    (length + length / 4 + ROOM_STEP_BYTES - 1) / ROOM_STEP_BYTES * ROOM_STEP_BYTES;

	return room <= PROMFILE_MAX_BYTES || length > PROMFILE_MAX_BYTES ? room
	                                                                 : PROMFILE_MAX_BYTES;
}

/* Gives the file room; none at all where the file system cannot or has no more, and the write
 * tells. */
static void make_room(int fd, size_t length)
{
	if (fallocate(fd, 0, 0, (off_t)room_for(length)) && errno == ENOSPC)
		(void)!fallocate(fd, 0, 0, (off_t)length);
}

static int open_new(int dir_fd, const char *beside)
{
	unlinkat(dir_fd, beside, 0); /* of a process that had our number and died here */
	return openat(dir_fd, beside, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
}

/* The file that was published before the present one. */
static int open_spare(int dir_fd, const char *beside)
{
	int fd = openat(dir_fd, beside, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);

	if (fd >= 0 && lseek(fd, 0, SEEK_END) <= (off_t)PROMFILE_MAX_BYTES)
		return fd;
	if (fd >= 0)
		close(fd);
	return -1;
}

/* The text as it is, or with blank lines before its last line up to the size that the file has. */
static int write_text(int fd, const struct textbuf *text)
{
	char blank[4096];
	off_t size = lseek(fd, 0, SEEK_END);
	size_t left = size > (off_t)text->length ? (size_t)size - text->length : 0;
	int error;

	if (lseek(fd, 0, SEEK_SET))
		return -errno;
	memset(blank, '\n', sizeof(blank));
	error = write_all(fd, text->data, text->length - END_BYTES);
	while (left && !error) {
		size_t part = left < sizeof(blank) ? left : sizeof(blank);

		error = write_all(fd, blank, part);
		left -= part;
	}
	return error ? error : write_all(fd, END, END_BYTES);
}

/* One that takes the room for the next text now, while there is some; without it the next
 * replacement looks for it. */
static void make_spare(int dir_fd, const char *beside, size_t length)
{
	int fd = open_new(dir_fd, beside);

	if (fd < 0)
		return;
	make_room(fd, length);
	close(fd);
}

/* Gives the text its name. Not every file system, nor every container's filter of system calls, can
 * exchange. */
static int put_in_place(int dir_fd, const char *beside, const char *name, bool keeps_room,
                        size_t length)
{
	if (keeps_room && !syscall(SYS_renameat2, dir_fd, beside, dir_fd, name, RENAME_EXCHANGE))
		return 0;
	if (renameat(dir_fd, beside, dir_fd, name))
		return -errno;
	if (keeps_room)
		make_spare(dir_fd, beside, length);
	return 0;
}

int promfile_replace(int dir_fd, const char *name, const struct textbuf *text, bool keeps_room)
{
	char beside[BESIDE_BYTES];
	int error, fd;

	name_beside(name, beside);
	fd = keeps_room ? open_spare(dir_fd, beside) : -1;
	if (fd < 0)
		fd = open_new(dir_fd, beside);
	if (fd < 0)
		return -errno;
	if (keeps_room && lseek(fd, 0, SEEK_END) < (off_t)text->length)
		make_room(fd, text->length);
	error = write_text(fd, text);
	if (close(fd) && !error)
		error = -errno;
	if (!error)
		error = put_in_place(dir_fd, beside, name, keeps_room, text->length);
	if (error)
		unlinkat(dir_fd, beside, 0);
	return error;
}

void promfile_remove(int dir_fd, const char *name)
{
	char beside[BESIDE_BYTES];

	name_beside(name, beside);
	unlinkat(dir_fd, name, 0);
	unlinkat(dir_fd, beside, 0);
}
