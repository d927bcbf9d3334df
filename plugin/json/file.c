/* SPDX-License-Identifier: Apache-2.0 */
#include "json/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/directory.h"

#define NAME_TRIES 1000u
#define NAME_ROOM (sizeof(((struct jsonfile *)0)->stem) + 28)

void jsonfile_init(struct jsonfile *file, const char *dir, const char *stem)
{
	memset(file, 0, sizeof(*file));
	snprintf(file->dir, sizeof(file->dir), "%s", dir);
	snprintf(file->stem, sizeof(file->stem), "%s", stem);
	file->at.fd = file->log.fd = -1;
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
	if (descriptor_fd(&file->at, NULL) >= 0)
		return 0;
	int fd = directory_open(file->dir);

	if (fd < 0)
		return fd;
	return descriptor_take(&file->at, fd) ? 0 : -EIO;
}

static struct jsonfile_kept *newest(struct jsonfile *file)
{
	return &file->kept[file->kept_count - 1];
}

/* Goes on in the last file, if that is what still has its name. */
static bool reopen(struct jsonfile *file)
{
	char name[NAME_ROOM];
	struct file_found found;

	if (!file->kept_count)
		return false;
	file_name(file, newest(file)->number, name);
	descriptor_take(
	    &file->log,
	    openat(file->at.fd, name, O_WRONLY | O_APPEND | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
	if (descriptor_fd(&file->log, &found) >= 0 &&
	    file_is_same(&newest(file)->identity, &found)) {
		file->offset = found.bytes;
		return true;
	}
	descriptor_close(&file->log);
	return false;
}

static void forget_oldest(struct jsonfile *file)
{
	char name[NAME_ROOM];
	struct file_found found;

	file_name(file, file->kept[0].number, name);
	if (file_look(file->at.fd, name, &found) && file_is_same(&file->kept[0].identity, &found))
		unlinkat(file->at.fd, name, 0);
	file->kept_count--;
	memmove(file->kept, file->kept + 1, file->kept_count * sizeof(*file->kept));
}

/* A file that cannot be looked at could not be removed later: better none. */
static int keep(struct jsonfile *file, int fd, unsigned number, const char *name)
{
	if (!descriptor_take(&file->log, fd)) {
		unlinkat(file->at.fd, name, 0);
		return -EIO;
	}
	file->offset = 0;
	file->kept[file->kept_count++] = (struct jsonfile_kept){ number, file->log.identity };
	return 0;
}

/* A process with our pid in another container of this host name may have the name. */
static int create_next(struct jsonfile *file)
{
	char name[NAME_ROOM];

	while (file->kept_count >= file->files)
		forget_oldest(file);
	for (unsigned tries = 0; tries < NAME_TRIES; tries++) {
		unsigned number = file->next_number++;

		file_name(file, number, name);
		int fd =
		    openat(file->at.fd, name,
		           O_WRONLY | O_APPEND | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);

		if (fd >= 0)
			return keep(file, fd, number, name);
		if (errno != EEXIST) {
			file->next_number = number;
			return -errno;
		}
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
	descriptor_close(&file->at);
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
		ssize_t n = write(file->log.fd, data + done, length - done);

		if (n > 0)
			done += (size_t)n;
		else if (n == 0 || errno != EINTR)
			error = n ? -errno : -EIO;
	}
	if (!error)
		file->offset += length;
	else
		file->torn = ftruncate(file->log.fd, (off_t)file->offset) != 0;
	return error;
}

/* The user may have emptied the file, or removed it or its directory: then nobody would see what is
 * written. */
static void look_again(struct jsonfile *file)
{
	struct file_found now;

	if (descriptor_fd(&file->log, &now) < 0)
		return;
	if (now.has_name)
		file->offset = now.bytes;
	else
		descriptor_close(&file->log);
}

size_t jsonfile_room(const struct jsonfile *file, bool ending)
{
	size_t room = !ending      ? JSONFILE_CHUNK_BYTES
	              : file->gzip ? JSONFILE_LAST_PACKED_BYTES
	                           : JSONFILE_LAST_BYTES;
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
	if (file->log.fd < 0)
		error = open_file(file, false);
	if (!error && (file->torn || file->offset + length > limit)) {
		descriptor_close(&file->log);
		error = open_file(file, true);
		file->torn = error && file->torn;
	}
	return error ? error : append(file, lines, length);
}

/* The directory of the files if it is still there; it is not made for this. */
static bool open_old_dir(struct jsonfile *file)
{
	struct file_identity before = file->at.identity;
	struct file_found found;

	if (descriptor_fd(&file->at, NULL) >= 0)
		return true;
	descriptor_take(&file->at, open(file->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	if (descriptor_fd(&file->at, &found) >= 0 && file_is_same(&before, &found))
		return true;
	descriptor_close(&file->at);
	file->at.identity = before;
	return false;
}

/* The last file that has lines, if its name is still its own: so `.end` behind it is nobody
 * else's. */
static bool end_name(struct jsonfile *file, char *name)
{
	struct file_found found;

	if (!file->kept_count || !open_old_dir(file))
		return false;
	file_name(file, newest(file)->number, name);
	if (!file_look(file->at.fd, name, &found) || !file_is_same(&newest(file)->identity, &found))
		return false;
	size_t length = strlen(name);

	if (length + sizeof(".end") > NAME_ROOM)
		return false;
	memcpy(name + length, ".end", sizeof(".end"));
	return true;
}

void jsonfile_put_end(struct jsonfile *file, const char *text, size_t length)
{
	char name[NAME_ROOM];

	if (length > limit_bytes(file) || !end_name(file, name))
		return;
	unlinkat(file->at.fd, name, 0);
	int fd = descriptor_move(
	    openat(file->at.fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));

	if (fd < 0)
		return;
	file->ended = write(fd, text, length) == (ssize_t)length;
	if (!file->ended)
		unlinkat(file->at.fd, name, 0);
	close(fd);
}

void jsonfile_remove_end(struct jsonfile *file)
{
	char name[NAME_ROOM];

	if (file->ended && end_name(file, name))
		unlinkat(file->at.fd, name, 0);
	file->ended = false;
}

void jsonfile_close(struct jsonfile *file)
{
	look_again(file);
	descriptor_close(&file->log);
	descriptor_close(&file->at);
}
