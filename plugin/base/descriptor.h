/* SPDX-License-Identifier: Apache-2.0 */
/* base/descriptor.h - file descriptors in a process that may close them: which file each is of.
 *
 * Some applications close every descriptor that they did not open, and their own files get the
 * numbers. So we look which file a descriptor of ours is of each time before we use it. A number
 * that is of another file now is left alone, and not closed either. Between the look and the use
 * another thread may still close it, as it may do to any library.
 *
 * Any thread, unless the caller shares a descriptor between threads: then see each function.
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

/* Looks at <dir_fd>/<name>, or with an empty name at what `dir_fd` is of. Does not follow a
 * symbolic link. False: there is no such file, or it cannot be looked at. */
bool file_look(int dir_fd, const char *name, struct file_found *found);

/* Whether what was found is that file. */
bool file_is_same(const struct file_identity *known, const struct file_found *found);

struct descriptor {
	/* -1: none. Read it by descriptor_fd; two threads may do so at a time, as at exit(). */
	_Atomic int fd;
	struct file_identity identity;
};

/* Moves a descriptor above 2, because an application that has closed stdout may still write to 1.
 * Returns the descriptor that the file has now; -1 if it could not be moved (then it is closed), or
 * was -1. */
int descriptor_move(int fd);

/* Takes a number (or -1) over, moved above 2. Returns whether there is a descriptor now: one that
 * cannot be looked at is closed. */
bool descriptor_take(struct descriptor *descriptor, int fd);

/* Returns the number if it is still of that file, and what was found of it (`found` may be NULL);
 * -1: there is none, for good. */
int descriptor_fd(struct descriptor *descriptor, struct file_found *found);

/* Closes it, if it is still ours. */
void descriptor_close(struct descriptor *descriptor);

#endif
