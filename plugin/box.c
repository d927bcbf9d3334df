/* SPDX-License-Identifier: Apache-2.0 */
#include "box.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#define PAGE 4096u
#define NAME_TRIES 1000

/* Where each table lies; the same in every box of this version. */
static void lay_out(struct box_header *header)
{
	uint32_t offset = PAGE;

	memcpy(header->magic, BOX_MAGIC, sizeof(header->magic));
	header->version = BOX_VERSION;
	header->header_bytes = sizeof(struct box_header);
	header->comm_offset = offset;
	header->comm_bytes = sizeof(struct box_comm);
	header->comm_count = BOX_COMMS;
	offset += BOX_COMMS * (uint32_t)sizeof(struct box_comm);
	header->key_offset = offset;
	header->key_bytes = sizeof(struct box_key);
	header->key_count = BOX_KEYS;
	offset += BOX_KEYS * (uint32_t)sizeof(struct box_key);
	header->hist_offset = offset;
	header->hist_bytes = sizeof(struct hist);
	header->hist_count = BOX_KEYS;
	offset += BOX_KEYS * (uint32_t)sizeof(struct hist);
	header->op_offset = offset;
	header->op_bytes = sizeof(struct box_op);
	header->op_count = BOX_OPS;
	offset += BOX_OPS * (uint32_t)sizeof(struct box_op);
	header->file_bytes = (uint64_t)((offset + PAGE - 1) / PAGE) * PAGE;
}

/* A page of tmpfs never stalls; one of Lustre or NFS can stall the job or end it with SIGBUS. */
static bool is_memory_fs(int fd)
{
	struct statfs fs;

	return fstatfs(fd, &fs) == 0 && (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC);
}

/* Exclusive creation: pid 1 of one container must not take the file of pid 1 of another. */
static int create_file(struct box *box, int dir_fd, const char *step)
{
	char name[sizeof(box->stem) + 8];

	for (int n = 0; n < NAME_TRIES; n++) {
		int length = snprintf(box->stem, sizeof(box->stem), n ? "%s%s_%d.%d" : "%s%s_%d",
				      BOX_STEM, step, (int)getpid(), n);

		if (length < 0 || (size_t)length >= sizeof(box->stem))
			return -ENAMETOOLONG;
		snprintf(name, sizeof(name), "%s.box", box->stem);
		int fd = openat(dir_fd, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);

		if (fd >= 0)
			return fd;
		if (errno != EEXIST)
			return -errno;
	}
	return -EEXIST;
}

/* Opens, locks and fills the file with zeros. Returns the descriptor or -errno. */
static int make_file(struct box *box, int dir_fd, const char *step, uint64_t bytes)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	char name[sizeof(box->stem) + 8];
	int fd = create_file(box, dir_fd, step);
	int error;

	if (fd < 0)
		return fd;
	error = fcntl(fd, F_SETLK, &lock) ? errno : 0;
	if (!error)
		error = posix_fallocate(fd, 0, (off_t)bytes);
	if (!error)
		return fd;
	snprintf(name, sizeof(name), "%s.box", box->stem);
	unlinkat(dir_fd, name, 0);
	close(fd);
	return -error;
}

int box_open(struct box *box, int dir_fd, const char *step, int *file_error)
{
	struct box_header layout = { 0 };
	char *map;

	lay_out(&layout);
	memset(box, 0, sizeof(*box));
	box->fd = -1;
	box->bytes = layout.file_bytes;
	snprintf(box->stem, sizeof(box->stem), "%s%s_%d", BOX_STEM, step, (int)getpid());
	*file_error = 0;
	if (dir_fd >= 0) {
		box->fd = make_file(box, dir_fd, step, box->bytes);
		if (box->fd < 0)
			*file_error = box->fd;
	}
	box->mapped = box->fd >= 0 && is_memory_fs(box->fd);
	map = mmap(NULL, box->bytes, PROT_READ | PROT_WRITE,
		   box->mapped ? MAP_SHARED | MAP_POPULATE : MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE,
		   box->mapped ? box->fd : -1, 0);
	if (map == MAP_FAILED)
		return -errno;
	memcpy(map, &layout, sizeof(layout));
	box->header = (struct box_header *)map;
	box->comms = (struct box_comm *)(map + layout.comm_offset);
	box->keys = (struct box_key *)(map + layout.key_offset);
	box->hists = (struct hist *)(map + layout.hist_offset);
	box->ops = (struct box_op *)(map + layout.op_offset);
	return 0;
}

int box_snapshot(struct box *box)
{
	const char *from = (const char *)box->header;

	if (box->mapped || box->fd < 0)
		return 0;
	for (uint64_t done = 0; done < box->bytes;) {
		ssize_t n = pwrite(box->fd, from + done, box->bytes - done, (off_t)done);

		if (n < 0 && errno != EINTR)
			return -errno;
		done += n > 0 ? (uint64_t)n : 0;
	}
	return 0;
}
