/* SPDX-License-Identifier: Apache-2.0 */
/* prom/file.h - replace a .prom file so that a reader sees the old text or the new one, whole.
 *
 * In a tmpfs that is shared with others the file keeps the room that it has: two files change
 * places, and each is written over while it is the one beside. So a neighbour who takes every free
 * page ends nobody's series. A reader that was overtaken by two replacements sees that the file's
 * time has changed meanwhile.
 */
#ifndef NCCL_INSPECTOR_PROM_FILE_H
#define NCCL_INSPECTOR_PROM_FILE_H

#include <stdbool.h>

#include "base/textbuf.h"

/* The agent refuses a larger file. */
#define PROMFILE_MAX_BYTES (512u << 10)

/* Replaces <dir_fd>/<name> by a text that ends with the line `# EOF`. `keeps_room`: the file is
 * filled up with blank lines before that line; otherwise it holds just the text, which is written
 * anew and renamed. Returns 0, or -errno: then the old text is still there. May block: by the
 * beat. */
int promfile_replace(int dir_fd, const char *name, const struct textbuf *text, bool keeps_room);

/* Removes the file and the one beside it. */
void promfile_remove(int dir_fd, const char *name);

#endif
