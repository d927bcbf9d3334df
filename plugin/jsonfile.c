/* SPDX-License-Identifier: Apache-2.0 */
#include "jsonfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "box.h"
#include "makedir.h"

#define NAME_TRIES 1000u
#define NAME_ROOM (sizeof(((struct jsonfile *)0)->stem) + 24)

void jsonfile_init(struct jsonfile *file, const char *dir, const char *stem)
{
	memset(file, 0, sizeof(*file));
	snprintf(file->dir, sizeof(file->dir), "%s", dir);
	snprintf(file->stem, sizeof(file->stem), "%s", stem);
	file->dir_fd = file->fd = -1;
	file->file_bytes = UINT64_MAX;
	file->files = 1;
}

static void file_name(const struct jsonfile *file, unsigned number, char *name)
{
	const char *end = file->gzip ? "log.gz" : "log";

	if (number)
		snprintf(name, NAME_ROOM, "%s.%u.%s", file->stem, number, end);
	else
		snprintf(name, NAME_ROOM, "%s.%s", file->stem, end);
}

static int open_dir(struct jsonfile *file)
{
	int fd = file->dir_fd < 0 ? makedir_open(file->dir) : file->dir_fd;

	if (fd >= 0)
		file->dir_fd = fd;
	return fd < 0 ? fd : 0;
}

static void close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

/* Not fstat: that symbol is younger than the glibc of old containers. */
static bool look(int dir_fd, const char *name, struct statx *found)
{
	return statx(dir_fd, name, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW, STATX_NLINK | STATX_INO | STATX_SIZE, found) == 0;
}

static bool is_same(const struct jsonfile_kept *kept, const struct statx *found)
{
	return kept->device_major == found->stx_dev_major && kept->device_minor == found->stx_dev_minor &&
	       kept->inode == found->stx_ino;
}

/* Goes on in the last file, if that is what still has its name. */
static bool reopen(struct jsonfile *file)
{
	char name[NAME_ROOM];
	struct statx found;

	if (!file->kept_count)
		return false;
	file_name(file, file->kept[file->kept_count - 1].number, name);
	file->fd = box_move_fd(openat(file->dir_fd, name, O_WRONLY | O_APPEND | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
	if (file->fd >= 0 && look(file->fd, "", &found) && is_same(&file->kept[file->kept_count - 1], &found)) {
		file->offset = found.stx_size;
		return true;
	}
	close_fd(&file->fd);
	return false;
}

static void forget_oldest(struct jsonfile *file)
{
	char name[NAME_ROOM];
	struct statx found;

	file_name(file, file->kept[0].number, name);
	if (look(file->dir_fd, name, &found) && is_same(&file->kept[0], &found))
		unlinkat(file->dir_fd, name, 0);
	file->kept_count--;
	memmove(file->kept, file->kept + 1, file->kept_count * sizeof(*file->kept));
}

/* A process with our pid in another container of this host name may have the name. */
static int create_next(struct jsonfile *file)
{
	char name[NAME_ROOM];
	struct statx made;

	while (file->kept_count >= file->files)
		forget_oldest(file);
	for (unsigned tries = 0; tries < NAME_TRIES; tries++) {
		unsigned number = file->next_number++;

		file_name(file, number, name);
		file->fd = box_move_fd(openat(file->dir_fd, name,
					      O_WRONLY | O_APPEND | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
					      0644));
		if (file->fd < 0 && errno != EEXIST) {
			file->next_number = number;
			return -errno;
		}
		if (file->fd < 0)
			continue;
		file->offset = 0;
		if (look(file->fd, "", &made)) /* else it will not be removed, that is all */
			file->kept[file->kept_count++] = (struct jsonfile_kept){
				number, made.stx_dev_major, made.stx_dev_minor, made.stx_ino };
		return 0;
	}
	return -EEXIST;
}

static int open_file(struct jsonfile *file, bool next)
{
	int error = open_dir(file);

	if (error)
		return error;
	if (!next && reopen(file))
		return 0;
	error = create_next(file);
	if (error != -ENOENT)
		return error;
	/* The directory was removed: make it anew. */
	close_fd(&file->dir_fd);
	error = open_dir(file);
	return error ? error : create_next(file);
}

/* A file beyond the limit of the process would not be an error but SIGXFSZ. */
static uint64_t limit_bytes(const struct jsonfile *file)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
	    limit.rlim_cur < file->file_bytes)
		return limit.rlim_cur;
	return file->file_bytes;
}

/* What does not fit (a full disk) is taken back: the file ends with a whole line. */
static int append(struct jsonfile *file, const char *data, size_t length)
{
	int error = 0;

	for (size_t done = 0; done < length && !error;) {
		ssize_t n = write(file->fd, data + done, length - done);

		if (n > 0)
			done += (size_t)n;
		else if (n == 0 || errno != EINTR)
			error = n ? -errno : -EIO;
	}
	if (!error)
		file->offset += length;
	else
		file->torn = ftruncate(file->fd, (off_t)file->offset) != 0;
	return error;
}

/* The user may have emptied the file, or removed it or its directory: then nobody would see what is written. */
static void look_again(struct jsonfile *file)
{
	struct statx now;

	if (file->fd < 0 || !look(file->fd, "", &now))
		return;
	if (now.stx_nlink)
		file->offset = now.stx_size;
	else
		close_fd(&file->fd);
}

size_t jsonfile_room(const struct jsonfile *file, bool ending)
{
	size_t room = !ending ? JSONFILE_CHUNK_BYTES : file->gzip ? JSONFILE_LAST_PACKED_BYTES : JSONFILE_LAST_BYTES;
	uint64_t limit = limit_bytes(file);

	return limit < room ? (size_t)limit : room;
}

int jsonfile_write(struct jsonfile *file, const char *lines, size_t length)
{
	uint64_t limit = limit_bytes(file);
	int error = 0;

	if (file->gzip) {
		length = gzip_member(file->gzip, lines, length, &lines);
		if (!length)
			return -ENOMEM;
	}
	if (length > limit)
		return -EFBIG;
	look_again(file);
	if (file->fd < 0)
		error = open_file(file, false);
	if (!error && (file->torn || file->offset + length > limit)) {
		close_fd(&file->fd);
		error = open_file(file, true);
		file->torn = error && file->torn;
	}
	return error ? error : append(file, lines, length);
}

void jsonfile_close(struct jsonfile *file)
{
	close_fd(&file->fd);
	close_fd(&file->dir_fd);
}
