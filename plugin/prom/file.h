/* SPDX-License-Identifier: Apache-2.0 */
/* prom/file.h - replace a .prom file so that a reader sees the old text or the new one, whole.
 *
 * In a tmpfs that others share the file keeps the room that it has: two files change places, and each is written
 * over while it is the one beside. So a neighbour who takes every free page ends nobody's series. A reader who was
 * overtaken by two replacements sees that the file's time has changed while he read.
 */
#ifndef NCCL_INSPECTOR_PROM_FILE_H
#define NCCL_INSPECTOR_PROM_FILE_H

#include <stdbool.h>

#include "base/textbuf.h"

/* The agent refuses a larger file. */
#define PROMFILE_MAX_BYTES (512u << 10)

/* Returns 0 or -errno; then the old text is still there. `keeps_room`: the file is filled up with blank lines before
 * the last one, `# EOF`; else it holds just the text, which is written anew and renamed. */
int promfile_replace(int dir_fd, const char *name, const struct textbuf *text, bool keeps_room);
/* Takes both files away. */
void promfile_remove(int dir_fd, const char *name);

#endif
