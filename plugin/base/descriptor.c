/* SPDX-License-Identifier: Apache-2.0 */
#include "base/descriptor.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

int descriptor_move(int fd)
{
	int higher;

	if (fd < 0 || fd > 2)
		return fd;
	higher = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	close(fd);
	return higher;
}

/* Where old container runtimes refuse statx. By number: fstat as a symbol is younger than the glibc
 * of old containers. */
static bool look_the_old_way(int dir_fd, const char *name, struct file_found *found)
{
	struct stat old;

	if (syscall(SYS_newfstatat, dir_fd, name, &old, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW))
		return false;
	*found = (struct file_found){ { major(old.st_dev), minor(old.st_dev), old.st_ino },
	                              (uint64_t)old.st_size,
	                              old.st_nlink > 0 };
	return true;
}

bool file_look(int dir_fd, const char *name, struct file_found *found)
{
	struct statx now;

	if (dir_fd < 0 || statx(dir_fd, name, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW,
	                        STATX_NLINK | STATX_INO | STATX_SIZE, &now))
		return dir_fd >= 0 && look_the_old_way(dir_fd, name, found);
	*found = (struct file_found){ { now.stx_dev_major, now.stx_dev_minor, now.stx_ino },
	                              now.stx_size,
	                              now.stx_nlink > 0 };
	return true;
}

bool file_is_same(const struct file_identity *known, const struct file_found *found)
{
	return known->device_major == found->identity.device_major &&
	       known->device_minor == found->identity.device_minor &&
	       known->inode == found->identity.inode;
}

bool descriptor_take(struct descriptor *descriptor, int fd)
{
	struct file_found found;

	fd = descriptor_move(fd);
	if (fd >= 0 && !file_look(fd, "", &found)) {
		close(fd);
		fd = -1;
	}
	if (fd >= 0)
		descriptor->identity = found.identity;
	atomic_store(&descriptor->fd, fd);
	return fd >= 0;
}

int descriptor_fd(struct descriptor *descriptor, struct file_found *found)
{
	int fd = atomic_load(&descriptor->fd);
	struct file_found here = { 0 };

	if (!found)
		found = &here;
	if (fd < 0 || (file_look(fd, "", found) && file_is_same(&descriptor->identity, found)))
		return fd;
	atomic_store(&descriptor->fd, -1);
	return -1;
}

void descriptor_close(struct descriptor *descriptor)
{
	int fd = descriptor_fd(descriptor, NULL);

	atomic_store(&descriptor->fd, -1);
	if (fd >= 0)
		close(fd);
}
