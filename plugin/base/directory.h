/* SPDX-License-Identifier: Apache-2.0 */
/* base/directory.h - the user's own directory, made if need be. */
#ifndef NCCL_INSPECTOR_BASE_DIRECTORY_H
#define NCCL_INSPECTOR_BASE_DIRECTORY_H

#include <stddef.h>

/* Makes a directory and its parents (0755 and the umask) and opens it. All ranks of a node do this at the same time:
 * that it is there already is as good. Returns a descriptor above 2, or -errno. */
int directory_open(const char *path);

/* The same directory wherever the process goes afterwards; as it is when that has no room. */
void directory_absolute(char *path, size_t room);

#endif
