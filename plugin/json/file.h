/* SPDX-License-Identifier: Apache-2.0 */
/* json/file.h - the files that JSON lines go to: <dir>/<hostname>-pid<pid>[.<n>].log[.gz].
 *
 * Each is created exclusively, is readable by itself and never renamed; a full one is followed by
 * the next number, and the oldest of ours is removed. What was written is whole lines (whole gzip
 * members), whatever fails; only a process that is killed, or ends with a thread that got no
 * processor for its last 10 ms, in the middle of a write leaves the beginning of one. Only the JSON
 * thread calls this: a file system may block it.
 */
#ifndef NCCL_INSPECTOR_JSON_FILE_H
#define NCCL_INSPECTOR_JSON_FILE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/descriptor.h"
#include "json/gzip.h"

#define JSONFILE_KEPT 16u
#define JSONFILE_CHUNK_BYTES ((size_t)64 * 1024)
/* The kernel looks for the death of a process page by page. */
#define JSONFILE_LAST_BYTES ((size_t)4096)
#define JSONFILE_LAST_PACKED_BYTES ((size_t)16 * 1024)

struct jsonfile_kept {
	unsigned number;
	struct file_identity identity;
};

struct jsonfile {
	char dir[PATH_MAX]; /* made with its parents when the first line comes */
	char stem[128];
	uint64_t file_bytes;       /* of one file */
	unsigned files;            /* kept, 1 to JSONFILE_KEPT */
	struct gzip *gzip;         /* NULL: plain */
	struct descriptor at, log; /* the directory and the file */
	uint64_t offset;           /* end of the whole lines */
	bool torn;                 /* beyond them is half a line that could not be taken back */
	bool ended;                /* there is a file that says so */
	unsigned next_number;
	unsigned kept_count;
	struct jsonfile_kept kept[JSONFILE_KEPT]; /* oldest first; the last is open, or was */
};

/* Prepares for files in `dir` whose names begin with `stem`. Touches no file. Any thread. */
void jsonfile_init(struct jsonfile *file, const char *dir, const char *stem);

/* Returns how many bytes to write at a time: no more than a file may hold, by the process's limit
 * too. `ending`: the process is about to end. */
size_t jsonfile_room(const struct jsonfile *file, bool ending);

/* Appends whole lines, all of them or nothing. Returns 0 or -errno. */
int jsonfile_write(struct jsonfile *file, const char *lines, size_t length);

/* The process ends in order: puts a text into a file beside the last one, with `.end` behind its
 * name, in place of what was there. Does nothing if no line was written. */
void jsonfile_put_end(struct jsonfile *file, const char *text, size_t length);

/* The process goes on: removes that file again. */
void jsonfile_remove_end(struct jsonfile *file);

/* Closes the file. Later lines go to the same one if it is still there. */
void jsonfile_close(struct jsonfile *file);

#endif
