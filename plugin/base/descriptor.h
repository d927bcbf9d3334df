/* SPDX-License-Identifier: Apache-2.0 */
/* base/descriptor.h - descriptors in a process that may close them: which file each is of.
 *
 * Some applications close every descriptor that they did not open, and their own files get the numbers. What is ours
 * is asked each time before it is used; a number that is somebody else's now is left alone, and not closed either.
 * Between the question and the use another thread may still do that: there it would hit any library.
 */
#ifndef NCCL_INSPECTOR_BASE_DESCRIPTOR_H
#define NCCL_INSPECTOR_BASE_DESCRIPTOR_H

#include <stdbool.h>
#include <stdint.h>

struct file_identity {
	uint32_t device_major, device_minor;
	uint64_t inode;
};

struct file_found {
	struct file_identity identity;
	uint64_t bytes;
	bool has_name;
};

/* Looks at <dir_fd>/<name>, a link itself; with an empty name at what `dir_fd` is of. */
bool file_look(int dir_fd, const char *name, struct file_found *found);

bool file_is_same(const struct file_identity *known, const struct file_found *found);

struct descriptor {
	_Atomic int fd; /* -1: none; to be asked for by descriptor_fd. Two threads may ask, as at exit() */
	struct file_identity identity;
};

/* Never 0 to 2: applications that close stdout write to 1. Returns the descriptor of the same file (and -1 as it is). */
int descriptor_move(int fd);

/* Takes a descriptor (or -1) over. Returns whether there is one: what cannot be looked at is closed. */
bool descriptor_take(struct descriptor *descriptor, int fd);

/* The number, if it is still of that file; -1: none, for good. `found` may be NULL. */
int descriptor_fd(struct descriptor *descriptor, struct file_found *found);

void descriptor_close(struct descriptor *descriptor);

#endif
