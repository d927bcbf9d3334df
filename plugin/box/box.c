/* SPDX-License-Identifier: Apache-2.0 */
#include "box/box.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/vfs.h>
#include <unistd.h>

#define PAGE 4096u
#define NAME_TRIES 1000

/* Where each table lies; the same in every box of this version. */
static void lay_out(struct box_header *header)
{
	uint32_t end = PAGE;

#define TABLE(name, type, rows)                                                                    \
	do {                                                                                       \
		header->name##_offset = end;                                                       \
		header->name##_bytes = sizeof(type);                                               \
		header->name##_count = (rows);                                                     \
		end += (uint32_t)sizeof(type) * (rows);                                            \
	} while (0)
	TABLE(comm, struct box_comm, BOX_COMMS);
	TABLE(key, struct box_key, BOX_KEYS);
	TABLE(hist, struct hist, BOX_KEYS);
	TABLE(op, struct box_op, BOX_OPS);
	TABLE(peer, struct box_peer, BOX_PEERS);
	TABLE(line, struct box_line, BOX_LINES);
	TABLE(net, struct box_net, BOX_NETS);
	TABLE(sample, struct box_sample, BOX_SAMPLES);
	TABLE(sample_kind, struct box_sample_kind, BOX_SAMPLE_KINDS);
	TABLE(union, struct box_union, BOX_UNIONS);
	TABLE(skew, struct box_skew, BOX_LIVE_COMMS);
	TABLE(label, struct box_label, BOX_LABELS);
#undef TABLE
	memcpy(header->magic, BOX_MAGIC, sizeof(header->magic));
	header->version = BOX_VERSION;
	header->header_bytes = sizeof(struct box_header);
	header->sampling = 1;
	header->sample_length_bits = header->sample_period_bits = BOX_SAMPLE_BITS;
	header->file_bytes = (uint64_t)((end + PAGE - 1) / PAGE) * PAGE;
}

/* A page of tmpfs never stalls; one of Lustre or NFS can stall the job or end it with SIGBUS. */
static bool is_memory_fs(int fd)
{
	struct statfs fs;

	return fstatfs(fd, &fs) == 0 && (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC);
}

/* Exclusive creation: pid 1 of one container must not take the file of pid 1 of another. Nobody but
 * us may write to it, not even its owner: a file that becomes shorter would end the process with
 * SIGBUS. */
static int create_file(struct box *box, int dir_fd, const char *step)
{
	char name[sizeof(box->stem) + 8];

	for (int n = 0; n < NAME_TRIES; n++) {
		int length = snprintf(box->stem, sizeof(box->stem), n ? "%s%s_%d.%d" : "%s%s_%d",
		                      BOX_STEM, step, (int)getpid(), n);

		if (length < 0 || (size_t)length >= sizeof(box->stem))
			return -ENAMETOOLONG;
		snprintf(name, sizeof(name), "%s.box", box->stem);
		int fd =
		    openat(dir_fd, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0400);

		if (fd >= 0)
			/* Before it is locked: closing any descriptor unlocks. */
			return descriptor_move(fd);
		if (errno != EEXIST)
			return -errno;
	}
	return -EEXIST;
}

/* A file beyond the limit would not be an error but SIGXFSZ, which ends the job. */
static bool exceeds_limit(uint64_t bytes)
{
	struct rlimit limit;

	return getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
	       limit.rlim_cur < bytes;
}

static int allocate(int fd, uint64_t bytes)
{
	int error = EINTR;

	for (int tries = 0; error == EINTR && tries < 100; tries++)
		error = posix_fallocate(fd, 0, (off_t)bytes);
	return error;
}

/* Opens, locks and fills the file with zeros. Returns the descriptor or -errno. */
static int make_file(struct box *box, int dir_fd, const char *step, uint64_t bytes)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	char name[sizeof(box->stem) + 8];
	int fd, error;

	if (exceeds_limit(bytes))
		return -EFBIG;
	fd = create_file(box, dir_fd, step);
	if (fd < 0)
		return fd;
	error = fcntl(fd, F_SETLK, &lock) ? errno : 0;
	if (!error)
		error = allocate(fd, bytes);
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
	box->file.fd = -1;
	box->bytes = layout.file_bytes;
	snprintf(box->stem, sizeof(box->stem), "%s%s_%d", BOX_STEM, step, (int)getpid());
	*file_error = 0;
	if (dir_fd >= 0) {
		int fd = make_file(box, dir_fd, step, box->bytes);

		if (!descriptor_take(&box->file, fd))
			*file_error = fd < 0 ? fd : -EIO;
	}
	box->mapped = box->file.fd >= 0 && is_memory_fs(box->file.fd);
	map = mmap(NULL, box->bytes, PROT_READ | PROT_WRITE,
	           box->mapped ? MAP_SHARED | MAP_POPULATE
	                       : MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE,
	           box->mapped ? box->file.fd : -1, 0);
	if (map == MAP_FAILED)
		return -errno;
	memcpy(map, &layout, sizeof(layout));
	box->header = (struct box_header *)map;
	box->comms = (struct box_comm *)(map + layout.comm_offset);
	box->keys = (struct box_key *)(map + layout.key_offset);
	box->hists = (struct hist *)(map + layout.hist_offset);
	box->ops = (struct box_op *)(map + layout.op_offset);
	box->peers = (struct box_peer *)(map + layout.peer_offset);
	box->lines = (struct box_line *)(map + layout.line_offset);
	box->nets = (struct box_net *)(map + layout.net_offset);
	box->samples = (struct box_sample *)(map + layout.sample_offset);
	box->sample_kinds = (struct box_sample_kind *)(map + layout.sample_kind_offset);
	box->unions = (struct box_union *)(map + layout.union_offset);
	box->skews = (struct box_skew *)(map + layout.skew_offset);
	box->labels = (struct box_label *)(map + layout.label_offset);
	return 0;
}

int box_snapshot(struct box *box)
{
	const char *from = (const char *)box->header;
	int fd = box->mapped ? -1 : descriptor_fd(&box->file, NULL);

	if (fd < 0)
		return 0;
	for (uint64_t done = 0; done < box->bytes;) {
		ssize_t n = pwrite(fd, from + done, box->bytes - done, (off_t)done);

		if (n == 0 || (n < 0 && errno != EINTR))
			return n ? -errno : -EIO;
		done += n > 0 ? (uint64_t)n : 0;
	}
	return 0;
}

void box_set_state(struct box *box, enum box_state state)
{
	atomic_store(&box->header->state, state);
	int fd = box->mapped ? -1 : descriptor_fd(&box->file, NULL);

	if (fd >= 0 && pwrite(fd, &box->header->state, sizeof(box->header->state),
	                      offsetof(struct box_header, state)) < 0)
		return; /* the file then says "killed": there is nobody left to tell */
}

void box_leave(struct box *box)
{
	if (box->mapped &&
	    mmap(box->header, box->bytes, PROT_READ | PROT_WRITE,
	         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) != MAP_FAILED)
		box->mapped = false;
	descriptor_close(&box->file);
}
